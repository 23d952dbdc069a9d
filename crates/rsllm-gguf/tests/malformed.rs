//! Malformed files beyond the field cases: published CVEs by number, and each rule of the format once.
#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use rsllm_gguf::{Cause, ErrorKind, Foreign, Gguf, Value};
use rsllm_quant::GgmlType;

mod common;
use common::{RawFile, refused, small_model};

#[test]
fn cve_2024_39720_a_file_of_four_bytes_is_an_error() {
    let error = refused(b"GGUF");
    assert!(
        matches!(error.cause(), Cause::EndOfFile { field, .. } if field == "version"),
        "{error}"
    );
    assert!(matches!(refused(b"GG").cause(), Cause::EndOfFile { .. }));
    assert!(matches!(refused(b"").cause(), Cause::EmptyFile));
}

#[cfg(unix)]
#[test]
fn cve_2024_39721_devices_and_folders_are_not_read() {
    assert!(matches!(
        Gguf::open("/dev/zero").unwrap_err().cause(),
        Cause::NotRegularFile { found: "device" }
    ));
    let error = Gguf::open("/").unwrap_err();
    assert!(
        matches!(error.cause(), Cause::Io(io) if io.kind() == std::io::ErrorKind::IsADirectory)
    );
    let error = Gguf::open("/nonexistent/m.gguf").unwrap_err();
    assert!(matches!(error.cause(), Cause::Io(io) if io.kind() == std::io::ErrorKind::NotFound));
}

#[test]
fn cve_2024_12055_every_truncation_of_a_header_is_an_error() {
    let whole = small_model(2);
    for length in 0..whole.len() - 24 {
        let error = refused(&whole[..length]);
        let expected = match length {
            0 => ErrorKind::NotGguf,
            // A length or count that the file is now too short for.
            _ if matches!(error.cause(), Cause::LengthBeyondFile { .. }) => ErrorKind::Malformed,
            _ => ErrorKind::Truncated,
        };
        assert_eq!(error.kind(), expected, "{length}: {error}");
    }
}

#[test]
fn cve_2025_53630_sums_of_sizes_do_not_wrap() {
    let huge = 1_u64 << 60;
    let mut raw = RawFile::new();
    for index in 0..20_u64 {
        raw = raw.tensor(&format!("t{index}"), &[huge], 24, index.wrapping_mul(huge));
    }
    assert_eq!(refused(&raw.build(4096)).kind(), ErrorKind::Malformed);
}

#[test]
fn cve_2026_7482_a_shape_larger_than_its_data_is_refused() {
    for ty in [0_u32, 1] {
        let file = RawFile::new().tensor("t", &[512, 2], ty, 0).build(32);
        let error = refused(&file);
        assert_eq!(error.field().as_deref(), Some("t"), "{error}");
        assert_eq!(error.kind(), ErrorKind::Truncated);
    }
}

#[test]
fn offsets_must_be_aligned_in_range_and_apart() {
    let error = refused(&RawFile::new().tensor("t", &[8], 0, 4).build(4096));
    assert!(
        matches!(
            error.cause(),
            Cause::Misaligned {
                offset: 4,
                alignment: 32,
                ..
            }
        ),
        "{error}"
    );
    let error = refused(
        &RawFile::new()
            .tensor("t", &[8], 0, u64::MAX - 31)
            .build(4096),
    );
    assert!(
        matches!(error.cause(), Cause::OutOfRange { available: 0, .. }),
        "{error}"
    );
    let overlap = RawFile::new()
        .tensor("a", &[16], 0, 0)
        .tensor("b", &[8], 0, 32);
    assert!(matches!(
        refused(&overlap.build(4096)).cause(),
        Cause::Overlap { other_end: 64, .. }
    ));
    let same = RawFile::new()
        .tensor("a", &[8], 0, 32)
        .tensor("b", &[8], 0, 32);
    assert!(matches!(
        refused(&same.build(4096)).cause(),
        Cause::Overlap { .. }
    ));
    // Gaps, and an order that is not the table's, are fine.
    let apart = RawFile::new()
        .tensor("a", &[8], 0, 128)
        .tensor("b", &[8], 0, 0);
    assert!(Gguf::from_bytes(apart.build(160), "case.gguf").is_ok());
}

#[test]
fn rows_must_be_whole_blocks() {
    let error = refused(&RawFile::new().tensor("t", &[100, 256], 12, 0).build(65536));
    assert!(matches!(
        error.cause(),
        Cause::PartialBlock {
            ty: GgmlType::Q4_K,
            row_len: 100,
            block_len: 256,
            ..
        }
    ));
}

#[test]
fn names_have_limits_and_are_utf8() {
    assert!(
        Gguf::from_bytes(
            RawFile::new().tensor(&"n".repeat(63), &[8], 0, 0).build(64),
            "case.gguf"
        )
        .is_ok()
    );
    let error = refused(&RawFile::new().tensor(&"n".repeat(64), &[8], 0, 0).build(64));
    assert!(
        matches!(
            error.cause(),
            Cause::LimitExceeded {
                value: 64,
                limit: 63,
                ..
            }
        ),
        "{error}"
    );
    assert!(
        Gguf::from_bytes(
            RawFile::new().key(&"k".repeat(65535), 0, &[0]).build(0),
            "case.gguf"
        )
        .is_ok()
    );
    let error = refused(&RawFile::new().key(&"k".repeat(65536), 0, &[0]).build(0));
    assert!(
        matches!(
            error.cause(),
            Cause::LimitExceeded {
                value: 65536,
                limit: 65535,
                ..
            }
        ),
        "{error}"
    );
    let error = refused(&RawFile::new().raw_key(b"\xff\xfe", 0, &[0]).build(0));
    assert!(matches!(error.cause(), Cause::NotUtf8 { .. }), "{error}");
    let error = refused(&RawFile::new().key("k", 13, &[0; 16]).build(0));
    assert!(
        matches!(error.cause(), Cause::UnknownValueType { id: 13, .. }),
        "{error}"
    );
}

#[test]
fn string_values_keep_bytes_that_are_not_utf8() {
    let value = [&3_u64.to_le_bytes()[..], b"\xffa\0"].concat();
    let model = Gguf::from_bytes(RawFile::new().key("k", 8, &value).build(0), "case.gguf").unwrap();
    let Some(Value::String(text)) = model.metadata().get("k") else {
        panic!("not a string")
    };
    assert_eq!(text.as_bytes(), b"\xffa\0");
    assert!(model.metadata().str("k").is_err());
}

#[test]
fn other_files_are_named_with_what_to_do() {
    let lfs = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1\n";
    for (bytes, expected) in [
        (&b"<!DOCTYPE html><html lang=\"en\">"[..], Foreign::Html),
        (lfs, Foreign::GitLfsPointer),
        (b"PK\x03\x04\x14\0\0\0", Foreign::Zip),
        (
            b"\x30\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"F32\"",
            Foreign::Safetensors,
        ),
        (
            b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.",
            Foreign::PyTorch,
        ),
    ] {
        let error = refused(bytes);
        assert!(
            matches!(error.cause(), Cause::NotGguf { foreign, .. } if *foreign == expected),
            "{error}"
        );
        assert!(error.hint().is_some(), "{error}");
    }
    let error = refused(b"GGUF\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    assert!(
        matches!(error.cause(), Cause::VersionTooNew { version: 4 }),
        "{error}"
    );
}
