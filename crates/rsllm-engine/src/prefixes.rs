//! Saving and restoring of prefixes, on the engine thread. A prefix is saved as whole pages: what else lies in a partly filled
//! page may be somebody else's text.

use std::sync::mpsc::Sender;

use rsllm_model::{ModelError, NO_PAGE, PAGE_LEN, PageSlot, PageTable};

use crate::TokenId;
use crate::error::EngineError;
use crate::forward::{Forward, Phase};
use crate::pages::{Pages, first_visible};
use crate::saved::{Groups, SavedFor, SavedPrefix, SavedPrefixError};
use crate::worker::{Worker, catch};

/// Turn the KV of a text into bytes; what is not known of it is computed.
pub(crate) struct SaveJob {
    /// Whole pages.
    pub(crate) ids: Vec<TokenId>,
    pub(crate) target: SavedFor,
    pub(crate) answer: Sender<Result<Vec<u8>, EngineError>>,
}

/// Take bytes into the prefix cache.
pub(crate) struct RestoreJob {
    pub(crate) bytes: Vec<u8>,
    pub(crate) target: SavedFor,
    pub(crate) answer: Sender<Result<usize, EngineError>>,
}

impl<M: Forward> Worker<M> {
    /// The bytes of a prefix.
    pub(crate) fn save(
        &mut self,
        job: &SaveJob,
        pages: &mut PageTable,
    ) -> Result<Vec<u8>, EngineError> {
        let ids = &job.ids;
        let (window, max_rows) = (self.model.window(), self.model.limits().max_rows);
        let mut n_known = self.cache.adopt(&mut self.model, None, ids, pages)?;
        while n_known < ids.len() {
            let end = (n_known + max_rows).min(ids.len());
            self.evaluate_rows(Phase::Prefill, n_known, &ids[n_known..end], pages)?;
            n_known = end;
        }
        pages.drop_passed(self.model.pools(), first_visible(ids.len(), window));
        let mut contents = Vec::new();
        for &slot in pages.slots() {
            self.model.export_slot(&mut contents, slot)?;
        }
        let pools = self.model.pools();
        self.cache.insert(pools, None, ids, pages.slots(), true);
        let saved = SavedPrefix {
            ids: ids.clone(),
            groups: pages.slots().iter().map(|&slot| Groups::of(slot)).collect(),
            contents: &contents,
        };
        Ok(saved.write(job.target))
    }

    /// Takes a saved prefix into the cache, between two steps, and answers with its tokens.
    pub(crate) fn restore(&mut self, job: &RestoreJob) {
        let mut slots = Vec::new();
        let restored = catch(|| -> Result<usize, EngineError> {
            let saved = SavedPrefix::read(&job.bytes, job.target)?;
            let mut rest = saved.contents;
            self.check_groups(&saved.groups)?;
            for &groups in &saved.groups {
                let slot = self.slot_of(groups)?;
                slots.push(slot);
                rest = self.model.import_slot(slot, rest)?;
            }
            if !rest.is_empty() {
                return Err(ModelError::PageBytes {
                    expected: 0,
                    found: rest.len(),
                }
                .into());
            }
            let pools = self.model.pools();
            self.cache.insert(pools, None, &saved.ids, &slots, true);
            Ok(saved.ids.len())
        });
        for slot in slots {
            self.model.pools().release(slot);
        }
        self.tell_metrics();
        // Whoever is gone wants no answer.
        let _ = job.answer.send(restored);
    }

    /// What a sequence reads must be there.
    fn check_groups(&mut self, groups: &[Groups]) -> Result<(), SavedPrefixError> {
        let pools = self.model.pools();
        let has = Groups {
            full: pools.full.n_pages() > 0,
            window: pools.window.n_pages() > 0,
        };
        let is_sound = groups.last() == Some(&has)
            && groups
                .iter()
                .all(|groups| groups.full == has.full && (has.window || !groups.window));
        if is_sound {
            Ok(())
        } else {
            Err(SavedPrefixError::Field {
                field: "the groups of its pages",
                found: groups.len() as u64,
            })
        }
    }

    /// A slot with pages of these groups. A page of a group that the model lacks is not handed out.
    fn slot_of(&mut self, groups: Groups) -> Result<PageSlot, EngineError> {
        let pools = self.model.pools();
        self.cache.make_room(pools, Pages::both(1));
        let mut slot = pools.allocate()?;
        if !groups.window && slot.window != NO_PAGE {
            pools.window.release(slot.window);
            slot.window = NO_PAGE;
        }
        if !groups.full && slot.full != NO_PAGE {
            pools.full.release(slot.full);
            slot.full = NO_PAGE;
        }
        Ok(slot)
    }
}

/// The tokens of `ids` that are saved.
pub(crate) fn whole_pages(ids: &[TokenId]) -> &[TokenId] {
    &ids[..ids.len() / PAGE_LEN * PAGE_LEN]
}
