//! Generating a token allocates what leaves to the caller, and nothing else, however long the context.
#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use rsllm_engine::sampling::SamplingOptions;
use rsllm_engine::{Engine, GenerateOptions, LoadOptions};

#[path = "common/tiny_model.rs"]
#[allow(dead_code, reason = "the crate's own tests use more of it")]
mod tiny_model;
use tiny_model::{BOS, tiny_model};

/// The system's allocator, counting calls and bytes.
struct Counter;

static CALLS: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on unchanged, so the system allocator's guarantees are this one's. `realloc` and
// `alloc_zeroed` have default bodies that call these.
unsafe impl GlobalAlloc for Counter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's duties are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the block came from `alloc` above, which is the system's.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static COUNTER: Counter = Counter;

/// One test, because the count is the whole process's.
#[test]
fn a_token_allocates_only_its_piece() {
    let file = tiny_model(2048);
    let engine = Engine::load(
        &file.0,
        &LoadOptions {
            threads: Some(2),
            ..LoadOptions::default()
        },
    )
    .unwrap();
    let chain = SamplingOptions {
        repeat_penalty: 1.1,
        typical_p: 0.95,
        seed: Some(1),
        ..SamplingOptions::default()
    };
    for sampling in [SamplingOptions::greedy(), chain] {
        let options = GenerateOptions {
            ignore_eos: true,
            sampling,
            stop: vec!["never to be seen".to_owned()],
            ..GenerateOptions::default()
        };
        let mut generation = engine.generate(vec![BOS; 40], options).unwrap();
        // The first tokens may warm things up.
        for _ in 0..20 {
            generation.next_piece().unwrap().unwrap();
        }
        let (calls, bytes) = (CALLS.load(Ordering::Relaxed), BYTES.load(Ordering::Relaxed));
        let mut n_tokens = 0;
        for _ in 0..500 {
            n_tokens += generation.next_piece().unwrap().unwrap().ids.len();
        }
        let calls = (CALLS.load(Ordering::Relaxed) - calls) as f64 / n_tokens as f64;
        let bytes = (BYTES.load(Ordering::Relaxed) - bytes) as f64 / n_tokens as f64;
        // A piece is a string and a list of ids, and now and then a block of the channel's queue. The engine may be ahead of
        // this thread by what the queue holds, which moves the figures little.
        assert!(
            calls < 5.0 && bytes < 1000.0,
            "{calls} allocations of {bytes} bytes a token"
        );
    }
}
