//! Agreement with the `gguf` Python package: its file is read as it was meant, and written again byte for byte.
#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use rsllm_gguf::{Array, Gguf, GgufWriter, Value};
use rsllm_quant::GgmlType;

/// Made by `fixtures/gguf_py.py`.
const FILE: &[u8] = include_bytes!("fixtures/gguf_py.bin");

fn open() -> Gguf {
    Gguf::from_bytes(FILE.to_vec(), "gguf_py.bin").unwrap()
}

#[test]
fn every_type_of_value_is_read() {
    let model = open();
    let scalars = [
        ("uint8", Value::U8(200), Array::U8(vec![200; 3])),
        ("int8", Value::I8(-100), Array::I8(vec![-100; 3])),
        ("uint16", Value::U16(60000), Array::U16(vec![60000; 3])),
        ("int16", Value::I16(-30000), Array::I16(vec![-30000; 3])),
        (
            "uint32",
            Value::U32(4_000_000_000),
            Array::U32(vec![4_000_000_000; 3]),
        ),
        (
            "int32",
            Value::I32(-2_000_000_000),
            Array::I32(vec![-2_000_000_000; 3]),
        ),
        ("float32", Value::F32(0.1), Array::F32(vec![0.1; 3])),
        ("bool", Value::Bool(true), Array::Bool(vec![true; 3])),
        (
            "uint64",
            Value::U64(u64::MAX),
            Array::U64(vec![u64::MAX; 3]),
        ),
        ("int64", Value::I64(i64::MIN), Array::I64(vec![i64::MIN; 3])),
        ("float64", Value::F64(0.1), Array::F64(vec![0.1; 3])),
    ];
    for (name, scalar, array) in scalars {
        assert_eq!(
            model.metadata().get(&format!("scalar.{name}")),
            Some(&scalar)
        );
        assert_eq!(
            model.metadata().get(&format!("array.{name}")),
            Some(&Value::Array(array))
        );
    }
    assert_eq!(
        model.metadata().str("scalar.string").unwrap(),
        "naïve ▁ 😀\0"
    );
    let strings = |key| {
        model
            .metadata()
            .str_array(key)
            .unwrap()
            .iter()
            .collect::<Vec<_>>()
    };
    assert_eq!(
        strings("array.string"),
        [&b"<s>"[..], b"", "▁the".as_bytes()]
    );
    assert_eq!(strings("array.bytes"), [&b"\xff\xfe"[..], b"ok"]);
    assert_eq!(model.metadata().architecture().unwrap(), "llama");
    assert_eq!((model.version(), model.alignment()), (3, 64));
}

#[test]
fn tensors_have_reversed_numpy_shapes() {
    let model = open();
    let shapes: Vec<_> = model
        .tensors()
        .iter()
        .map(|t| (t.name.as_str(), t.ty, t.dims.as_slice()))
        .collect();
    let expected: [(&str, GgmlType, &[u64]); 4] = [
        ("vector", GgmlType::F32, &[5]),
        ("matrix", GgmlType::F16, &[3, 2]),
        ("cube", GgmlType::I32, &[4, 3, 2]),
        ("packed", GgmlType::Q8_0, &[32, 2]),
    ];
    assert_eq!(shapes, expected);
    let cube = model.tensor("cube").unwrap();
    assert_eq!(
        (
            cube.row_len(),
            cube.n_rows(),
            cube.n_elements(),
            cube.n_bytes()
        ),
        (4, 6, 24, 96)
    );
    let numbers: Vec<i32> = model
        .tensor_bytes(cube)
        .as_chunks::<4>()
        .0
        .iter()
        .map(|bytes| i32::from_le_bytes(*bytes))
        .collect();
    assert_eq!(numbers, (0..24).collect::<Vec<_>>());
}

#[test]
fn a_copy_is_the_same_byte_for_byte() {
    let model = open();
    let mut copy = Vec::new();
    GgufWriter::copy_of(&model)
        .unwrap()
        .write_to(&mut copy, |tensor, out| {
            out.write_all(model.tensor_bytes(model.tensor(&tensor.name).unwrap()))
        })
        .unwrap();
    assert!(
        copy == FILE,
        "{} bytes, expected {}",
        copy.len(),
        FILE.len()
    );
}
