//! AVX-512 with the tile unit (AMX-BF16) for the prefill product. All else is the AVX-512 table's.

mod ahead;
mod attend;
mod gate;
mod product;
mod unpack;

use crate::isa::Isa;
use crate::kernels::{Kernels, Tiles, x86_64::avx512};

pub(crate) const AMX: Kernels = Kernels {
    isa: Isa::Amx,
    tiles: Some(&TILES),
    ..avx512::AVX512
};

static TILES: Tiles = Tiles {
    unpack: unpack::of_type,
    configure: product::configure,
    release: product::release,
    pack: product::pack,
    prefetch: unpack::prefetch,
    multiply: product::multiply,
    clear: product::clear,
    step: product::step,
    finish: product::finish,
    scatter: product::scatter,
    scatter_add: product::scatter_add,
    silu_gate: gate::silu,
    gelu_gate: gate::gelu_tanh,
    multiply_parts: product::multiply_parts,
    queries: attend::queries,
    pairs: attend::pairs,
    keys: attend::keys,
    values: attend::values,
    softmax: attend::softmax,
};
