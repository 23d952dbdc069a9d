//! Ids of strings, for comparison with other engines.
//!
//! `tokenize VOCABULARY [--add-special] [--parse-special] < STRINGS`: standard input holds strings, each as its length in
//! bytes (4 bytes, little endian) and its bytes; standard output gets one line of ids a string. With `--pieces` or
//! `--end-of-generation` instead, the bytes of all tokens or the ids that end a generation.

use std::io::{BufWriter, Read, Write};
use std::path::Path;
use std::time::Duration;

use rsllm_gguf::Gguf;
use rsllm_tokenizer::{EncodeOptions, Tokenizer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let path = arguments
        .iter()
        .find(|argument| !argument.starts_with("--"))
        .ok_or("which vocabulary?")?;
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let options = EncodeOptions {
        add_special: has("--add-special"),
        parse_special: has("--parse-special"),
    };

    let gguf = Gguf::open(Path::new(path))?;
    let started = cpu_time();
    let tokenizer = Tokenizer::from_metadata(gguf.metadata())?;
    let construction = cpu_time().saturating_sub(started);
    if has("--end-of-generation") {
        writeln!(std::io::stdout(), "{:?}", tokenizer.end_of_generation())?;
        return Ok(());
    }
    if has("--pieces") {
        let mut out = BufWriter::new(std::io::stdout().lock());
        for id in 0..tokenizer.vocab_size() as u32 {
            writeln!(out, "{}", tokenizer.token_bytes(id).escape_ascii())?;
        }
        return Ok(());
    }

    let mut input = Vec::new();
    std::io::stdin().read_to_end(&mut input)?;
    let mut texts = Vec::new();
    let mut rest = &input[..];
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let length = u32::from_le_bytes(*length) as usize;
        let (text, after) = after
            .split_at_checked(length)
            .ok_or("the last string is cut short")?;
        texts.push(std::str::from_utf8(text)?);
        rest = after;
    }
    let started = cpu_time();
    let ids: Vec<_> = texts
        .iter()
        .map(|text| tokenizer.encode(text, options))
        .collect();
    let encoding = cpu_time().saturating_sub(started);

    let mut out = BufWriter::new(std::io::stdout().lock());
    for ids in ids {
        let line: Vec<String> = ids.iter().map(u32::to_string).collect();
        writeln!(out, "{}", line.join(" "))?;
    }
    let megabytes = texts.iter().map(|text| text.len()).sum::<usize>() as f64 / 1e6;
    let rate = megabytes / encoding.as_secs_f64().max(1e-3);
    writeln!(
        std::io::stderr(),
        "construction {construction:?}, encoding {rate:.1} MB/s"
    )?;
    Ok(())
}

/// Processor time of this thread where the system tells it (Linux), else time: comparisons run on busy machines.
fn cpu_time() -> Duration {
    let on_cpu = std::fs::read_to_string("/proc/thread-self/schedstat")
        .ok()
        .and_then(|line| {
            line.split(' ')
                .next()
                .and_then(|nanoseconds| nanoseconds.parse().ok())
        });
    on_cpu.map_or_else(
        || {
            std::time::SystemTime::UNIX_EPOCH
                .elapsed()
                .unwrap_or_default()
        },
        Duration::from_nanos,
    )
}
