//! Start: reading vocabularies.
//!
//! `cargo bench -p rsllm-benches --bench vocabulary -- FILE…` prints, for each GGUF, the number of tokens and how long its
//! header, its tokenizer and the first short text take, in milliseconds: the first time in this process, then the least and
//! the median of several. Without files it looks for `ggml-vocab-*.gguf` and models below `RSLLM_TEST_CACHE`.
#![expect(clippy::print_stdout, reason = "it prints a table")]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rsllm_gguf::Gguf;
use rsllm_tokenizer::{EncodeOptions, Tokenizer, TokenizerError};

fn main() -> Result<(), Box<dyn Error>> {
    let mut files: Vec<PathBuf> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"))
        .map(PathBuf::from)
        .collect();
    if files.is_empty() {
        files = cached_files();
    }
    println!(
        "{:<36} {:>7} {:^23} {:^23} {:^23}",
        "milliseconds: first, least, median", "tokens", "header", "tokenizer", "first text"
    );
    for file in &files {
        let Some(times) = measure(file)? else {
            continue;
        };
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        print!("{name:<36} {:>7}", times.n_tokens);
        for mut column in times.columns {
            let first = column[0];
            column.sort_by(f64::total_cmp);
            print!(" {first:>7.1} {:>7.1} {:>7.1}", column[0], column[RUNS / 2]);
        }
        println!();
    }
    Ok(())
}

/// Milliseconds of each run.
struct Times {
    n_tokens: usize,
    columns: [Vec<f64>; 3],
}

/// `None` for a vocabulary of a kind that is not supported.
fn measure(file: &Path) -> Result<Option<Times>, Box<dyn Error>> {
    let mut times = Times {
        n_tokens: 0,
        columns: Default::default(),
    };
    for _ in 0..RUNS {
        let started = Instant::now();
        let gguf = Gguf::open(file)?;
        let opened = Instant::now();
        let tokenizer = match Tokenizer::from_metadata(gguf.metadata()) {
            Err(TokenizerError::UnsupportedKind { .. }) => return Ok(None),
            tokenizer => tokenizer?,
        };
        let built = Instant::now();
        let options = EncodeOptions {
            add_special: true,
            parse_special: true,
        };
        std::hint::black_box(tokenizer.encode("What is the capital of France?", options));
        let encoded = Instant::now();
        times.n_tokens = tokenizer.vocab_size();
        let parts = [opened - started, built - opened, encoded - built];
        for (column, part) in times.columns.iter_mut().zip(parts) {
            column.push(part.as_secs_f64() * 1e3);
        }
    }
    Ok(Some(times))
}

fn cached_files() -> Vec<PathBuf> {
    let Some(cache) = std::env::var_os("RSLLM_TEST_CACHE") else {
        return Vec::new();
    };
    let cache = Path::new(&cache);
    let mut files: Vec<PathBuf> = ["llama-cpp-11434/models", "models"]
        .iter()
        .filter_map(|folder| cache.join(folder).read_dir().ok())
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "gguf")
        })
        .collect();
    files.sort();
    files
}

const RUNS: usize = 9;
