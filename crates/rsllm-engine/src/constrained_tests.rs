//! Constraints, biases and suppressed tokens in generations of a scripted model.

use std::time::Duration;

use crate::constraint::ConstraintSpec;
use crate::engine::Engine;
use crate::error::{EngineError, ErrorClass};
use crate::generation::{FinishReason, GenerationStats};
use crate::options::GenerateOptions;
use crate::sampling::SamplingOptions;
use crate::testing::{BOS, EOS, Script, byte_token, piece_token, scripted_engine};

fn regex(pattern: &str) -> ConstraintSpec {
    ConstraintSpec::Regex(pattern.to_owned())
}

fn greedy(constraint: impl Into<Option<ConstraintSpec>>) -> GenerateOptions {
    GenerateOptions {
        sampling: SamplingOptions::greedy(),
        constraint: constraint.into(),
        max_tokens: Some(20),
        ..GenerateOptions::default()
    }
}

fn text(
    engine: &Engine,
    options: GenerateOptions,
) -> Result<(String, GenerationStats), EngineError> {
    let mut generation = engine.generate(vec![BOS, 5, 6], options)?;
    let mut text = String::new();
    while let Some(piece) = generation.next_piece()? {
        text.push_str(&piece.text);
    }
    Ok((text, generation.stats(Duration::ZERO)))
}

fn says(texts: &[&str]) -> Script {
    Script {
        tokens: texts
            .iter()
            .map(|text| piece_token(text))
            .chain([EOS])
            .collect(),
        ..Script::default()
    }
}

#[test]
fn the_model_chooses_within_the_constraint() {
    let (engine, _) = scripted_engine(says(&["Hi", " world"]));
    for (pattern, expected) in [
        // As it would without: the end comes when the model says so.
        ("Hi( world)*", "Hi world"),
        // The end comes because nothing may follow.
        ("Hi", "Hi"),
        // What the model wants is not allowed: the first of equal tokens that are.
        ("[xy]{2}", "xx"),
        ("", ""),
    ] {
        let (text, stats) = text(&engine, greedy(regex(pattern))).unwrap();
        assert_eq!(
            (text.as_str(), stats.finish_reason),
            (expected, FinishReason::Stop)
        );
    }
    let (text, stats) = text(&engine, greedy(regex("x*"))).unwrap();
    assert_eq!(
        (text.as_str(), stats.finish_reason),
        ("", FinishReason::Stop)
    );
    let longer = greedy(regex("x{30}"));
    let (text, stats) = self::text(&engine, longer).unwrap();
    assert_eq!(
        (text.len(), stats.finish_reason),
        (20, FinishReason::Length)
    );
}

#[test]
fn a_complete_text_ends_although_the_end_is_ignored() {
    let (engine, _) = scripted_engine(says(&["Hi"]));
    let options = GenerateOptions {
        ignore_eos: true,
        ..greedy(regex("Hi(er)?"))
    };
    let (text, stats) = text(&engine, options).unwrap();
    assert_eq!(
        (text.as_str(), stats.finish_reason),
        ("Hier", FinishReason::Stop)
    );
}

#[test]
fn what_cannot_be_enforced_is_an_error_before_anything_runs() {
    let (engine, steps) = scripted_engine(says(&["Hi"]));
    for (spec, option) in [
        (ConstraintSpec::Regex("(?=x)".to_owned()), "regex"),
        (
            ConstraintSpec::JsonSchema("{\"not\": {}}".to_owned()),
            "schema",
        ),
        (ConstraintSpec::Gbnf("root ::= x".to_owned()), "grammar"),
        (ConstraintSpec::Lark("start: x".to_owned()), "grammar"),
    ] {
        let error = engine
            .generate(vec![BOS], greedy(spec))
            .expect_err("it cannot be enforced");
        assert!(
            matches!(error.class(), ErrorClass::Option { name } if name == option),
            "{error}"
        );
    }
    assert!(steps.lock().unwrap().is_empty());
}

#[test]
fn suppressed_tokens_are_never_drawn() {
    let (engine, _) = scripted_engine(Script {
        suppressed: vec![piece_token("Hi") as i32, -1, 1 << 20],
        ..says(&["Hi", " world"])
    });
    let (text, _) = text(&engine, greedy(None)).unwrap();
    assert!(!text.contains("Hi") && text.contains(" world"), "{text}");
}

#[test]
fn a_ban_that_leaves_nothing_is_an_error_and_not_a_text() {
    let (engine, _) = scripted_engine(says(&["Hi"]));
    let mut options = greedy(regex("x"));
    options.sampling.logit_bias = vec![(byte_token(b'x'), f32::NEG_INFINITY)];
    assert!(matches!(
        text(&engine, options),
        Err(EngineError::Sampling(_))
    ));
    assert_eq!(text(&engine, greedy(regex("Hi"))).unwrap().0, "Hi");
}
