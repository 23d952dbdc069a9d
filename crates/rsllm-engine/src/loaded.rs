//! A real model behind [`Forward`].

use std::ops::Range;
use std::sync::atomic::AtomicBool;

use rsllm_model::{Model, ModelError, PagePools, PageSlot, Step, Wanted};

use crate::forward::{Forward, Limits};

/// A model and the sizes it was made for.
pub(crate) struct LoadedModel {
    pub(crate) model: Model,
    pub(crate) limits: Limits,
}

impl Forward for LoadedModel {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn window(&self) -> Option<usize> {
        self.model.window()
    }

    fn pools(&mut self) -> &mut PagePools {
        self.model.pools()
    }

    fn copy_slot(&mut self, from: PageSlot, to: PageSlot) -> Result<(), ModelError> {
        self.model.copy_slot(from, to)
    }

    fn export_slot(&mut self, dst: &mut Vec<u8>, slot: PageSlot) -> Result<(), ModelError> {
        self.model.export_slot(dst, slot)
    }

    fn import_slot<'a>(&mut self, slot: PageSlot, src: &'a [u8]) -> Result<&'a [u8], ModelError> {
        self.model.import_slot(slot, src)
    }

    fn forward(
        &mut self,
        step: &Step<'_>,
        wanted: Wanted<'_>,
        abort: &AtomicBool,
    ) -> Result<(), ModelError> {
        self.model.forward(step, wanted, abort)
    }

    fn forward_part(
        &mut self,
        step: &Step<'_>,
        layers: Range<usize>,
        wanted: Wanted<'_>,
        abort: &AtomicBool,
    ) -> Result<(), ModelError> {
        self.model.forward_part(step, layers, wanted, abort)
    }
}
