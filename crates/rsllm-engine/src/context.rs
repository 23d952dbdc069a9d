//! How long the context becomes, as a pure function of the request, the model and the memory. Whatever is chosen, the reason is
//! part of the answer.

use crate::error::EngineError;
use crate::sampling::{MAX_COUNT, OptionError};

/// What the choice depends on.
#[derive(Clone, Copy)]
pub(crate) struct ContextQuery<'a> {
    /// Tokens asked for; `None` leaves the choice to the engine.
    pub(crate) requested: Option<usize>,
    /// The context the model was trained for.
    pub(crate) training_context: usize,
    /// KV memory of a context of so many tokens, all layers together. Not proportional: windowed layers need no more for a
    /// longer one. Never less for more.
    pub(crate) kv_bytes: &'a dyn Fn(usize) -> u64,
    /// Free memory; `None` if unknown.
    pub(crate) free_bytes: Option<u64>,
    /// Weights that will take part of the free memory. Mapped ones give way when they must, at a price in speed.
    pub(crate) weight_bytes: u64,
    /// Contexts that are not asked for are multiples of this.
    pub(crate) page_len: usize,
}

/// The context and why it is so long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContextChoice {
    pub(crate) context: usize,
    pub(crate) reason: String,
}

/// The smallest context that is chosen unasked while memory allows: shorter ones cut off ordinary prompts.
const SMALLEST_USEFUL: usize = 4096;

impl ContextQuery<'_> {
    /// The request if there is one; else the smaller of the model's limit and what fits in half of the memory that the weights
    /// leave free, but at least 4096 tokens unless these cannot fit. What cannot fit at all is an error before anything is
    /// allocated.
    pub(crate) fn choose(&self) -> Result<ContextChoice, EngineError> {
        match self.requested {
            Some(context) => self.choose_requested(context),
            None => self.choose_automatic(),
        }
    }

    fn choose_requested(&self, context: usize) -> Result<ContextChoice, EngineError> {
        if context == 0 || context > MAX_COUNT {
            return Err(
                OptionError::new("context", format!("from 1 to {MAX_COUNT}"), context).into(),
            );
        }
        if self
            .free_bytes
            .is_some_and(|free| self.bytes_of(context) > free)
        {
            return Err(self.does_not_fit(context));
        }
        let reason = if context > self.training_context {
            format!(
                "as requested; beyond the {} tokens the model was trained for",
                self.training_context
            )
        } else {
            "as requested".to_owned()
        };
        Ok(ContextChoice { context, reason })
    }

    fn choose_automatic(&self) -> Result<ContextChoice, EngineError> {
        let limit = self.training_context.clamp(1, MAX_COUNT);
        let Some(free) = self.free_bytes else {
            let context = limit.min(SMALLEST_USEFUL);
            return Ok(ContextChoice {
                context,
                reason: "free memory is unknown".to_owned(),
            });
        };
        let beside_weights = free.saturating_sub(self.weight_bytes);
        if self.bytes_of(limit) <= beside_weights / 2 {
            return Ok(ContextChoice {
                context: limit,
                reason: "the model's limit".to_owned(),
            });
        }
        let useful = limit.min(SMALLEST_USEFUL);
        let half = self.tokens_in(beside_weights / 2);
        if half >= useful {
            let reason = format!(
                "what fits in half of {} of free memory",
                mebibytes(beside_weights)
            );
            return Ok(ContextChoice {
                context: half,
                reason,
            });
        }
        if self.bytes_of(useful) <= free {
            let reason = format!(
                "the least that is useful; takes more than half of {} of free memory",
                mebibytes(beside_weights)
            );
            return Ok(ContextChoice {
                context: useful,
                reason,
            });
        }
        match self.tokens_in(free) {
            0 => Err(self.does_not_fit(useful)),
            context => {
                let reason = format!("all that fits in {} of free memory", mebibytes(free));
                Ok(ContextChoice { context, reason })
            }
        }
    }

    fn bytes_of(&self, context: usize) -> u64 {
        (self.kv_bytes)(context)
    }

    /// Whole pages only.
    fn tokens_in(&self, bytes: u64) -> usize {
        let (mut fits, mut too_many) = (0, MAX_COUNT / self.page_len + 1);
        while too_many - fits > 1 {
            let middle = fits + (too_many - fits) / 2;
            if self.bytes_of(middle * self.page_len) <= bytes {
                fits = middle;
            } else {
                too_many = middle;
            }
        }
        fits * self.page_len
    }

    fn does_not_fit(&self, context: usize) -> EngineError {
        EngineError::ContextMemory {
            context,
            kv_bytes: self.bytes_of(context),
            free_bytes: self.free_bytes.unwrap_or(0),
            fits: self.tokens_in(self.free_bytes.unwrap_or(0)),
        }
    }
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUERY: ContextQuery<'_> = ContextQuery {
        requested: None,
        training_context: 32_768,
        // Pages are whole.
        kv_bytes: &|context| context.next_multiple_of(64) as u64 * 1000,
        free_bytes: Some(1_000_000_000),
        weight_bytes: 0,
        page_len: 64,
    };

    fn chosen(query: ContextQuery<'_>) -> (usize, String) {
        let choice = query.choose().unwrap();
        (choice.context, choice.reason)
    }

    #[test]
    fn the_model_limits_when_memory_is_plenty() {
        assert_eq!(chosen(QUERY), (32_768, "the model's limit".into()));
        let small = ContextQuery {
            training_context: 500,
            ..QUERY
        };
        assert_eq!(chosen(small).0, 500);
    }

    #[test]
    fn half_of_the_memory_limits_otherwise() {
        let query = ContextQuery {
            free_bytes: Some(20_000_000),
            ..QUERY
        };
        let (context, reason) = chosen(query);
        assert_eq!((context, context % 64), (9984, 0));
        assert_eq!(reason, "what fits in half of 19 MiB of free memory");
        let beside = ContextQuery {
            weight_bytes: 8_000_000,
            ..query
        };
        assert_eq!(chosen(beside).0, 5952);
    }

    #[test]
    fn never_below_4096_unless_it_cannot_fit() {
        let query = ContextQuery {
            free_bytes: Some(5_000_000),
            ..QUERY
        };
        assert_eq!(chosen(query).0, 4096);
        // Mapped weights may be larger than memory.
        let crowded = ContextQuery {
            weight_bytes: 9_000_000,
            ..query
        };
        assert_eq!(chosen(crowded).0, 4096);
        let tight = ContextQuery {
            free_bytes: Some(4_000_000),
            ..QUERY
        };
        let (context, reason) = chosen(tight);
        assert_eq!(
            (context, reason.as_str()),
            (3968, "all that fits in 3 MiB of free memory")
        );
        let none = ContextQuery {
            free_bytes: Some(1000),
            ..QUERY
        };
        assert!(matches!(
            none.choose(),
            Err(EngineError::ContextMemory {
                context: 4096,
                fits: 0,
                ..
            })
        ));
    }

    #[test]
    fn requests_are_kept_or_refused_but_never_changed() {
        let asked = |context| ContextQuery {
            requested: Some(context),
            ..QUERY
        };
        assert_eq!(chosen(asked(100)), (100, "as requested".into()));
        assert!(chosen(asked(40_000)).1.contains("beyond the 32768 tokens"));
        assert!(matches!(
            asked(2_000_000).choose(),
            Err(EngineError::ContextMemory {
                context: 2_000_000,
                ..
            })
        ));
        for bad in [0, MAX_COUNT + 1] {
            assert!(matches!(asked(bad).choose(), Err(EngineError::Option(_))));
        }
    }

    #[test]
    fn windowed_layers_count_until_they_have_their_windows() {
        // Half of the layers keep 2048 tokens.
        let query = ContextQuery {
            kv_bytes: &|context| (context + context.min(2048)) as u64 * 500,
            free_bytes: Some(20_000_000),
            ..QUERY
        };
        // (10 MB − 2048 · 500) / 500, in whole pages.
        assert_eq!(chosen(query).0, 17_920);
        let short = ContextQuery {
            free_bytes: Some(1_000_000),
            ..query
        };
        assert_eq!(chosen(short).0, 960);
    }

    #[test]
    fn unknown_memory_is_said() {
        let query = ContextQuery {
            free_bytes: None,
            ..QUERY
        };
        assert_eq!(chosen(query), (4096, "free memory is unknown".into()));
    }
}
