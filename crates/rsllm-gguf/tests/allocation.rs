//! No file makes the reader allocate out of proportion to its own size, whatever lengths it claims.
#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use rsllm_gguf::{Gguf, GgufWriter, Metadata};

mod common;
use common::RawFile;

/// The system's allocator, with the largest block asked for since the last reset.
struct Recorder;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on unchanged, so the system allocator's guarantees are this one's.
unsafe impl GlobalAlloc for Recorder {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's duties are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the block came from `alloc` above, which is the system's.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static RECORDER: Recorder = Recorder;

/// The largest block that opening `file` asks for.
fn largest_block(file: Vec<u8>) -> (usize, bool) {
    LARGEST.store(0, Ordering::Relaxed);
    let is_ok = Gguf::from_bytes(file, "case.gguf").is_ok();
    (LARGEST.load(Ordering::Relaxed), is_ok)
}

/// One test, because the record is the whole process's.
#[test]
fn allocations_stay_within_the_size_of_the_file() {
    let claims = [
        1_u64 << 20,
        1 << 32,
        1 << 40,
        (1 << 61) + 1,
        1 << 63,
        u64::MAX,
    ];
    for claim in claims {
        let array = |ty: u32| [&ty.to_le_bytes()[..], &claim.to_le_bytes(), &[0; 100]].concat();
        let mut files = vec![
            RawFile::new().key("k", 8, &claim.to_le_bytes()).build(0),
            [
                &b"GGUF\x03\0\0\0"[..],
                &claim.to_le_bytes(),
                &0_u64.to_le_bytes(),
                &[0; 100],
            ]
            .concat(),
            [
                &b"GGUF\x03\0\0\0"[..],
                &0_u64.to_le_bytes(),
                &claim.to_le_bytes(),
                &[0; 100],
            ]
            .concat(),
            RawFile::new().tensor("t", &[claim], 0, 0).build(0),
            RawFile::new().tensor("t", &[1], 0, claim & !31).build(0),
        ];
        files.extend(
            (0..13)
                .filter(|&ty| ty != 9)
                .map(|ty| RawFile::new().key("k", 9, &array(ty)).build(0)),
        );
        for file in files {
            let (largest, is_ok) = largest_block(file);
            assert!(
                !is_ok && largest < 4096,
                "{largest} bytes for a claim of {claim}"
            );
        }
    }

    // Honest files: the vocabulary's two buffers together are smaller than its strings with their lengths.
    let mut metadata = Metadata::new();
    let tokens: Vec<String> = (0..50_000).map(|index| format!("token{index}")).collect();
    metadata.insert(
        "tokens",
        tokens.iter().map(String::as_str).collect::<Vec<_>>(),
    );
    metadata.insert("empty", vec![""; 50_000]);
    let mut file = Vec::new();
    GgufWriter::new(metadata)
        .unwrap()
        .write_to(&mut file, |_, _| Ok(()))
        .unwrap();
    let n_bytes = file.len();
    let (largest, is_ok) = largest_block(file);
    assert!(
        is_ok && largest <= n_bytes,
        "{largest} bytes for a file of {n_bytes}"
    );
}
