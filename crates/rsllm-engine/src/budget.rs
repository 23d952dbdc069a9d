//! How much of a prompt a step computes while others generate. Measured, not assumed: a stream that generates should wait about
//! twice as long for its next token as it does without the prompt, and never four times as long.
//!
//! A pass over the weights costs much however few rows it has, so prompts are not cut into few rows. A pass of many rows is
//! cut between layers instead: each step evaluates all that generate, and then some layers of the pass, as many as fit the
//! time. Prompts so keep half of the machine at nearly the speed they have alone. Only where one layer with the fewest
//! rows takes longer than it may do streams wait longer: prompts must get on.
//!
//! What becomes dearer is believed at once, what becomes cheaper bit by bit: one step that is too long is seen, one that could
//! have been longer is not.

/// Watches steps and derives the rows and layers of the next. Times are in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepBudget {
    /// Of a step of so many sequences that generate, without prompts beside it; 0 while unknown.
    quiet_ns: [f64; MOST_ROWS + 1],
    /// Of the newest steps, and the sequences they had. Beside prompts they take longer, because passes take their weights out
    /// of the caches.
    decode_ns: f64,
    decode_rows: usize,
    /// Of a layer of the last pass, and what that was; 0 while unknown.
    layer_ns: f64,
    layer: PassShape,
    rows: usize,
    /// More prompts wait than sequences generate.
    is_crowded: bool,
}

/// What the time of a layer of a pass depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PassShape {
    pub(crate) n_rows: usize,
    /// Position behind the last row of the longest sequence.
    pub(crate) depth: usize,
}

/// A step should not take longer while others generate.
const LONGEST_STEP_NS: f64 = 100e6;
/// What a step with prompts may take, in steps without. Streams must not wait four times as long; this leaves room for what
/// the machine does beside.
const LONGEST: f64 = 1.9;
/// The same where more wait for their prompts than for their next token.
const LONGEST_CROWDED: f64 = 3.3;
/// Prompts may always add so much: nobody sees it.
const LEAST_SPARE_NS: f64 = 1e6;
/// Prompts get at least this share of the time of generating, however long that takes.
const LEAST_SHARE: f64 = 0.25;
/// The same of usual steps, where generating beside prompts has become slow.
const USUAL_SHARE: f64 = 0.5;
/// Positions of context at which attention may take as long as all else, so that a layer of a deeper pass is not
/// underestimated before it is measured. Large models reach that much later.
const DEEP: f64 = 512.0;
/// Layers that take as long as the logits of a few rows, roughly.
const OUTPUT_LAYERS: usize = 4;
/// Layers that a step should hold: with fewer, much of the time may be left over; with more, passes have few rows.
const LAYERS: f64 = 3.0;
/// Weight of the newest measurement.
const NEWEST: f64 = 0.3;
/// Sequences up to which steps are told apart.
const MOST_ROWS: usize = 32;
/// Before anything is known.
const FIRST_ROWS: usize = 128;
/// Fewer are not worth a pass over the weights.
const LEAST_ROWS: usize = 16;

impl StepBudget {
    /// Before any step.
    pub(crate) fn new() -> Self {
        Self {
            quiet_ns: [0.0; MOST_ROWS + 1],
            decode_ns: 0.0,
            decode_rows: 0,
            layer_ns: 0.0,
            layer: PassShape::default(),
            rows: FIRST_ROWS,
            is_crowded: false,
        }
    }

    /// So many generate in the next step, and so many have a prompt to compute.
    pub(crate) fn weigh(&mut self, n_generating: usize, n_prompts: usize) {
        self.is_crowded = n_prompts > n_generating;
    }

    /// Rows of the next pass, at most `max_rows`.
    pub(crate) fn rows(&self, max_rows: usize) -> usize {
        self.rows.clamp(1, max_rows.max(1))
    }

    /// Layers that the next step computes of a pass that lacks `n_left`. Where logits are wanted behind the last
    /// (`has_outputs`), they count as some layers more, and if these do not fit, that layer waits with them.
    pub(crate) fn layers(&self, pass: PassShape, n_left: usize, has_outputs: bool) -> usize {
        if self.layer_ns == 0.0 {
            return n_left.min(1);
        }
        // Fewer rows or a shorter context are not much cheaper, more are dearer.
        let rows = (pass.n_rows as f64 / self.layer.n_rows as f64).max(1.0);
        let depth = (pass.depth as f64 + DEEP) / (self.layer.depth as f64 + DEEP);
        let layer_ns = self.layer_ns * rows * depth.max(1.0);
        let n_layers = (self.spare_ns() / layer_ns) as usize;
        let most = if has_outputs && n_layers < n_left + OUTPUT_LAYERS {
            n_left - 1
        } else {
            n_left
        };
        n_layers.clamp(1, most.max(1))
    }

    /// A step of `n_rows` sequences that generate took `step_ns`, beside a pass or not.
    pub(crate) fn record_decode(&mut self, n_rows: usize, step_ns: u64, is_beside: bool) {
        let step_ns = step_ns as f64;
        if n_rows != self.decode_rows {
            (self.decode_rows, self.decode_ns) = (n_rows, 0.0);
        }
        if is_beside {
            self.decode_ns = raised(self.decode_ns, step_ns);
        } else {
            let quiet_ns = &mut self.quiet_ns[n_rows.min(MOST_ROWS)];
            *quiet_ns = average(*quiet_ns, step_ns);
            self.decode_ns = *quiet_ns;
        }
    }

    /// `n_layers` layers of a pass, in a step in which others generate, took `part_ns`.
    pub(crate) fn record_pass(&mut self, pass: PassShape, n_layers: usize, part_ns: u64) {
        let n_rows = pass.n_rows;
        let layer_ns = (part_ns as f64 / n_layers.max(1) as f64).max(1.0);
        self.layer_ns = if pass == self.layer {
            raised(self.layer_ns, layer_ns)
        } else {
            layer_ns
        };
        self.layer = pass;
        let rows = n_rows as f64 * self.spare_ns() / LAYERS / self.layer_ns;
        // Many rows cost less than their number times what one of few cost, so this errs on the safe side; but a pass of few says
        // little about one of many.
        let most = self.rows.max(n_rows).saturating_mul(4);
        let rows = (rows as usize).min(most).max(LEAST_ROWS);
        // One that did not use its rows says nothing about those that do.
        if 2 * n_rows >= self.rows {
            self.rows = rows - rows % LEAST_ROWS;
        }
    }

    /// Time that prompts may add to a step.
    fn spare_ns(&self) -> f64 {
        // So many that have never been without prompts know no other time than that beside them.
        let quiet_ns = match self.quiet_ns[self.decode_rows.min(MOST_ROWS)] {
            0.0 => self.decode_ns,
            quiet_ns => quiet_ns,
        };
        let most = (LONGEST_STEP_NS - quiet_ns).max(LEAST_SHARE * quiet_ns);
        let longest = if self.is_crowded {
            LONGEST_CROWDED
        } else {
            LONGEST
        };
        (longest * quiet_ns - self.decode_ns)
            .max(USUAL_SHARE * quiet_ns)
            .min(most)
            .max(LEAST_SPARE_NS)
    }
}

fn average(old: f64, new: f64) -> f64 {
    if old == 0.0 {
        new
    } else {
        old + NEWEST * (new - old)
    }
}

/// [`average`], or the newest if it is larger.
fn raised(old: f64, new: f64) -> f64 {
    average(old, new).max(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    const N_LAYERS: usize = 30;

    fn pass(n_rows: usize) -> PassShape {
        PassShape { n_rows, depth: 0 }
    }

    /// Rows of a pass and the length of a shared step in milliseconds once all has settled, on a machine where a layer takes
    /// `pass_ms`, and `row_ms` more for each row.
    fn settled(decode_ms: f64, pass_ms: f64, row_ms: f64) -> (usize, f64) {
        let mut budget = StepBudget::new();
        for _ in 0..5 {
            budget.record_decode(4, (decode_ms * 1e6) as u64, false);
        }
        let mut longest = 0.0_f64;
        for round in 0..30 {
            let rows = budget.rows(512);
            let mut n_left = N_LAYERS;
            while n_left > 0 {
                let n_layers = budget.layers(pass(rows), n_left, false);
                let part_ms = n_layers as f64 * (pass_ms + row_ms * rows as f64);
                budget.record_pass(pass(rows), n_layers, (part_ms * 1e6) as u64);
                n_left -= n_layers;
                if round >= 10 {
                    longest = longest.max(decode_ms + part_ms);
                }
            }
        }
        (budget.rows(512), longest)
    }

    #[test]
    fn streams_wait_about_twice_as_long() {
        // A small model, a usual one, and one whose steps are long already.
        for (decode_ms, pass_ms, row_ms, longest_ms, least_rows) in [
            (10.0, 1.0, 0.03, 19.0, 64),
            (2.0, 0.3, 0.01, 3.8, 16),
            (60.0, 5.0, 0.1, 100.0, 64),
            (400.0, 20.0, 0.5, 500.0, 16),
        ] {
            let (rows, step_ms) = settled(decode_ms, pass_ms, row_ms);
            assert!(
                step_ms <= longest_ms && step_ms > 0.6 * longest_ms && rows >= least_rows,
                "{decode_ms} {pass_ms} {row_ms}: {rows} rows, {step_ms} ms"
            );
        }
        // A machine that is too slow for any still gets on, a layer a step.
        assert_eq!(settled(10.0, 40.0, 1.0), (LEAST_ROWS, 66.0));
    }

    #[test]
    fn the_first_pass_feels_its_way() {
        let mut budget = StepBudget::new();
        budget.record_decode(4, 10_000_000, false);
        assert_eq!((budget.rows(512), budget.rows(4)), (FIRST_ROWS, 4));
        assert_eq!(budget.layers(pass(FIRST_ROWS), N_LAYERS, false), 1);
        budget.record_pass(pass(FIRST_ROWS), 1, 1_000_000);
        // 9 ms are free.
        assert_eq!(budget.layers(pass(FIRST_ROWS), N_LAYERS, false), 9);
        assert_eq!(budget.layers(pass(FIRST_ROWS), 4, false), 4);
        assert_eq!(budget.layers(pass(2 * FIRST_ROWS), N_LAYERS, false), 4);
        // A deeper pass is dearer by no more than attention is.
        let deep = PassShape {
            depth: 512,
            ..pass(FIRST_ROWS)
        };
        assert_eq!(budget.layers(deep, N_LAYERS, false), 4);
        let rows = budget.rows(512);
        assert!((2 * FIRST_ROWS..4 * FIRST_ROWS).contains(&rows), "{rows}");
        // A short rest of a prompt is no reason for longer passes.
        budget.record_pass(pass(5), 1, 200_000);
        assert_eq!(budget.rows(512), rows);
    }

    #[test]
    fn many_prompts_outweigh_few_that_generate() {
        let mut budget = StepBudget::new();
        budget.record_decode(4, 10_000_000, false);
        budget.record_pass(pass(FIRST_ROWS), 1, 1_000_000);
        budget.weigh(4, 5);
        assert_eq!(budget.layers(pass(FIRST_ROWS), N_LAYERS, false), 23);
        budget.weigh(4, 4);
        assert_eq!(budget.layers(pass(FIRST_ROWS), N_LAYERS, false), 9);
    }

    #[test]
    fn the_output_waits_where_it_does_not_fit() {
        let mut budget = StepBudget::new();
        assert_eq!(budget.layers(pass(FIRST_ROWS), 1, true), 1);
        budget.record_decode(1, 10_000_000, false);
        budget.record_pass(pass(FIRST_ROWS), 1, 1_000_000);
        // Nine fit.
        assert_eq!(budget.layers(pass(FIRST_ROWS), 5, true), 5);
        assert_eq!(budget.layers(pass(FIRST_ROWS), 6, true), 5);
        assert_eq!(budget.layers(pass(FIRST_ROWS), 1, true), 1);
    }

    #[test]
    fn what_becomes_dearer_leaves_less_at_once() {
        let mut budget = StepBudget::new();
        budget.record_decode(2, 10_000_000, false);
        budget.record_pass(pass(FIRST_ROWS), 1, 1_000_000);
        budget.record_decode(2, 14_000_000, true);
        // 19 ms less 14, which is half of the time without prompts.
        assert_eq!(budget.layers(pass(FIRST_ROWS), N_LAYERS, false), 5);
        budget.record_pass(pass(FIRST_ROWS), 5, 10_000_000);
        assert_eq!(budget.layers(pass(FIRST_ROWS), N_LAYERS, false), 2);
        // Prompts keep half of the time of generating however slow that becomes beside them.
        budget.record_decode(2, 40_000_000, true);
        assert_eq!(budget.layers(pass(FIRST_ROWS), N_LAYERS, false), 2);
        // Three sequences are another matter, and never seen without prompts so far.
        budget.record_decode(3, 40_000_000, true);
        assert_eq!(budget.layers(pass(FIRST_ROWS), N_LAYERS, false), 18);
    }
}
