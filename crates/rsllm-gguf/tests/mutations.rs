//! A fuzzer that needs no nightly compiler: valid files, damaged where it hurts, must never panic.
//!
//! Seeded, so that a failure repeats; `RSLLM_MUTATIONS` sets the number of files.
#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use rsllm_gguf::{GgufWriter, Metadata};
use rsllm_quant::GgmlType;

mod common;
use common::exercise::exercise;

#[test]
fn damaged_files_never_panic() {
    let n_files: u64 = std::env::var("RSLLM_MUTATIONS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(20_000);
    let seeds = [seed_model(3), seed_model(1), seed_model(0)];
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for _ in 0..n_files {
        let mut file = random.pick(&seeds).clone();
        for _ in 0..=random.below(3) {
            damage(&mut file, &mut random);
        }
        exercise(&file);
    }
}

/// One change of the kind that broke readers in the field.
fn damage(file: &mut Vec<u8>, random: &mut Random) {
    if file.is_empty() {
        return;
    }
    let at = random.below(file.len());
    let length = file.len() as u64;
    match random.below(7) {
        0 => file[at] ^= 1 << random.below(8),
        1 => file[at] = random.next() as u8,
        2 => file.truncate(at),
        3 => {
            // A length, count, offset or dimension that lies.
            let lies = [
                0,
                1,
                length,
                length + 1,
                1 << 31,
                1 << 32,
                1 << 61,
                1 << 63,
                u64::MAX,
                u64::MAX - 31,
            ];
            overwrite(file, at, &random.pick(&lies).to_le_bytes());
        }
        4 => overwrite(file, at, &(random.below(50) as u32).to_le_bytes()),
        5 => {
            // A record or its neighbour twice.
            let end = (at + random.below(64)).min(file.len());
            let piece = file[at..end].to_vec();
            file.splice(at..at, piece);
        }
        _ => {
            let end = (at + random.below(16)).min(file.len());
            file.drain(at..end);
        }
    }
}

fn overwrite(file: &mut [u8], at: usize, bytes: &[u8]) {
    for (old, new) in file[at..].iter_mut().zip(bytes) {
        *old = *new;
    }
}

fn seed_model(n_tensors: usize) -> Vec<u8> {
    let mut metadata = Metadata::new();
    metadata.insert("general.architecture", "llama");
    metadata.insert("general.alignment", 8_u32);
    metadata.insert("llama.block_count", 2_u32);
    metadata.insert("llama.rope.freq_base", 10000.0_f32);
    metadata.insert("tokenizer.ggml.tokens", vec!["<s>", "a", "", "bc"]);
    metadata.insert("tokenizer.ggml.scores", vec![0.0_f32, -1.0]);
    metadata.insert("tokenizer.ggml.add_bos_token", true);
    metadata.insert("split.count", 1_u16);
    let mut writer = GgufWriter::new(metadata).unwrap();
    let shapes: [(GgmlType, &[u64]); 3] = [
        (GgmlType::F32, &[3]),
        (GgmlType::Q4_K, &[256, 2]),
        (GgmlType::Q8_0, &[32]),
    ];
    for (index, (ty, dims)) in shapes.into_iter().take(n_tensors).enumerate() {
        writer
            .add_tensor(&format!("blk.{index}.w"), ty, dims)
            .unwrap();
    }
    let mut file = Vec::new();
    writer
        .write_to(&mut file, |tensor, out| {
            out.write_all(&vec![0; tensor.n_bytes() as usize])
        })
        .unwrap();
    file
}

/// Xorshift: repeatable and good enough to pick places.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}
