//! AVX-512 kernels with VNNI dots.

mod elementwise;

use crate::isa::Isa;
use crate::kernels::{Kernels, x86_64::avx2};

pub(crate) const AVX512: Kernels = Kernels {
    isa: Isa::Avx512,
    elementwise: elementwise::ELEMENTWISE,
    ..avx2::AVX2
};
