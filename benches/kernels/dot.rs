//! Decode: dots of packed rows with 1 to 16 columns, from L2 and from memory.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rsllm_benches::{WEIGHT_TYPES, tables, values, weights};
use rsllm_cpu::bench_support::{Activations, dot_rows};
use rsllm_cpu::{Isa, Kernels};
use rsllm_quant::GgmlType;

/// Values in a row: a usual width, and that of a small model, whose rows end within a unit of 256 values.
const ROW_LENS: [usize; 2] = [2048, 576];

/// Bytes of weights that stay in L2, and bytes that fit no cache.
const PLACES: [(&str, usize); 3] = [("l1", 20 << 10), ("l2", 512 << 10), ("memory", 256 << 20)];

fn dots(criterion: &mut Criterion) {
    for ty in WEIGHT_TYPES {
        let mut group = criterion.benchmark_group(format!("dot/{}", ty.name().to_lowercase()));
        group
            .sample_size(10)
            .warm_up_time(Duration::from_millis(200))
            .measurement_time(Duration::from_secs(1));
        for (place, n_bytes) in PLACES {
            for row_len in ROW_LENS
                .into_iter()
                .filter(|&len| ty.row_bytes(len).is_some())
            {
                let rows = weights(ty, row_len, n_bytes);
                group.throughput(Throughput::Bytes(rows.len() as u64));
                for kernels in tables() {
                    // The scalar code is no match for the memory.
                    if kernels.isa == Isa::Scalar && place == "memory" {
                        continue;
                    }
                    for n_columns in [1, 4, 8, 16] {
                        let name = format!("{}/{place}/{row_len}x{n_columns}", kernels.isa);
                        group.bench_function(name, |bencher| {
                            run(bencher, kernels, ty, &rows, row_len, n_columns);
                        });
                    }
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
    row_len: usize,
    n_columns: usize,
) {
    let x = Activations::new(kernels, ty, values(n_columns * row_len), row_len);
    let row_bytes = ty.row_bytes(row_len).expect("a row is whole blocks");
    let mut out = vec![0.0; rows.len() / row_bytes * n_columns];
    bencher.iter(|| dot_rows(kernels, ty, black_box(rows), &x, black_box(&mut out)));
}

criterion_group!(benches, dots);
criterion_main!(benches);
