//! Prefill: the inner product of the matrix product, the unpackers that feed it, and quantising activations.

use std::hint::black_box;
use std::time::Duration;

use bytemuck::Zeroable;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rsllm_benches::{WEIGHT_TYPES, tables, values, weights};
use rsllm_cpu::bench_support::{
    attend, attend_tiles, gemm, gemm_columns, gemm_integers, quantize_activations, unpack,
    unpack_integers, unpack_tiles,
};
use rsllm_quant::{ActivationBlock, GgmlType};

fn products(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("gemm");
    group.measurement_time(Duration::from_secs(1));
    // A panel of rows as the backend cuts them, and one that does not divide into tiles.
    for (n_rows, k) in [(48, 256), (37, 256), (48, 64)] {
        let a = values(n_rows * k);
        for kernels in tables() {
            let columns = gemm_columns(kernels);
            let (b, mut c) = (values(k * columns), vec![0.0; n_rows * columns]);
            group.throughput(Throughput::Elements((2 * n_rows * k * columns) as u64));
            group.bench_function(format!("{}/{n_rows}x{k}", kernels.isa), |bencher| {
                bencher.iter(|| gemm(kernels, black_box(&a), black_box(&b), black_box(&mut c)));
            });
        }
    }
}

/// The same on integers, and the short ways of weights to them.
fn integers(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("gemm_integers");
    group.measurement_time(Duration::from_secs(1));
    for (n_rows, k) in [(48, 128), (37, 128), (48, 64)] {
        for kernels in tables() {
            let Some(mut product) = gemm_integers(kernels, n_rows, k) else {
                continue;
            };
            group.throughput(Throughput::Elements(product() as u64));
            group.bench_function(format!("{}/{n_rows}x{k}", kernels.isa), |bencher| {
                bencher.iter(&mut product);
            });
        }
    }
    group.finish();
    let mut group = criterion.benchmark_group("unpack_integers");
    group.throughput(Throughput::Elements(256));
    for kernels in tables() {
        for ty in WEIGHT_TYPES {
            let row = weights(ty, 256, 1);
            let row = &row[..ty.row_bytes(256).expect("whole blocks")];
            if unpack_integers(kernels, ty, row) {
                let name = format!("{}/{}", kernels.isa, ty.name().to_lowercase());
                group.bench_function(name, |bencher| {
                    bencher.iter(|| unpack_integers(kernels, ty, black_box(row)));
                });
            }
        }
    }
}

fn unpackers(criterion: &mut Criterion) {
    const ROW_LEN: usize = 2048;
    for ty in WEIGHT_TYPES {
        let mut group = criterion.benchmark_group(format!("unpack/{}", ty.name().to_lowercase()));
        group
            .sample_size(20)
            .measurement_time(Duration::from_millis(500))
            .warm_up_time(Duration::from_millis(200));
        let rows = weights(ty, ROW_LEN, 1);
        let mut out = vec![0.0; rows.len() / ty.block_bytes() * ty.block_len()];
        group.throughput(Throughput::Bytes(rows.len() as u64));
        for kernels in tables() {
            group.bench_function(kernels.isa.name(), |bencher| {
                bencher.iter(|| unpack(kernels, ty, black_box(&rows), black_box(&mut out)));
            });
        }
        group.finish();
    }
}

/// A panel of 32 rows, as the product on tiles unpacks it.
fn tile_unpackers(criterion: &mut Criterion) {
    const ROW_LEN: usize = 768;
    let mut group = criterion.benchmark_group("unpack_tiles");
    group
        .sample_size(20)
        .measurement_time(Duration::from_millis(500))
        .warm_up_time(Duration::from_millis(200));
    for kernels in tables() {
        for ty in WEIGHT_TYPES {
            let row_bytes = ty.row_bytes(ROW_LEN).expect("whole blocks");
            let panel = weights(ty, ROW_LEN, 32 * row_bytes);
            // Lines of 64 bytes, as the backend's own memory is.
            let mut tiles = vec![0; 2 * ROW_LEN * 16 + 32];
            let tiles = {
                let skipped = tiles.as_ptr().align_offset(64);
                &mut tiles[skipped..]
            };
            if !unpack_tiles(kernels, ty, &panel[..row_bytes], tiles) {
                continue;
            }
            group.throughput(Throughput::Elements(
                (panel.len() / row_bytes * ROW_LEN) as u64,
            ));
            group.bench_function(
                format!("{}/{}", kernels.isa, ty.name().to_lowercase()),
                |bencher| {
                    bencher.iter(|| {
                        for (r, row) in panel.chunks_exact(row_bytes).enumerate() {
                            unpack_tiles(kernels, ty, black_box(row), &mut tiles[r % 16 * 32..]);
                        }
                    });
                },
            );
        }
    }
}

/// Decode attention over rows that lie in cache, and the products of prefill attention on tiles.
fn attention(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("attend");
    group
        .sample_size(20)
        .measurement_time(Duration::from_millis(500))
        .warm_up_time(Duration::from_millis(200));
    let (n, head_dim, heads) = (64, 64, 3);
    let (q, mut scores) = (values(heads * head_dim), vec![0.0; heads * n]);
    let mut acc = vec![0.0; heads * head_dim];
    for kernels in tables() {
        for ty in [GgmlType::F32, GgmlType::F16, GgmlType::BF16] {
            let rows = &weights(ty, head_dim, 1).repeat(n / 4);
            if !attend(kernels, ty, rows, &q, heads, &mut scores, &mut acc) {
                continue;
            }
            group.throughput(Throughput::Bytes(2 * rows.len() as u64));
            group.bench_function(
                format!("{}/{}", kernels.isa, ty.name().to_lowercase()),
                |bencher| {
                    bencher.iter(|| {
                        attend(
                            kernels,
                            ty,
                            black_box(rows),
                            &q,
                            heads,
                            &mut scores,
                            &mut acc,
                        )
                    });
                },
            );
        }
        if let Some(mut product) = attend_tiles(kernels, n, head_dim) {
            group.throughput(Throughput::Elements(product() as u64));
            group.bench_function(format!("{}/tiles", kernels.isa), |bencher| {
                bencher.iter(&mut product);
            });
        }
    }
}

fn quantizers(criterion: &mut Criterion) {
    let src = values(4096);
    let mut dst = vec![ActivationBlock::zeroed(); ActivationBlock::count(src.len())];
    let mut group = criterion.benchmark_group("quantize_activations");
    group.throughput(Throughput::Bytes(size_of_val(&src[..]) as u64));
    for kernels in tables() {
        group.bench_function(kernels.isa.name(), |bencher| {
            bencher.iter(|| quantize_activations(kernels, black_box(&src), black_box(&mut dst)));
        });
    }
}

criterion_group!(
    benches,
    products,
    integers,
    unpackers,
    tile_unpackers,
    attention,
    quantizers
);
criterion_main!(benches);
