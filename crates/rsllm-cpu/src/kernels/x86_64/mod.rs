//! Kernels for x86-64 processors.
#![cfg_attr(
    not(test),
    expect(
        clippy::wildcard_imports,
        reason = "intrinsics by the dozen, all with names of their own"
    )
)]

pub(crate) mod amx;
pub(crate) mod avx2;
pub(crate) mod avx512;
