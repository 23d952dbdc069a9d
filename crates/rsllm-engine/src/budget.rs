//! How many rows of prompts a step may take while others generate. Measured, not assumed: the time that such rows added to the
//! last steps is held against the time they may add.

/// Watches steps and derives the rows of the next. Times are in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepBudget {
    /// Of a step without prompts; 0 while unknown.
    decode_ns: f64,
    rows: f64,
}

/// A step should not take longer while others generate.
const LONGEST_STEP_NS: f64 = 100e6;
/// Prompts may add this share of a step without them: a stream that generates slows down to two fifths at worst.
const SHARE: f64 = 1.5;
/// Prompts may always add so much: nobody sees it, and smaller parts are inefficient.
const LEAST_SPARE_NS: f64 = 8e6;
/// Prompts get at least this share of the time of generating, however long that takes.
const LEAST_SHARE: f64 = 0.25;
/// Weight of the newest measurement.
const NEWEST: f64 = 0.3;
/// Before anything is known.
const FIRST_ROWS: f64 = 16.0;
/// Fewer are not worth a pass over the weights.
const LEAST_ROWS: f64 = 16.0;

impl StepBudget {
    /// Before any step.
    pub(crate) fn new() -> Self {
        Self {
            decode_ns: 0.0,
            rows: FIRST_ROWS,
        }
    }

    /// Rows of prompts for the next step, at most `max_rows`.
    pub(crate) fn rows(&self, max_rows: usize) -> usize {
        (self.rows as usize).clamp(1, max_rows.max(1))
    }

    /// What part of a step of `step_ns` with prompts went into generating.
    pub(crate) fn decode_part(&self, step_ns: u64) -> u64 {
        (self.decode_ns as u64).min(step_ns)
    }

    /// A step with `n_prefill` rows of prompts, and with generating sequences if `is_shared`, took `step_ns`.
    pub(crate) fn record(&mut self, n_prefill: usize, is_shared: bool, step_ns: u64) {
        let step_ns = step_ns as f64;
        if n_prefill == 0 {
            self.decode_ns = if self.decode_ns == 0.0 {
                step_ns
            } else {
                self.decode_ns + NEWEST * (step_ns - self.decode_ns)
            };
            return;
        }
        if !is_shared {
            return;
        }
        let added_ns = (step_ns - self.decode_ns).max(1.0);
        let factor = (self.spare_ns() / added_ns).clamp(0.5, 1.5);
        // A step that did not use its rows says only that so many are not too many.
        if factor < 1.0 || n_prefill as f64 >= 0.5 * self.rows {
            self.rows = (self.rows * factor).clamp(LEAST_ROWS, f64::from(u16::MAX));
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The length of a shared step, in milliseconds, once the rows have settled.
    fn settled(decode_ms: f64, row_ms: f64) -> (usize, f64) {
        let mut budget = StepBudget::new();
        let step_ms = |rows: usize| decode_ms + row_ms * rows as f64;
        for _ in 0..5 {
            budget.record(0, true, (decode_ms * 1e6) as u64);
        }
        for _ in 0..50 {
            let rows = budget.rows(512);
            budget.record(rows, true, (step_ms(rows) * 1e6) as u64);
        }
        (budget.rows(512), step_ms(budget.rows(512)))
    }

    #[test]
    fn prompts_add_no_more_than_they_may() {
        for (decode_ms, row_ms, expected_ms) in [
            (10.0, 1.0, 25.0),
            (2.0, 0.5, 10.0),
            (60.0, 2.0, 100.0),
            (400.0, 5.0, 500.0),
        ] {
            let (rows, step_ms) = settled(decode_ms, row_ms);
            assert!(
                (step_ms - expected_ms).abs() <= 0.1 * expected_ms,
                "{decode_ms} {row_ms}: {rows} rows, {step_ms} ms"
            );
        }
        // A machine that is too slow for any still gets on.
        assert_eq!(settled(10.0, 40.0).0, LEAST_ROWS as usize);
    }

    #[test]
    fn idle_rows_do_not_raise_the_budget_and_lone_prompts_do_not_count() {
        let mut budget = StepBudget::new();
        budget.record(0, true, 10_000_000);
        budget.record(1, true, 10_100_000);
        budget.record(512, false, 900_000_000);
        assert_eq!(budget.rows(512), FIRST_ROWS as usize);
        assert_eq!(budget.rows(4), 4);
        assert_eq!(budget.decode_part(25_000_000), 10_000_000);
        assert_eq!(budget.decode_part(5_000_000), 5_000_000);
    }
}
