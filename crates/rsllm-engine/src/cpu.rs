//! What this machine's processor offers, for `doctor` and the like, and how fast it reads memory, which bounds decoding.

use std::path::Path;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use rsllm_cpu::{Isa, Kernels, cpu_features, prefetch_line};
use rsllm_gguf::Gguf;
use rsllm_quant::{ActivationFormat, GgmlType};

use crate::cores::usable_cores;
use crate::error::EngineError;
use crate::sampling::OptionError;

/// The processor, and what the CPU backend makes of it.
#[derive(Clone, Debug)]
pub struct CpuReport {
    /// Features that kernels may use, and whether they are there.
    pub features: Vec<(&'static str, bool)>,
    /// The instruction set chosen when nothing else is asked for.
    pub isa: Isa,
    /// Why that one.
    pub reason: String,
    /// All that can be chosen, slowest first.
    pub available_isas: Vec<Isa>,
    /// Threads of a model unless told otherwise.
    pub threads: usize,
    /// The kernels of each weight type.
    pub kernels: Vec<KernelReport>,
}

/// The kernels of one weight type.
#[derive(Clone, Debug)]
pub struct KernelReport {
    /// The type of the weights.
    pub ty: GgmlType,
    /// The dot product of decoding.
    pub decode: String,
    /// The blocked product of prefill.
    pub prefill: String,
}

/// Looks at this machine.
pub fn cpu_report() -> CpuReport {
    let isa = Isa::detect();
    let features = cpu_features();
    CpuReport {
        reason: reason_for(isa, &features),
        features,
        isa,
        available_isas: Isa::available(),
        threads: usable_cores(),
        kernels: Kernels::for_isa(isa)
            .map_or_else(Vec::new, |kernels| kernel_reports(isa, kernels)),
    }
}

/// Best of a few passes of several loops: bytes a second that `n_threads` threads together read from the tensors of a mapped file.
pub fn measure_read_bandwidth(path: &Path, n_threads: usize) -> Result<f64, EngineError> {
    if n_threads == 0 || n_threads > MAX_READERS {
        return Err(
            OptionError::new("threads", format!("from 1 to {MAX_READERS}"), n_threads).into(),
        );
    }
    let file = Gguf::open(path)?;
    let tensors: Vec<&[u8]> = file
        .tensors()
        .iter()
        .map(|tensor| file.tensor_bytes(tensor))
        .collect();
    Ok(read_bandwidth(&tensors, n_threads))
}

fn kernel_reports(isa: Isa, kernels: &Kernels) -> Vec<KernelReport> {
    let weight_types = GgmlType::ALL.iter().filter(|ty| {
        // Q8_1 and Q8_K are formats of activations.
        ty.can_dequantize() && !matches!(ty, GgmlType::Q8_1 | GgmlType::Q8_K)
    });
    weight_types
        .map(|&ty| {
            let activations = match ty.activation_format() {
                ActivationFormat::F32 => "f32",
                ActivationFormat::Int8 => "int8",
            };
            KernelReport {
                ty,
                decode: format!("{isa} {activations} dot"),
                prefill: format!("{isa} {} product", kernels.prefill_operands(ty)),
            }
        })
        .collect()
}

/// Names what the next better instruction set lacks.
fn reason_for(isa: Isa, features: &[(&'static str, bool)]) -> String {
    let Some(better) = Isa::ALL.into_iter().find(|&other| other > isa) else {
        return "the best there is".to_owned();
    };
    let has = |name: &str| features.iter().any(|&(feature, on)| feature == name && on);
    let missing: Vec<&str> = better
        .required_features()
        .iter()
        .copied()
        .filter(|name| !has(name))
        .collect();
    format!(
        "the best that can be used here; {better} needs {}",
        missing.join(", ")
    )
}

fn read_bandwidth(tensors: &[&[u8]], n_threads: usize) -> f64 {
    let parts: Vec<Vec<&[u8]>> = (0..n_threads)
        .map(|part| part_of(tensors, part, n_threads))
        .collect();
    let n_bytes: usize = parts.iter().flatten().map(|bytes| bytes.len()).sum();
    // The first pass brings the file into memory.
    let mut best = Duration::MAX;
    timed_pass(&parts, sum_streams::<1>);
    for _ in 0..PASSES {
        // Which is fastest differs between processors and page sizes.
        for reader in [sum_streams::<1>, sum_streams::<4>, sum_asking_ahead] {
            best = best.min(timed_pass(&parts, reader));
        }
    }
    if best.is_zero() {
        0.0
    } else {
        n_bytes as f64 / best.as_secs_f64()
    }
}

/// The `part`-th of `n_parts` equal pieces of every tensor.
fn part_of<'a>(tensors: &[&'a [u8]], part: usize, n_parts: usize) -> Vec<&'a [u8]> {
    let cut =
        |bytes: &'a [u8]| &bytes[bytes.len() * part / n_parts..bytes.len() * (part + 1) / n_parts];
    tensors.iter().copied().map(cut).collect()
}

/// From the common start to the last thread's end.
fn timed_pass(parts: &[Vec<&[u8]>], reader: fn(&[u8]) -> u64) -> Duration {
    let start_line = Barrier::new(parts.len());
    thread::scope(|scope| {
        let readers: Vec<_> = parts
            .iter()
            .map(|part| {
                scope.spawn(|| {
                    start_line.wait();
                    let start = Instant::now();
                    let sum = part
                        .iter()
                        .map(|bytes| reader(bytes))
                        .fold(0, u64::wrapping_add);
                    // The sum must look needed, or the reads are optimised away.
                    std::hint::black_box(sum);
                    (start, Instant::now())
                })
            })
            .collect();
        let times: Vec<(Instant, Instant)> = readers
            .into_iter()
            .map(|reader| reader.join().expect("reading slices does not panic"))
            .collect();
        let first = times.iter().map(|time| time.0).min();
        let last = times.iter().map(|time| time.1).max();
        first
            .zip(last)
            .map_or(Duration::ZERO, |(first, last)| last - first)
    })
}

/// Several streams at once: one core may keep more reads under way when the prefetcher sees several.
fn sum_streams<const STREAMS: usize>(bytes: &[u8]) -> u64 {
    let stream = bytes.len() / STREAMS / LINE * LINE;
    let mut sums = [0_u64; STREAMS];
    for offset in (0..stream).step_by(LINE) {
        for (i, sum) in sums.iter_mut().enumerate() {
            let start = i * stream + offset;
            *sum = sum.wrapping_add(sum_words(&bytes[start..start + LINE]));
        }
    }
    let tail = sum_bytes(&bytes[STREAMS * stream..]);
    sums.into_iter().fold(tail, u64::wrapping_add)
}

/// One stream, asked for well before it is read.
fn sum_asking_ahead(bytes: &[u8]) -> u64 {
    let lines = bytes.chunks_exact(LINE);
    let tail = sum_bytes(lines.remainder());
    let sum_line = |(i, line): (usize, &[u8])| {
        prefetch_line(&bytes[bytes.len().min(i * LINE + AHEAD)..]);
        sum_words(line)
    };
    lines
        .enumerate()
        .map(sum_line)
        .fold(tail, u64::wrapping_add)
}

fn sum_words(line: &[u8]) -> u64 {
    let words = line.as_chunks::<8>().0.iter();
    words
        .map(|word| u64::from_le_bytes(*word))
        .fold(0, u64::wrapping_add)
}

fn sum_bytes(bytes: &[u8]) -> u64 {
    bytes.iter().map(|&byte| u64::from(byte)).sum()
}

/// Bytes of a cache line.
const LINE: usize = 64;
/// How far ahead lines are asked for.
const AHEAD: usize = 4096;
const PASSES: usize = 5;
const MAX_READERS: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_is_complete() {
        let report = cpu_report();
        assert!(report.available_isas.contains(&report.isa));
        assert_eq!(report.kernels.len(), 13);
        assert!(report.threads >= 1 && !report.reason.is_empty());
    }

    #[test]
    fn every_byte_is_read_once() {
        for n in [0, 1, 63, 255, 256, 257, 5000] {
            let bytes = vec![1_u8; n];
            // Each word of ones is 0x0101…01; the tail counts bytes.
            let expected = |in_words: usize| {
                (in_words as u64 / 8)
                    .wrapping_mul(0x0101_0101_0101_0101)
                    .wrapping_add((n - in_words) as u64)
            };
            assert_eq!(sum_streams::<1>(&bytes), expected(n / LINE * LINE));
            assert_eq!(sum_streams::<4>(&bytes), expected(n / 4 / LINE * LINE * 4));
            assert_eq!(sum_asking_ahead(&bytes), expected(n / LINE * LINE));
        }
        let tensor: Vec<u8> = (0..=255).collect();
        for n_parts in 1..7 {
            let parts: Vec<u8> = (0..n_parts)
                .flat_map(|part| part_of(&[&tensor], part, n_parts).concat())
                .collect();
            assert_eq!(parts, tensor);
        }
    }

    #[test]
    fn some_bandwidth_is_measured() {
        assert!(read_bandwidth(&[&vec![7; 100_000]], 2) > 0.0);
    }
}
