//! AVX2, FMA and F16C kernels.

mod elementwise;

use crate::isa::Isa;
use crate::kernels::{Kernels, scalar};

pub(crate) const AVX2: Kernels = Kernels {
    isa: Isa::Avx2,
    elementwise: elementwise::ELEMENTWISE,
    ..scalar::SCALAR
};
