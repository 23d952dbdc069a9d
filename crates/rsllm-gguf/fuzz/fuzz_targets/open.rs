//! Opens arbitrary bytes as a GGUF file.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../tests/common/exercise.rs"]
mod exercise;

fuzz_target!(|bytes: &[u8]| exercise::exercise(bytes));
