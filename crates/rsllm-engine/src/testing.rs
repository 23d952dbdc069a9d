//! Models for this crate's tests: a scripted one, which says what it is told, and a tiny random one in a real file, which the
//! tests in `tests/` use as well.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rsllm_gguf::{Gguf, GgufWriter};
use rsllm_model::{ModelError, NO_PAGE, PAGE_LEN, PagePools, PageSlot, Step, StepInput, Wanted};
use rsllm_tokenizer::Tokenizer;

use crate::TokenId;
use crate::draft_model::DraftModel;
use crate::engine::Engine;
use crate::forward::{Forward, Limits, Phase};
use crate::load::{EngineInfo, start_engine};
use crate::pages::first_visible;

#[path = "../tests/common/tiny_model.rs"]
mod tiny_model;
pub(crate) use tiny_model::*;

/// What a scripted model does.
#[derive(Clone, Default)]
pub(crate) struct Script {
    /// The tokens after any prompt; the last is repeated for ever.
    pub(crate) tokens: Vec<TokenId>,
    /// How long a step takes; it can be aborted at any time.
    pub(crate) step_time: Duration,
    /// In which step (0 is the first of the engine) something goes wrong.
    pub(crate) fault: Option<(usize, Fault)>,
    pub(crate) context: usize,
    /// Tokens that the file bans.
    pub(crate) suppressed: Vec<i32>,
    /// Tokens that half of the layers see.
    pub(crate) window: Option<usize>,
    pub(crate) answers: Answers,
    /// Steps with this token fail.
    pub(crate) poison: Option<TokenId>,
    /// Sequences that run side by side; 0 for one.
    pub(crate) max_sequences: usize,
    /// KV pages; 0 for those of one context.
    pub(crate) pages: usize,
    /// Tokens of a step; 0 for 4.
    pub(crate) max_rows: usize,
}

/// Where tokens come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Answers {
    /// From [`Script::tokens`].
    #[default]
    Script,
    /// Each depends on all tokens before it.
    Text,
    /// None of them ever.
    Never,
    /// The same, but for about one in four another one.
    TextWithErrors,
    /// And on which of these were prefilled and which decoded.
    TextAndPhases,
}

#[derive(Clone, Copy)]
pub(crate) enum Fault {
    Panic,
    NanLogit,
}

/// Steps that a scripted model was asked for: phase, first index, tokens.
pub(crate) type Steps = Arc<Mutex<Vec<(Phase, usize, usize)>>>;

pub(crate) struct ScriptedModel {
    script: Script,
    limits: Limits,
    pools: PagePools,
    /// What each page of each group holds: tokens, and how they were evaluated.
    full: Vec<[Written; PAGE_LEN]>,
    window: Vec<[Written; PAGE_LEN]>,
    n_steps: usize,
    /// Positions of the step that rests, and the layers done.
    resting: (Vec<u32>, usize),
    steps: Steps,
}

/// A position of a page: `None` if nothing was ever written.
type Written = Option<(TokenId, Phase)>;

impl ScriptedModel {
    pub(crate) fn new(script: Script, limits: Limits, n_pages: usize, steps: Steps) -> Self {
        let n_window = if script.window.is_some() { n_pages } else { 0 };
        Self {
            script,
            limits,
            pools: PagePools::new(n_pages, n_window),
            full: vec![[None; PAGE_LEN]; n_pages],
            window: vec![[None; PAGE_LEN]; n_window],
            n_steps: 0,
            resting: (Vec::new(), 0),
            steps,
        }
    }

    pub(crate) fn write(&mut self, pages: &[PageSlot], index: usize, id: TokenId, phase: Phase) {
        let slot = pages[index / PAGE_LEN];
        self.full[slot.full as usize][index % PAGE_LEN] = Some((id, phase));
        if self.script.window.is_some() {
            self.window[slot.window as usize][index % PAGE_LEN] = Some((id, phase));
        }
    }

    /// What the token at `index` reads at `position`.
    pub(crate) fn read(
        &self,
        pages: &[PageSlot],
        position: usize,
        index: usize,
    ) -> (TokenId, Phase) {
        let slot = pages[position / PAGE_LEN];
        let of_full = self.full[slot.full as usize][position % PAGE_LEN];
        let of_full = of_full.expect("every earlier position was written");
        let sees = |window| position >= first_visible(index, Some(window));
        if self.script.window.is_some_and(sees) {
            let of_window = self.window[slot.window as usize][position % PAGE_LEN];
            assert_eq!(of_window, Some(of_full), "both groups hold the same tokens");
        }
        of_full
    }

    /// The token that follows the one at `index`.
    fn next_token(&self, pages: &[PageSlot], index: usize) -> TokenId {
        let seen: Vec<_> = (0..=index)
            .map(|position| self.read(pages, position, index))
            .collect();
        if self.script.answers != Answers::Script {
            let counts_phases = self.script.answers == Answers::TextAndPhases;
            let hash = seen.iter().fold(7_u64, |hash, (id, phase)| {
                let phase = u64::from(counts_phases && *phase == Phase::Decode);
                (hash ^ (u64::from(*id) << 1 | phase)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            });
            let is_wrong = match self.script.answers {
                Answers::Never => true,
                Answers::TextWithErrors => hash >> 62 == 0,
                _ => false,
            };
            return byte_token((hash >> 32) as u8 % 200 + u8::from(is_wrong));
        }
        let n_decoded = seen.iter().rev();
        let n_decoded = n_decoded
            .take_while(|(_, phase)| *phase == Phase::Decode)
            .count();
        self.script.tokens[n_decoded.min(self.script.tokens.len() - 1)]
    }

    fn check(&self, step: &Step<'_>) {
        assert!(step.n_rows() <= self.limits.max_rows);
        assert!(step.outputs.len() <= self.limits.max_outputs);
        assert!(step.sequences.len() <= self.limits.max_sequences);
        assert!(step.outputs.is_sorted() && self.pools.check_integrity());
        for sequence in step.sequences {
            let end = sequence.first_index + sequence.n_rows;
            assert!(end <= self.limits.context && end <= sequence.pages.len() * PAGE_LEN);
            assert!(
                sequence.first_row >= step.n_prefill
                    || sequence.first_row + sequence.n_rows <= step.n_prefill
            );
            for slot in &sequence.pages[sequence.first_index / PAGE_LEN..] {
                assert_eq!(
                    self.pools.full.n_owners(slot.full),
                    1,
                    "what is written belongs to one sequence"
                );
            }
        }
    }
}

impl Forward for ScriptedModel {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn window(&self) -> Option<usize> {
        self.script.window
    }

    fn pools(&mut self) -> &mut PagePools {
        &mut self.pools
    }

    fn copy_slot(&mut self, from: PageSlot, to: PageSlot) -> Result<(), ModelError> {
        self.full[to.full as usize] = self.full[from.full as usize];
        if self.script.window.is_some() {
            self.window[to.window as usize] = self.window[from.window as usize];
        }
        Ok(())
    }

    fn export_slot(&mut self, dst: &mut Vec<u8>, slot: PageSlot) -> Result<(), ModelError> {
        for (pages, page) in [(&self.full, slot.full), (&self.window, slot.window)] {
            if page != NO_PAGE {
                for written in pages[page as usize] {
                    let (id, phase) = written.expect("only what was written is saved");
                    dst.extend((id << 1 | TokenId::from(phase == Phase::Decode)).to_le_bytes());
                }
            }
        }
        Ok(())
    }

    fn import_slot<'a>(
        &mut self,
        slot: PageSlot,
        mut src: &'a [u8],
    ) -> Result<&'a [u8], ModelError> {
        for (pages, page) in [(&mut self.full, slot.full), (&mut self.window, slot.window)] {
            if page == NO_PAGE {
                continue;
            }
            let expected = 4 * PAGE_LEN;
            let (bytes, rest) = src
                .split_at_checked(expected)
                .ok_or(ModelError::PageBytes {
                    expected,
                    found: src.len(),
                })?;
            for (written, bytes) in pages[page as usize].iter_mut().zip(bytes.chunks_exact(4)) {
                let word = TokenId::from_le_bytes(bytes.try_into().unwrap());
                let phase = if word & 1 == 1 {
                    Phase::Decode
                } else {
                    Phase::Prefill
                };
                *written = Some((word >> 1, phase));
            }
            src = rest;
        }
        Ok(src)
    }

    fn forward(
        &mut self,
        step: &Step<'_>,
        wanted: Wanted<'_>,
        abort: &AtomicBool,
    ) -> Result<(), ModelError> {
        self.check(step);
        self.note(step);
        sleep(self.script.step_time, abort)?;
        self.evaluate(step, wanted);
        Ok(())
    }

    fn forward_part(
        &mut self,
        step: &Step<'_>,
        layers: Range<usize>,
        wanted: Wanted<'_>,
        abort: &AtomicBool,
    ) -> Result<(), ModelError> {
        self.check(step);
        let described = (step.positions.to_vec(), layers.end);
        let resting = std::mem::replace(&mut self.resting, described);
        assert!(
            layers.start == 0 || resting == (step.positions.to_vec(), layers.start),
            "layers come in order"
        );
        if layers.start == 0 {
            self.note(step);
        }
        let n_layers = (self.limits.n_layers / layers.len()) as u32;
        sleep(self.script.step_time / n_layers, abort)?;
        if layers.end == self.limits.n_layers {
            self.evaluate(step, wanted);
        }
        Ok(())
    }
}

impl ScriptedModel {
    fn note(&self, step: &Step<'_>) {
        self.steps
            .lock()
            .unwrap()
            .extend(step.sequences.iter().map(|sequence| {
                (
                    phase_of(step, sequence.first_row),
                    sequence.first_index,
                    sequence.n_rows,
                )
            }));
    }

    fn evaluate(&mut self, step: &Step<'_>, wanted: Wanted<'_>) {
        self.n_steps += 1;
        let StepInput::Ids(ids) = step.input else {
            panic!("the engine has only tokens")
        };
        let fault = self
            .script
            .fault
            .filter(|fault| fault.0 + 1 == self.n_steps)
            .map(|fault| fault.1);
        assert!(!matches!(fault, Some(Fault::Panic)), "scripted panic");
        assert!(
            !self
                .script
                .poison
                .is_some_and(|poison| ids.contains(&poison)),
            "scripted poison"
        );
        for sequence in step.sequences {
            for i in 0..sequence.n_rows {
                let row = sequence.first_row + i;
                let index = sequence.first_index + i;
                self.write(sequence.pages, index, ids[row], phase_of(step, row));
            }
        }
        let output_rows = step.outputs.iter().map(|&row| row as usize);
        match wanted {
            Wanted::Embeddings(rows) => {
                for (embedding, row) in rows.chunks_exact_mut(2).zip(output_rows) {
                    embedding.copy_from_slice(&[ids[row] as f32, step.positions[row] as f32]);
                }
            }
            Wanted::Logits(rows) => {
                let rows = rows.chunks_exact_mut(self.limits.vocab_size);
                for (logits, row) in rows.zip(output_rows) {
                    let sequence = (step.sequences.iter())
                        .find(|s| (s.first_row..s.first_row + s.n_rows).contains(&row))
                        .unwrap();
                    let index = sequence.first_index + row - sequence.first_row;
                    logits.fill(0.0);
                    // Lets tests see which token a row belongs to.
                    logits[0] = ids[row] as f32 / 1000.0;
                    logits[self.next_token(sequence.pages, index) as usize] = 10.0;
                    if matches!(fault, Some(Fault::NanLogit)) {
                        logits[5] = f32::NAN;
                    }
                }
            }
        }
    }
}

/// Takes its time, and looks whether it is still wanted.
fn sleep(time: Duration, abort: &AtomicBool) -> Result<(), ModelError> {
    let deadline = Instant::now() + time;
    loop {
        if abort.load(Ordering::Relaxed) {
            return Err(ModelError::Aborted);
        }
        if Instant::now() >= deadline {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(1));
    }
}

fn phase_of(step: &Step<'_>, row: usize) -> Phase {
    if row < step.n_prefill {
        Phase::Prefill
    } else {
        Phase::Decode
    }
}

/// An engine whose model follows `script`, and the steps it will be asked for.
pub(crate) fn scripted_engine(script: Script) -> (Engine, Steps) {
    let (model, steps) = scripted_model(script);
    (start_scripted(model, None), steps)
}

/// As [`scripted_engine`], with a draft model that follows `draft` and is said to take a hundredth of the time. Its steps come
/// last.
pub(crate) fn scripted_pair(script: Script, draft: Script) -> (Engine, Steps, Steps) {
    let (model, steps) = scripted_model(script);
    let (draft, draft_steps) = scripted_model(draft);
    let draft = DraftModel::new(draft, model.limits().vocab_size, 0.01);
    (start_scripted(model, Some(draft)), steps, draft_steps)
}

fn scripted_model(script: Script) -> (ScriptedModel, Steps) {
    let or = |n, default| if n == 0 { default } else { n };
    let context = or(script.context, 64);
    let n_pages = or(script.pages, context.div_ceil(PAGE_LEN));
    let limits = Limits {
        n_layers: 3,
        vocab_size: Tokenizer::from_metadata(&vocabulary())
            .unwrap()
            .vocab_size(),
        embed_dim: 2,
        context,
        max_sequences: script.max_sequences.max(1),
        max_rows: or(script.max_rows, 4),
        max_outputs: script.max_sequences.max(3),
    };
    let steps = Steps::default();
    let model = ScriptedModel::new(script, limits, n_pages, Arc::clone(&steps));
    (model, steps)
}

fn start_scripted(model: ScriptedModel, draft: Option<DraftModel<ScriptedModel>>) -> Engine {
    let mut metadata = vocabulary();
    let suppressed = model.script.suppressed.clone();
    metadata.insert("tokenizer.ggml.suppress_tokens", suppressed);
    let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
    let mut bytes = Vec::new();
    GgufWriter::new(metadata)
        .unwrap()
        .write_to(&mut bytes, |_, _| Ok(()))
        .unwrap();
    let file = Gguf::from_bytes(bytes, "scripted").unwrap();
    let limits = model.limits();
    let info = EngineInfo {
        architecture: "scripted".to_owned(),
        name: None,
        context: limits.context,
        context_reason: "scripted".to_owned(),
        training_context: limits.context,
        threads: 1,
        isa: rsllm_cpu::Isa::Scalar,
        kv_type: "f16",
        draft: None,
        max_sequences: limits.max_sequences,
        weight_bytes: 0,
        kv_bytes: 0,
        scratch_bytes: 0,
        load_ns: 0,
        vocab_size: limits.vocab_size,
        embed_dim: 2,
        n_layers: 3,
        file_bytes: 0,
        decode_bytes_per_token: 0,
        parameters: 0,
        warnings: Vec::new(),
    };
    start_engine(model, draft, tokenizer, file, info).unwrap()
}
