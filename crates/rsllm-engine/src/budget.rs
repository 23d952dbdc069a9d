//! How much of a prompt a step computes while others generate. Measured, not assumed: a stream that generates should wait no
//! longer than about two and a half times as long for its next token as it does without the prompt.
//!
//! A pass over the weights costs much however few rows it has, so prompts are not cut into few rows. A pass of many rows is
//! cut between layers instead: each step evaluates all that generate, and then some layers of the pass, as many as fit the
//! time. Prompts so keep three fifths of the machine at nearly the speed they have alone. Only where one layer with the fewest
//! rows takes longer than it may do streams wait longer: prompts must get on.

/// Watches steps and derives the rows and layers of the next. Times are in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepBudget {
    /// Of a step without prompts; 0 while unknown.
    decode_ns: f64,
    /// Of a layer of the last pass, and the rows it had; 0 while unknown.
    layer_ns: f64,
    layer_rows: usize,
    rows: usize,
}

/// A step should not take longer while others generate.
const LONGEST_STEP_NS: f64 = 100e6;
/// Prompts may add this share of a step without them. Streams must not wait four times as long; this leaves room for what the
/// machine does beside.
const SHARE: f64 = 1.5;
/// Prompts may always add so much: nobody sees it.
const LEAST_SPARE_NS: f64 = 1e6;
/// Prompts get at least this share of the time of generating, however long that takes.
const LEAST_SHARE: f64 = 0.25;
/// Layers that a step should hold: with fewer, much of the time may be left over; with more, passes have few rows.
const LAYERS: f64 = 3.0;
/// Weight of the newest measurement.
const NEWEST: f64 = 0.3;
/// Before anything is known.
const FIRST_ROWS: usize = 32;
/// Fewer are not worth a pass over the weights.
const LEAST_ROWS: usize = 16;

impl StepBudget {
    /// Before any step.
    pub(crate) fn new() -> Self {
        Self {
            decode_ns: 0.0,
            layer_ns: 0.0,
            layer_rows: 0,
            rows: FIRST_ROWS,
        }
    }

    /// Rows of the next pass, at most `max_rows`.
    pub(crate) fn rows(&self, max_rows: usize) -> usize {
        self.rows.clamp(1, max_rows.max(1))
    }

    /// Layers that the next step computes of a pass of `n_rows` rows that lacks `n_left`.
    pub(crate) fn layers(&self, n_rows: usize, n_left: usize) -> usize {
        if self.layer_ns == 0.0 {
            return n_left.min(1);
        }
        // Fewer rows are not much cheaper, more are dearer.
        let growth = (n_rows as f64 / self.layer_rows as f64).max(1.0);
        let n_layers = self.spare_ns() / (self.layer_ns * growth);
        (n_layers as usize).clamp(1, n_left.max(1))
    }

    /// A step that only generates took `step_ns`.
    pub(crate) fn record_decode(&mut self, step_ns: u64) {
        self.decode_ns = average(self.decode_ns, step_ns as f64);
    }

    /// `n_layers` layers of a pass of `n_rows` rows, in a step in which others generate, took `part_ns`.
    pub(crate) fn record_pass(&mut self, n_rows: usize, n_layers: usize, part_ns: u64) {
        let layer_ns = (part_ns as f64 / n_layers.max(1) as f64).max(1.0);
        self.layer_ns = if n_rows == self.layer_rows {
            average(self.layer_ns, layer_ns)
        } else {
            layer_ns
        };
        self.layer_rows = n_rows;
        let rows = n_rows as f64 * self.spare_ns() / LAYERS / self.layer_ns;
        // A pass of few rows says little about one of many.
        let most = self.rows.max(n_rows).saturating_mul(2);
        let rows = (rows as usize).min(most).max(LEAST_ROWS);
        // One that did not use its rows says only that so many are not too many.
        if rows < self.rows || 2 * n_rows >= self.rows {
            self.rows = rows - rows % LEAST_ROWS;
        }
    }

    /// Time that prompts may add to a step.
    fn spare_ns(&self) -> f64 {
        let longest = (LONGEST_STEP_NS - self.decode_ns)
            .max(LEAST_SHARE * self.decode_ns)
            .max(LEAST_SPARE_NS);
        (SHARE * self.decode_ns).clamp(LEAST_SPARE_NS, longest)
    }
}

fn average(old: f64, new: f64) -> f64 {
    if old == 0.0 {
        new
    } else {
        old + NEWEST * (new - old)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const N_LAYERS: usize = 30;

    /// Rows of a pass and the length of a shared step in milliseconds once all has settled, on a machine where a layer takes
    /// `pass_ms`, and `row_ms` more for each row.
    fn settled(decode_ms: f64, pass_ms: f64, row_ms: f64) -> (usize, f64) {
        let mut budget = StepBudget::new();
        for _ in 0..5 {
            budget.record_decode((decode_ms * 1e6) as u64);
        }
        let mut longest = 0.0_f64;
        for round in 0..30 {
            let rows = budget.rows(512);
            let mut n_left = N_LAYERS;
            while n_left > 0 {
                let n_layers = budget.layers(rows, n_left);
                let part_ms = n_layers as f64 * (pass_ms + row_ms * rows as f64);
                budget.record_pass(rows, n_layers, (part_ms * 1e6) as u64);
                n_left -= n_layers;
                if round >= 10 {
                    longest = longest.max(decode_ms + part_ms);
                }
            }
        }
        (budget.rows(512), longest)
    }

    #[test]
    fn streams_wait_at_most_two_and_a_half_times_as_long() {
        // A small model, a usual one, and one whose steps are long already.
        for (decode_ms, pass_ms, row_ms, longest_ms, least_rows) in [
            (10.0, 1.0, 0.03, 25.0, 128),
            (2.0, 0.3, 0.01, 5.0, 48),
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
        budget.record_decode(10_000_000);
        assert_eq!((budget.rows(512), budget.rows(4)), (FIRST_ROWS, 4));
        assert_eq!(budget.layers(FIRST_ROWS, N_LAYERS), 1);
        budget.record_pass(FIRST_ROWS, 1, 1_000_000);
        // 15 ms are free.
        assert_eq!(budget.layers(FIRST_ROWS, N_LAYERS), 15);
        assert_eq!(budget.layers(FIRST_ROWS, 4), 4);
        assert_eq!(budget.layers(2 * FIRST_ROWS, N_LAYERS), 7);
        assert_eq!(budget.rows(512), 2 * FIRST_ROWS);
        // A short rest of a prompt is no reason for longer passes.
        budget.record_pass(5, 1, 200_000);
        assert_eq!(budget.rows(512), 2 * FIRST_ROWS);
    }
}
