//! What a compute backend is: the [`Backend`] trait, the parameter structs of its operations and the step inputs that
//! change with every token.
//!
//! The decoder in `rsllm-model` is written against this crate alone; `rsllm-cpu` (and a GPU crate later) implement it.
//! Operations are coarse (a whole matrix product, a whole attention), write their destination first, and are
//! fallible. Nothing here computes anything.
#![forbid(unsafe_code)]

mod backend;
mod bytes;
mod error;
mod params;
mod step;
pub mod testing;

pub use backend::{Backend, LowRank, Product};
pub use bytes::SharedBytes;
pub use error::BackendError;
pub use params::{
    Activation, AttentionParams, ExpertGating, GatedFfn, HeadProducts, KvLayout, KvType, MoeFfn,
    MoeRouteParams, Op, RopeParams, RopeStyle, RopeTable, RowSet, StepLimits, WeightSource,
};
pub use step::{NO_PAGE, PageGroup, PageId, PageSlot, Step, StepInput, StepSequence};
