//! Malformed and unusual files met in the field, each by its case number in the project's list of field cases.
//!
//! Byte strings are complete files, as published with the case. Cases that need a model or a tokenizer are elsewhere.
#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::time::{Duration, Instant};

use rsllm_gguf::StringArray;
use rsllm_gguf::{Cause, ErrorKind, Gguf, GgufWriter, Metadata, ValueType};

mod common;
use common::{Folder, RawFile, hex, refused, small_model};

#[test]
fn gf_01_zero_dimension_names_tensor_and_dimension() {
    let file = hex(
        "47475546 03000000 0100000000000000 0000000000000000 0100000000000000 74 02000000
        0100000000000000 0000000000000000 00000000 0000000000000000",
    );
    assert_eq!(file.len(), 65);
    let error = refused(&file);
    assert!(
        matches!(error.cause(), Cause::ZeroDimension { tensor, dimension: 1, .. } if tensor == "t"),
        "{error}"
    );

    let padded = RawFile::new().tensor("t", &[4, 0], 0, 0).build(0);
    assert_eq!(padded.len(), 96);
    assert!(matches!(
        refused(&padded).cause(),
        Cause::ZeroDimension { dimension: 1, .. }
    ));
    for n_dims in 1..=4 {
        for zero in 0..n_dims {
            let mut dims = vec![1; n_dims];
            dims[zero] = 0;
            let error = refused(&RawFile::new().tensor("t", &dims, 0, 0).build(256));
            assert!(
                matches!(error.cause(), Cause::ZeroDimension { dimension, .. } if *dimension == zero),
                "{error}"
            );
        }
    }
}

#[test]
fn gf_02_alignment_must_be_a_non_zero_power_of_two() {
    let file = hex(
        "47475546 03000000 0000000000000000 0100000000000000 1100000000000000
        67656e6572616c2e616c69676e6d656e74 04000000 00000000",
    );
    assert_eq!(file.len(), 57);
    assert_eq!(refused(&file).field().as_deref(), Some("general.alignment"));
    for alignment in [0_u32, 3, 33, u32::MAX] {
        for with_tensor in [false, true] {
            let mut raw = RawFile::new().key("general.alignment", 4, &alignment.to_le_bytes());
            if with_tensor {
                raw = raw.tensor("t", &[1], 0, 0);
            }
            let error = refused(&raw.build(0));
            assert!(
                error
                    .to_string()
                    .contains("must be a non-zero power of two"),
                "{error}"
            );
            assert_eq!(error.found(), Some(alignment.to_string()));
        }
    }
    for alignment in [1_u32, 8, 64, 1 << 20] {
        let raw = RawFile::new()
            .key("general.alignment", 4, &alignment.to_le_bytes())
            .tensor("t", &[1], 0, 0);
        let model = Gguf::from_bytes(raw.build(alignment as usize * 2 + 512), "case.gguf").unwrap();
        assert_eq!(model.alignment(), alignment);
        assert_eq!(
            model.tensor_range(&model.tensors()[0]).start % alignment as usize,
            0
        );
    }
}

#[test]
fn gf_03_alignment_of_the_wrong_type_must_be_u32() {
    let file = hex(
        "47475546 03000000 0000000000000000 0100000000000000 1100000000000000
        67656e6572616c2e616c69676e6d656e74 05000000 20000000",
    );
    assert_eq!(file.len(), 57);
    let error = refused(&file);
    assert!(
        matches!(
            error.cause(),
            Cause::AlignmentType {
                found: ValueType::I32
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains("must be u32"), "{error}");

    let array = [
        &4_u32.to_le_bytes()[..],
        &1_u64.to_le_bytes(),
        &32_u32.to_le_bytes(),
    ]
    .concat();
    let error = refused(&RawFile::new().key("general.alignment", 9, &array).build(0));
    assert!(
        matches!(
            error.cause(),
            Cause::AlignmentType {
                found: ValueType::Array
            }
        ),
        "{error}"
    );
}

#[test]
fn gf_04_empty_key_is_an_error() {
    let file =
        hex("47475546 03000000 0000000000000000 0100000000000000 0000000000000000 00000000 00");
    assert_eq!(file.len(), 37);
    assert!(matches!(
        refused(&file).cause(),
        Cause::EmptyKey { index: 0 }
    ));
}

#[test]
fn gf_06_dimension_patched_to_wrap_names_the_tensor_and_both_sizes() {
    // Followed by another tensor, alone, and of a type whose size wraps 64 bits.
    let rest = RawFile::new()
        .tensor("token_embd.weight", &[1152, (1 << 42) + 1], 8, 0)
        .tensor("t", &[32], 8, 1184);
    let alone = RawFile::new().tensor("token_embd.weight", &[1152, (1 << 42) + 1], 8, 0);
    let wraps = RawFile::new().tensor("token_embd.weight", &[1 << 32, (1 << 32) + 1], 0, 0);
    let wraps_twice = RawFile::new().tensor(
        "token_embd.weight",
        &[1 << 62, 1 << 62, 1 << 62, 1 << 62],
        0,
        0,
    );
    for raw in [rest, alone, wraps, wraps_twice] {
        let error = refused(&raw.build(4096));
        assert_eq!(error.kind(), ErrorKind::Malformed, "{error}");
        assert_eq!(error.field().as_deref(), Some("token_embd.weight"));
        assert!(
            error.expected().is_some_and(|text| text.contains("bytes")),
            "{error}"
        );
        assert!(
            error.found().is_some_and(|text| text.contains("bytes")),
            "{error}"
        );
    }
}

#[test]
fn gf_07_truncated_tensor_data_says_how_much_is_missing_and_to_join_parts() {
    let whole = small_model(3);
    let cut = &whole[..whole.len() - 40];
    let error = refused(cut);
    assert_eq!(error.kind(), ErrorKind::Truncated);
    let Cause::Truncated {
        tensor,
        needed,
        file_len,
        missing,
    } = error.cause()
    else {
        panic!("{error}")
    };
    assert_eq!((tensor.as_str(), *file_len), ("blk.2.w", cut.len() as u64));
    assert_eq!(needed - file_len, *missing);
    assert!(
        error.to_string().contains(&format!(
            "needs bytes up to {needed}, the file has {file_len}"
        )),
        "{error}"
    );

    let folder = Folder::new("gf-07");
    for (name, bytes) in [
        ("m.gguf.part1of2", &whole[..100]),
        ("m.gguf.part2of2", &whole[100..]),
    ] {
        let error = Gguf::open(folder.write(name, bytes)).unwrap_err();
        assert!(
            error
                .hint()
                .is_some_and(|hint| hint.contains("join the parts")),
            "{error}"
        );
    }
}

#[test]
fn gf_12_unknown_removed_and_future_types_name_tensor_and_type() {
    for id in [4_u32, 5, 31, 32, 33, 36, 37, 38] {
        let error = refused(&RawFile::new().tensor("blk.0.w", &[256], id, 0).build(4096));
        assert!(
            matches!(error.cause(), Cause::RemovedTensorType { tensor, id: found } if tensor == "blk.0.w" && *found == id)
        );
        assert!(error.to_string().contains("removed"), "{error}");
    }
    for id in [43_u32, 9999, u32::MAX] {
        let error = refused(&RawFile::new().tensor("blk.0.w", &[256], id, 0).build(4096));
        assert!(
            matches!(error.cause(), Cause::UnknownTensorType { .. }),
            "{error}"
        );
        assert!(
            error.to_string().contains(&format!(
                "`blk.0.w` uses type id {id}, unknown to this version"
            )),
            "{error}"
        );
    }
    let model = Gguf::from_bytes(
        RawFile::new().tensor("t", &[32], 39, 0).build(4096),
        "case.gguf",
    )
    .unwrap();
    assert_eq!(model.tensors()[0].ty.name(), "MXFP4");
}

#[test]
fn gf_14_duplicate_keys_and_tensors_are_named() {
    let name = [&4_u64.to_le_bytes()[..], b"same"].concat();
    let error = refused(
        &RawFile::new()
            .key("general.name", 8, &name)
            .key("general.name", 8, &name)
            .build(0),
    );
    assert!(
        matches!(error.cause(), Cause::DuplicateKey { key } if key == "general.name"),
        "{error}"
    );

    let twice = RawFile::new()
        .tensor("blk.0.attn_q.weight", &[8], 0, 0)
        .tensor("blk.0.attn_q.weight", &[8], 0, 32);
    let error = refused(&twice.build(4096));
    assert!(
        matches!(error.cause(), Cause::DuplicateTensor { tensor } if tensor == "blk.0.attn_q.weight"),
        "{error}"
    );
}

#[test]
fn gf_15_a_vocabulary_of_262144_tokens_loads_quickly() {
    let n_tokens = 262_144;
    let tokens: StringArray = (0..n_tokens)
        .map(|index| format!("▁token{index}"))
        .collect();
    let mut metadata = Metadata::new();
    metadata.insert("tokenizer.ggml.tokens", rsllm_gguf::Array::String(tokens));
    metadata.insert("tokenizer.ggml.scores", vec![0.0_f32; n_tokens]);
    metadata.insert("tokenizer.ggml.token_type", vec![1_i32; n_tokens]);
    let mut file = Vec::new();
    GgufWriter::new(metadata)
        .unwrap()
        .write_to(&mut file, |_, _| Ok(()))
        .unwrap();

    let start = Instant::now();
    let model = Gguf::from_bytes(file, "case.gguf").unwrap();
    let elapsed = start.elapsed();
    let tokens = model.metadata().str_array("tokenizer.ggml.tokens").unwrap();
    assert_eq!(tokens.get_str(n_tokens - 1), Some("▁token262143"));
    assert_time(elapsed, Duration::from_millis(500));
}

#[test]
fn gf_15_many_keys_and_tensors_take_linear_time() {
    let mut raw = RawFile::new();
    for index in 0..50_000_u64 {
        raw = raw.key(&format!("key.{index}"), 0, &[0]).tensor(
            &format!("tensor.{index}"),
            &[8],
            0,
            index * 32,
        );
    }
    let file = raw.build(50_000 * 32 + 64);
    let start = Instant::now();
    let model = Gguf::from_bytes(file, "case.gguf").unwrap();
    let elapsed = start.elapsed();
    assert_eq!(
        (model.metadata().len(), model.tensors().len()),
        (50_000, 50_000)
    );
    assert_time(elapsed, Duration::from_secs(2));
}

#[test]
fn gf_15_more_keys_than_any_model_has_are_refused() {
    let mut raw = RawFile::new();
    for index in 0..=65_536 {
        raw = raw.key(&format!("{index}"), 0, &[0]);
    }
    let error = refused(&raw.build(0));
    assert!(
        matches!(error.cause(), Cause::LimitExceeded { value: 65_537, .. }),
        "{error}"
    );
}

#[test]
fn gf_16_big_endian_is_named() {
    let error = refused(&hex("47475546 00000003 0000000000000000 0000000000000000"));
    assert!(
        matches!(error.cause(), Cause::WrongEndian { version: 3 }),
        "{error}"
    );
    assert!(error.to_string().contains("big-endian GGUF"), "{error}");
    let error = refused(&hex("47475546 00000002 00000000 00000001"));
    assert!(
        matches!(error.cause(), Cause::WrongEndian { version: 2 }),
        "{error}"
    );
}

#[test]
fn gf_17_version_1_is_refused_whatever_its_strings() {
    for string_length in ["0000000000000000", "0000000000000080", "ffffffffffffffff"] {
        let file = hex(&format!(
            "47475546 01000000 00000000 01000000 {string_length}"
        ));
        assert!(matches!(
            refused(&file).cause(),
            Cause::VersionTooOld { version: 1 }
        ));
    }
}

#[test]
fn gf_18_huge_lengths_are_refused_before_they_are_allocated() {
    let string = hex(
        "47475546 03000000 0000000000000000 0100000000000000 0100000000000000 6b 08000000 0000000000000080",
    );
    assert_eq!(string.len(), 45);
    let array = hex(
        "47475546 03000000 0000000000000000 0100000000000000 0100000000000000 6b 09000000 04000000
        0100000000000080",
    );
    assert_eq!(array.len(), 49);
    for file in [string, array] {
        let error = refused(&file);
        assert!(
            matches!(error.cause(), Cause::LengthBeyondFile { field, .. } if field.contains("length of k")),
            "{error}"
        );
    }

    let key = hex(
        "47475546 03000000 0000000000000000 0100000000000000 ffffffffffffffff 6b 00000000 00000000",
    );
    assert!(matches!(
        refused(&key).cause(),
        Cause::LengthBeyondFile { .. }
    ));
    for count in [1_u64 << 63, u64::MAX, u64::MAX / 24 + 1, 1 << 40] {
        let header = |tensors: u64, entries: u64| {
            [
                &b"GGUF\x03\0\0\0"[..],
                &tensors.to_le_bytes(),
                &entries.to_le_bytes(),
                &[0; 64],
            ]
            .concat()
        };
        let error = refused(&header(count, 0));
        assert!(
            matches!(error.cause(), Cause::LengthBeyondFile { field, .. } if field == "tensor count"),
            "{error}"
        );
        let error = refused(&header(0, count));
        assert!(
            matches!(error.cause(), Cause::LengthBeyondFile { field, .. } if field == "metadata count"),
            "{error}"
        );
    }
    let n_dims = hex(
        "47475546 03000000 0100000000000000 0000000000000000 0100000000000000 74 ffffffff
        0100000000000000 00000000 0000000000000000",
    );
    assert!(matches!(
        refused(&n_dims).cause(),
        Cause::TooManyDimensions {
            n_dims: u32::MAX,
            ..
        }
    ));

    let nested = [&9_u32.to_le_bytes()[..], &1_u64.to_le_bytes(), &[0; 12]].concat();
    let error = refused(&RawFile::new().key("k", 9, &nested).build(0));
    assert!(
        matches!(error.cause(), Cause::NestedArray { key } if key == "k"),
        "{error}"
    );

    // Counts whose product with the element size wraps 64 bits.
    for (element_type, count) in [
        (10_u32, (1_u64 << 61) + 1),
        (8, (1 << 61) + 1),
        (4, (1 << 62) + 1),
        (5, u64::MAX),
    ] {
        let value = [
            &element_type.to_le_bytes()[..],
            &count.to_le_bytes(),
            &[0; 64],
        ]
        .concat();
        let error = refused(&RawFile::new().key("k", 9, &value).build(0));
        assert!(
            matches!(error.cause(), Cause::LengthBeyondFile { length, .. } if *length == count),
            "{error}"
        );
    }
}

/// Machines that share their cores with other work cannot promise a time, so only a run that asks for it checks it.
fn assert_time(elapsed: Duration, limit: Duration) {
    if std::env::var_os("RSLLM_ASSERT_TIMES").is_some() {
        assert!(elapsed < limit, "{elapsed:?}, limit {limit:?}");
    }
}
