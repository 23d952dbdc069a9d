//! Properties of reader and writer: what is written is read back, and damaged files are errors, never panics.
#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use proptest::prelude::*;
use rsllm_gguf::{Array, Gguf, GgufString, GgufWriter, Metadata, OpenOptions, Value};
use rsllm_gguf::{ShardLimit, ShardOptions};
use rsllm_quant::GgmlType;

mod common;
use common::Folder;
use common::exercise::exercise;

#[derive(Clone, Debug)]
struct Model {
    metadata: Metadata,
    /// Name, type, dimensions, bytes.
    tensors: Vec<(String, GgmlType, Vec<u64>, Vec<u8>)>,
}

impl Model {
    fn writer(&self) -> GgufWriter {
        let mut writer = GgufWriter::new(self.metadata.clone()).unwrap();
        for (name, ty, dims, _) in &self.tensors {
            writer.add_tensor(name, *ty, dims).unwrap();
        }
        writer
    }

    fn bytes_of(&self, name: &str) -> &[u8] {
        &self
            .tensors
            .iter()
            .find(|(other, ..)| other == name)
            .unwrap()
            .3
    }

    fn write(&self) -> Vec<u8> {
        let mut file = Vec::new();
        let source = |tensor: &rsllm_gguf::TensorSpec, out: &mut dyn std::io::Write| {
            // In pieces, as a converter writes rows.
            self.bytes_of(&tensor.name)
                .chunks(7)
                .try_for_each(|piece| out.write_all(piece))
        };
        self.writer().write_to(&mut file, source).unwrap();
        file
    }

    fn assert_read_back(&self, read: &Gguf) {
        assert_eq!(read.tensors().len(), self.tensors.len());
        for (tensor, (name, ty, dims, bytes)) in read.tensors().iter().zip(&self.tensors) {
            assert_eq!((&tensor.name, &tensor.ty, &tensor.dims), (name, ty, dims));
            assert_eq!(read.tensor_bytes(tensor), bytes);
            assert_eq!(tensor.n_bytes(), bytes.len());
            let owner = read.owner(tensor);
            assert_eq!(&(*owner).as_ref()[read.tensor_range(tensor)], bytes);
            assert_eq!(read.tensor(name).unwrap(), tensor);
        }
    }
}

fn strings() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        "[a-z▁é😀]{0,12}".prop_map(String::into_bytes),
        prop::collection::vec(any::<u8>(), 0..12),
    ]
}

fn arrays() -> impl Strategy<Value = Array> {
    let n = 0..20;
    prop_oneof![
        prop::collection::vec(any::<u8>(), n.clone()).prop_map(Array::U8),
        prop::collection::vec(any::<i8>(), n.clone()).prop_map(Array::I8),
        prop::collection::vec(any::<u16>(), n.clone()).prop_map(Array::U16),
        prop::collection::vec(any::<i16>(), n.clone()).prop_map(Array::I16),
        prop::collection::vec(any::<u32>(), n.clone()).prop_map(Array::U32),
        prop::collection::vec(any::<i32>(), n.clone()).prop_map(Array::I32),
        prop::collection::vec(any::<u64>(), n.clone()).prop_map(Array::U64),
        prop::collection::vec(any::<i64>(), n.clone()).prop_map(Array::I64),
        prop::collection::vec(any::<f32>(), n.clone()).prop_map(Array::F32),
        prop::collection::vec(any::<f64>(), n.clone()).prop_map(Array::F64),
        prop::collection::vec(any::<bool>(), n.clone()).prop_map(Array::Bool),
        prop::collection::vec(strings(), n).prop_map(|v| Array::String(v.into_iter().collect())),
    ]
}

fn values() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        any::<f32>().prop_map(Value::F32),
        any::<f64>().prop_map(Value::F64),
        any::<bool>().prop_map(Value::Bool),
        strings().prop_map(|bytes| Value::String(GgufString::from_bytes(&bytes))),
        arrays().prop_map(Value::Array),
    ]
}

fn models() -> impl Strategy<Value = Model> {
    let metadata = prop::collection::btree_map("[a-z.]{1,8}é?", values(), 0..8);
    let alignment = prop::option::of((0..8_u32).prop_map(|power| 1_u32 << power));
    let tensor = (
        0..GgmlType::ALL.len(),
        prop::collection::vec(1..4_u64, 0..=4),
        any::<u8>(),
    );
    let tensors = prop::collection::btree_map("[a-z.]{1,12}", tensor, 0..6);
    (metadata, alignment, tensors).prop_map(|(entries, alignment, tensors)| {
        let mut metadata: Metadata = entries.into_iter().collect();
        if let Some(alignment) = alignment {
            metadata.insert("general.alignment", alignment);
        }
        let tensors = tensors.into_iter().map(|(name, (ty, mut dims, fill))| {
            let ty = GgmlType::ALL[ty];
            // Scalars exist only in types of single values.
            if dims.is_empty() && ty.block_len() > 1 {
                dims.push(1);
            }
            if let Some(row_len) = dims.first_mut() {
                *row_len *= ty.block_len() as u64;
            }
            let n_bytes = dims.iter().product::<u64>() as usize / ty.block_len() * ty.block_bytes();
            (name, ty, dims, vec![fill; n_bytes])
        });
        Model {
            metadata,
            tensors: tensors.collect(),
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(64), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read_back(model in models()) {
        let read = Gguf::from_bytes(model.write(), "property.gguf").unwrap();
        // NaN is not equal to itself, its text is.
        prop_assert_eq!(format!("{:?}", read.metadata()), format!("{:?}", model.metadata));
        model.assert_read_back(&read);
        // A copy is the same file.
        let mut copy = Vec::new();
        let bytes = |tensor: &rsllm_gguf::TensorSpec, out: &mut dyn std::io::Write| {
            out.write_all(read.tensor_bytes(read.tensor(&tensor.name).unwrap()))
        };
        GgufWriter::copy_of(&read).unwrap().write_to(&mut copy, bytes).unwrap();
        prop_assert_eq!(copy, model.write());
    }

    #[test]
    fn shards_hold_the_same_model(model in models(), most in 1..4_usize, first_without_tensors: bool, mmap: bool) {
        let folder = Folder::new("property-shards");
        let options = ShardOptions { limit: ShardLimit::Tensors(most.try_into().unwrap()), first_without_tensors };
        let paths = model
            .writer()
            .write_shards(folder.path("m"), options, |tensor, out| out.write_all(model.bytes_of(&tensor.name)))
            .unwrap();
        let read = Gguf::open_with(paths.last().unwrap(), OpenOptions::default().with_mmap(mmap)).unwrap();
        prop_assert_eq!(read.files(), paths);
        model.assert_read_back(&read);
        prop_assert_eq!(read.metadata().len(), model.metadata.len() + 3);
        prop_assert_eq!(std::fs::read_dir(folder.as_path()).unwrap().count(), read.files().len());
    }

    #[test]
    fn truncated_files_are_errors_or_lack_only_padding(model in models(), cut in any::<prop::sample::Index>()) {
        let file = model.write();
        let length = cut.index(file.len());
        match Gguf::from_bytes(file[..length].to_vec(), "property.gguf") {
            Ok(read) => model.assert_read_back(&read),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    #[test]
    fn changed_bytes_never_panic(model in models(), changes in prop::collection::vec(any::<(prop::sample::Index, u8)>(), 1..4)) {
        let mut file = model.write();
        for (at, byte) in changes {
            let at = at.index(file.len());
            file[at] = byte;
        }
        exercise(&file);
    }

    #[test]
    fn noise_behind_a_header_never_panics(noise in prop::collection::vec(any::<u8>(), 0..200), n_tensors in 0..3_u64, n_entries in 0..3_u64) {
        let header = [&b"GGUF\x03\0\0\0"[..], &n_tensors.to_le_bytes(), &n_entries.to_le_bytes(), &noise].concat();
        exercise(&header);
        exercise(&noise);
    }
}

/// How many cases to run: `RSLLM_PROPTEST_CASES` for a long run.
fn cases(default: u32) -> u32 {
    std::env::var("RSLLM_PROPTEST_CASES")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}
