//! Decode: dots of packed rows with 1 to 16 columns, from L2 and from memory.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rsllm_benches::{WEIGHT_TYPES, tables, values, weights};
use rsllm_cpu::bench_support::{Activations, dot_rows};
use rsllm_cpu::{Isa, Kernels};
use rsllm_quant::GgmlType;

/// Values in a row: a usual width of a small model.
const ROW_LEN: usize = 2048;

/// Bytes of weights that stay in L2, and bytes that fit no cache.
const PLACES: [(&str, usize); 2] = [("l2", 512 << 10), ("memory", 256 << 20)];

fn dots(criterion: &mut Criterion) {
    for ty in WEIGHT_TYPES {
        let mut group = criterion.benchmark_group(format!("dot/{}", ty.name().to_lowercase()));
        group
            .sample_size(10)
            .warm_up_time(Duration::from_millis(200))
            .measurement_time(Duration::from_secs(1));
        for (place, n_bytes) in PLACES {
            let rows = weights(ty, ROW_LEN, n_bytes);
            group.throughput(Throughput::Bytes(rows.len() as u64));
            for kernels in tables() {
                // The scalar code is no match for the memory.
                if kernels.isa == Isa::Scalar && place == "memory" {
                    continue;
                }
                for n_columns in [1, 4, 8, 16] {
                    let name = format!("{}/{place}/{n_columns}", kernels.isa);
                    group.bench_function(name, |bencher| {
                        run(bencher, kernels, ty, &rows, n_columns);
                    });
                }
            }
        }
        group.finish();
    }
}

fn run(
    bencher: &mut criterion::Bencher<'_>,
    kernels: &Kernels,
    ty: GgmlType,
    rows: &[u8],
    n_columns: usize,
) {
    let x = Activations::new(kernels, ty, values(n_columns * ROW_LEN), ROW_LEN);
    let row_bytes = ty.row_bytes(ROW_LEN).expect("a row is whole blocks");
    let mut out = vec![0.0; rows.len() / row_bytes * n_columns];
    bencher.iter(|| dot_rows(kernels, ty, black_box(rows), &x, black_box(&mut out)));
}

criterion_group!(benches, dots);
criterion_main!(benches);
