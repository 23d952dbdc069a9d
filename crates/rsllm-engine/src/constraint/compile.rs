//! From a specification to a constraint: the vocabulary's part is made once, the rest a request.

use std::sync::Arc;

use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{Logger, Matcher, ParserFactory, regex_to_lark};
use rsllm_tokenizer::Tokenizer;

use super::error::ConstraintError;
use super::{Constraint, ConstraintSpec, gbnf, regex, schema, vocabulary};
use crate::TokenId;

/// Compiles constraints for one vocabulary. Cheap to clone; any number of threads may use it.
#[derive(Clone)]
pub struct Grammars {
    factory: Arc<ParserFactory>,
    /// Sorted.
    end_tokens: Arc<[TokenId]>,
}

impl Grammars {
    /// Makes the tries of the vocabulary of `tokenizer`. Takes some hundred milliseconds for a large one.
    pub fn new(tokenizer: &Tokenizer) -> Result<Self, ConstraintError> {
        let environment = vocabulary::environment(tokenizer)?;
        let mut factory = ParserFactory::new(
            &environment,
            InferenceCapabilities::default(),
            &SlicedBiasComputer::json_slices(),
        )
        .map_err(|error| ConstraintError::Vocabulary {
            reason: error.to_string(),
        })?;
        factory.quiet();
        Ok(Self {
            factory: Arc::new(factory),
            end_tokens: tokenizer.end_of_generation().into(),
        })
    }

    /// The state at the beginning of a text.
    pub fn compile(&self, spec: &ConstraintSpec) -> Result<Constraint, ConstraintError> {
        // Whoever calls may have a small stack, and the library recurses over what it compiles.
        std::thread::scope(|scope| {
            std::thread::Builder::new()
                .name("rsllm-constraint".to_owned())
                .stack_size(STACK_BYTES)
                .spawn_scoped(scope, || self.compile_here(spec))
                .map_err(|error| ConstraintError::Thread {
                    reason: error.to_string(),
                })?
                .join()
                .unwrap_or_else(|_| {
                    Err(ConstraintError::Refused {
                        kind: spec.option_name(),
                        reason: "the compiler panicked".to_owned(),
                    })
                })
        })
    }

    fn compile_here(&self, spec: &ConstraintSpec) -> Result<Constraint, ConstraintError> {
        let kind = spec.option_name();
        let mut warnings = Vec::new();
        let grammar = match spec {
            ConstraintSpec::Json => {
                let prepared = schema::prepare(r#"{"type": "object"}"#)?;
                TopLevelGrammar::from_json_schema(prepared.schema)
            }
            ConstraintSpec::JsonSchema(text) => {
                let prepared = schema::prepare(text)?;
                warnings = prepared.warnings;
                TopLevelGrammar::from_json_schema(prepared.schema)
            }
            ConstraintSpec::Regex(pattern) => lark_of_regex(pattern)?,
            ConstraintSpec::Lark(text) => {
                check_lark(text, MAX_LARK_BYTES)?;
                TopLevelGrammar::from_lark(text.clone())
            }
            ConstraintSpec::Gbnf(text) => {
                let lark = gbnf::to_lark(text)?;
                check_lark(&lark, MAX_TRANSLATED_BYTES)?;
                TopLevelGrammar::from_lark(lark)
            }
        };
        let parser = self
            .factory
            .create_parser_from_init_ext(
                GrammarInit::Serialized(grammar),
                Logger::new(0, 0),
                InferenceCapabilities::default(),
                limits(spec),
            )
            .map_err(|error| ConstraintError::refused(kind, &error))?;
        let mut matcher = Matcher::new(Ok(parser));
        warnings.extend(matcher.grammar_warnings());
        let mut constraint = Constraint {
            matcher,
            mask: None,
            end_tokens: self.end_tokens.to_vec(),
            kind,
            warnings,
        };
        // The first mask finds what compiling does not: a start without any token, work beyond the limits.
        constraint.allowed().map_err(|error| match error {
            ConstraintError::TooComplex { kind, reason } if reason == "NoExtensionBias" => {
                ConstraintError::Unsatisfiable {
                    kind,
                    reason: "no token of the vocabulary can begin the text".to_owned(),
                }
            }
            error => error,
        })?;
        Ok(constraint)
    }
}

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammars").finish_non_exhaustive()
    }
}

fn lark_of_regex(pattern: &str) -> Result<TopLevelGrammar, ConstraintError> {
    let pattern = regex::whole_text(pattern, "regex")?;
    Ok(TopLevelGrammar::from_lark(if pattern.is_empty() {
        "start: \"\"\n".to_owned()
    } else {
        // A group, because an expression that begins with `/` or `*` would read as a comment.
        format!("start: /(?:{})/\n", regex_to_lark(&pattern, ""))
    }))
}

/// Sizes at which the library's recursion over a grammar stays within [`STACK_BYTES`].
fn check_lark(text: &str, max_bytes: usize) -> Result<(), ConstraintError> {
    for (what, found, limit) in [
        ("bytes", text.len(), max_bytes),
        ("lines", text.lines().count(), MAX_LARK_LINES),
    ] {
        if found > limit {
            return Err(ConstraintError::TooLarge {
                kind: "grammar",
                what,
                found: found as u64,
                limit: limit as u64,
            });
        }
    }
    Ok(())
}

/// What a constraint may cost. The library's defaults but where a comment says otherwise.
fn limits(spec: &ConstraintSpec) -> ParserLimits {
    let is_grammar = matches!(spec, ConstraintSpec::Lark(_) | ConstraintSpec::Gbnf(_));
    ParserLimits {
        // The work for a row grows with its square, and a grammar may have a row a character where a schema has one a word.
        max_items_in_row: if is_grammar { 1000 } else { 2000 },
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 200_000,
        // Single characters need more than words do.
        step_max_items: if is_grammar { 200_000 } else { 50_000 },
        // 64 MiB at the library's estimate of 1 to 2 KiB each, where its default means half a gigabyte.
        max_lexer_states: 50_000,
        max_grammar_size: 500_000,
        precompute_large_lexemes: true,
        // States and backtraces are not for callers.
        verbose_errors: false,
    }
}

/// Bytes of a grammar in Lark. The library's work grows with the square of a rule's alternatives.
const MAX_LARK_BYTES: usize = 64 << 10;
/// Bytes of a grammar translated from GBNF, where the number of nodes is limited, too.
const MAX_TRANSLATED_BYTES: usize = 512 << 10;
/// Lines of a Lark grammar: at most one rule each, and the library recurses from rule to rule.
const MAX_LARK_LINES: usize = 3000;
/// The stack of a compilation; only what is used takes memory.
const STACK_BYTES: usize = 64 << 20;
