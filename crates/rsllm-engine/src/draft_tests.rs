//! A draft model beside a scripted one: whatever it guesses, and however it fails, the tokens are those of the model alone.

use std::time::Duration;

use proptest::prelude::*;

use crate::TokenId;
use crate::engine::Engine;
use crate::engine_tests::{greedy, ids, read, wait_for_step};
use crate::error::EngineError;
use crate::generation::{FinishReason, GenerationStats};
use crate::options::{GenerateOptions, LoadOptions};
use crate::sampling::{Rng, SamplingOptions};
use crate::testing::{
    Answers, Fault, Script, TempFile, scripted_engine, scripted_pair, tiny_model,
    tiny_model_of_layers,
};

/// Each step takes a while, so that guesses, which take next to nothing, pay.
fn target() -> Script {
    Script {
        step_time: Duration::from_millis(1),
        ..drafter()
    }
}

fn drafter() -> Script {
    Script {
        context: 512,
        answers: Answers::Text,
        max_sequences: 8,
        max_rows: 32,
        pages: 40,
        ..Script::default()
    }
}

fn prompt(seed: u64, n: usize) -> Vec<TokenId> {
    let mut rng = Rng::new(seed);
    (0..n)
        .map(|_| 3 + (rng.next_unit() * 200.0) as TokenId)
        .collect()
}

fn drafting(max_tokens: usize, max_draft: usize) -> GenerateOptions {
    GenerateOptions {
        max_tokens: Some(max_tokens),
        max_draft,
        ..greedy()
    }
}

fn answer(
    engine: &Engine,
    prompt: &[TokenId],
    options: GenerateOptions,
) -> (Vec<TokenId>, GenerationStats) {
    let (pieces, stats) = read(engine.generate(prompt.to_vec(), options).unwrap()).unwrap();
    (ids(&pieces), stats)
}

/// A machine that stops for a while makes guesses look dear; then `test` gets another chance with other texts.
fn on_a_calm_machine(mut test: impl FnMut(u64) -> Result<(), String>) {
    let failures: Vec<String> = (1..=5).map_while(|seed| test(seed).err()).collect();
    assert!(failures.len() < 5, "{failures:?}");
}

#[test]
fn right_guesses_save_steps() {
    on_a_calm_machine(|seed| {
        let (engine, steps, _) = scripted_pair(target(), drafter());
        let (single, _) = scripted_engine(drafter());
        let (expected, _) = answer(&single, &prompt(seed, 100), greedy_of(100));
        let (found, stats) = answer(&engine, &prompt(seed, 100), drafting(100, 7));
        assert_eq!(found, expected);
        assert!(stats.warnings.is_empty());
        let n_steps = steps.lock().unwrap().len();
        assert!(n_steps + stats.accepted_tokens <= 100 + 4, "{n_steps}");
        let metrics = engine.metrics();
        assert_eq!(metrics.accepted_tokens as usize, stats.accepted_tokens);
        assert_eq!(metrics.drafted_tokens as usize, stats.drafted_tokens);
        // What the text itself suggested may be wrong.
        let n_wrong = stats.drafted_tokens - stats.accepted_tokens;
        if stats.accepted_tokens > 50 && n_wrong < 8 {
            Ok(())
        } else {
            Err(format!("{stats:?}"))
        }
    });
}

fn greedy_of(max_tokens: usize) -> GenerateOptions {
    drafting(max_tokens, 0)
}

#[test]
fn no_guess_is_made_unless_wanted() {
    let (engine, _, draft_steps) = scripted_pair(target(), drafter());
    let (_, stats) = answer(&engine, &prompt(1, 20), greedy_of(20));
    assert_eq!(stats.drafted_tokens, 0);
    assert!(draft_steps.lock().unwrap().is_empty());
}

#[test]
fn a_long_prompt_is_caught_up_with_a_step_at_a_time() {
    let (engine, _, draft_steps) = scripted_pair(target(), drafter());
    answer(&engine, &prompt(1, 200), drafting(30, 4));
    let steps = draft_steps.lock().unwrap();
    assert!(steps.iter().all(|step| step.2 <= 32), "{steps:?}");
    let mut first_index = 0;
    for step in steps.iter().take(6) {
        assert_eq!((step.1, step.2), (first_index, 32));
        first_index += 32;
    }
}

#[test]
fn a_guess_that_costs_as_much_as_a_token_is_given_up() {
    on_a_calm_machine(|seed| {
        let slow = Script {
            step_time: Duration::from_millis(3),
            ..drafter()
        };
        let (engine, _, draft_steps) = scripted_pair(target(), slow);
        let (_, stats) = answer(&engine, &prompt(seed, 20), drafting(200, 7));
        assert_eq!(stats.generated_tokens, 200);
        let n_steps = draft_steps.lock().unwrap().len();
        if n_steps < 60 {
            Ok(())
        } else {
            Err(format!("{n_steps} steps of the draft model"))
        }
    });
}

#[test]
fn a_long_text_is_not_worth_following_for_a_few_tokens() {
    let slow = Script {
        step_time: Duration::from_millis(2),
        ..drafter()
    };
    let (engine, _, draft_steps) = scripted_pair(target(), slow);
    answer(&engine, &prompt(1, 500), drafting(12, 7));
    // It learns from its first steps what a row takes; without that each token would wait for 32 of them.
    let n_rows: usize = draft_steps.lock().unwrap().iter().map(|step| step.2).sum();
    assert!(n_rows <= 200, "{n_rows}");
}

#[test]
fn what_a_window_has_passed_is_not_expected_back() {
    // A long guess at the end of the first text passes a page; the second text is shorter and ends where that begins.
    for n_shared in (100..139).step_by(3) {
        let windowed = Script {
            window: Some(10),
            answers: Answers::Never,
            ..drafter()
        };
        let (engine, _, _) = scripted_pair(target(), windowed);
        let text = prompt(1, 138);
        answer(&engine, &text, drafting(4, 15));
        let again = [&text[..n_shared], &prompt(2, 5)].concat();
        let (found, stats) = answer(&engine, &again, drafting(20, 15));
        assert!(
            stats.warnings.is_empty(),
            "{n_shared}: {:?}",
            stats.warnings
        );
        let (single, _) = scripted_engine(drafter());
        assert_eq!(found, answer(&single, &again, greedy_of(20)).0);
    }
}

#[test]
fn a_draft_model_that_fails_is_no_longer_asked_and_the_text_goes_on() {
    let expected = answer(&scripted_engine(drafter()).0, &prompt(1, 20), greedy_of(60)).0;
    // The first guess, which is always made, takes three steps.
    for fault in [0, 2] {
        let broken = Script {
            fault: Some((fault, Fault::Panic)),
            ..drafter()
        };
        let (engine, _, draft_steps) = scripted_pair(target(), broken);
        let (found, stats) = answer(&engine, &prompt(1, 20), drafting(60, 7));
        assert_eq!(
            (found, stats.finish_reason),
            (expected.clone(), FinishReason::Length)
        );
        assert_eq!(stats.warnings.len(), 1, "{:?}", stats.warnings);
        assert!(stats.warnings[0].contains("draft model failed"));
        assert_eq!(draft_steps.lock().unwrap().len(), fault + 1);
        let (_, stats) = answer(&engine, &prompt(2, 20), drafting(20, 7));
        assert!(
            stats.warnings.is_empty(),
            "the next request had no part in it"
        );
    }
    // Random numbers that a guess took before it failed are taken again.
    let random = |max_draft| GenerateOptions {
        sampling: SamplingOptions {
            temperature: 4.0,
            seed: Some(5),
            ..SamplingOptions::default()
        },
        ..drafting(60, max_draft)
    };
    let broken = Script {
        fault: Some((2, Fault::Panic)),
        ..drafter()
    };
    let (engine, _, _) = scripted_pair(target(), broken);
    let (found, stats) = answer(&engine, &prompt(1, 20), random(7));
    assert_eq!(stats.warnings.len(), 1);
    assert_eq!(
        found,
        answer(&scripted_engine(drafter()).0, &prompt(1, 20), random(0)).0
    );
    let broken = Script {
        fault: Some((2, Fault::NanLogit)),
        ..drafter()
    };
    let (engine, _, _) = scripted_pair(target(), broken);
    let (found, stats) = answer(&engine, &prompt(1, 20), drafting(60, 7));
    assert_eq!(found, expected);
    assert!(stats.warnings.is_empty() && stats.accepted_tokens > 0);
}

#[test]
fn cancelling_ends_a_guess_too() {
    let slow = Script {
        step_time: Duration::from_secs(30),
        ..drafter()
    };
    let (engine, _, draft_steps) = scripted_pair(target(), slow);
    let mut generation = engine.generate(prompt(1, 20), drafting(60, 7)).unwrap();
    wait_for_step(&draft_steps);
    generation.cancel();
    while generation.next_piece().unwrap().is_some() {}
    let stats = generation.stats(Duration::from_secs(10));
    assert_eq!(stats.finish_reason, FinishReason::Cancelled);
    drop(engine);
}

fn load_pair(file: &TempFile, draft: &TempFile) -> Result<Engine, EngineError> {
    let options = LoadOptions {
        threads: Some(2),
        draft: Some(draft.0.clone()),
        ..LoadOptions::default()
    };
    Engine::load(&file.0, &options)
}

#[test]
fn real_models_share_their_threads_and_agree() {
    let (file, draft) = (tiny_model_of_layers(400, 12), tiny_model(300));
    let engine = load_pair(&file, &draft).unwrap();
    let info = engine.info();
    let of_draft = info.draft.as_ref().unwrap();
    assert_eq!(
        (of_draft.architecture.as_str(), of_draft.context),
        ("llama", 300)
    );
    assert!(info.warnings.is_empty());
    let mut drafted = 0;
    for temperature in [0.0, 1.2] {
        let options = |max_draft| GenerateOptions {
            sampling: SamplingOptions {
                temperature,
                seed: Some(7),
                ..SamplingOptions::default()
            },
            ignore_eos: true,
            ..drafting(60, max_draft)
        };
        let (plain, _) = answer(&engine, &prompt(3, 40), options(0));
        let (found, stats) = answer(&engine, &prompt(3, 40), options(7));
        assert_eq!(found, plain);
        assert!(stats.warnings.is_empty());
        drafted += stats.drafted_tokens;
    }
    assert!(drafted > 0, "the first guess is always made");
    let same = load_pair(&file, &file).unwrap();
    let warnings = &same.info().warnings;
    assert!(warnings[0].contains("cannot pay"), "{warnings:?}");
}

#[test]
fn what_a_draft_model_takes_is_planned() {
    let (file, draft) = (tiny_model_of_layers(400, 6), tiny_model(300));
    let options = LoadOptions {
        threads: Some(2),
        context: Some(256),
        draft: Some(draft.0.clone()),
        ..LoadOptions::default()
    };
    let plan = crate::plan(&file.0, &options).unwrap();
    let engine = Engine::load(&file.0, &options).unwrap();
    let figures = |info: &crate::EngineInfo| (info.kv_bytes, info.scratch_bytes, info.weight_bytes);
    assert_eq!(figures(&plan), figures(engine.info()));
    let alone = crate::plan(
        &file.0,
        &LoadOptions {
            draft: None,
            ..options
        },
    )
    .unwrap();
    assert!(plan.kv_bytes > alone.kv_bytes && plan.scratch_bytes > alone.scratch_bytes);
    assert!(plan.weight_bytes > alone.weight_bytes);
    assert_eq!(alone.draft, None);
    assert!(plan.context_reason.ends_with("a draft model beside it"));
}

#[test]
fn a_draft_model_that_does_not_fit_is_named() {
    let file = tiny_model(300);
    let missing = TempFile(file.0.with_extension("missing"));
    let error = load_pair(&file, &missing).unwrap_err().to_string();
    assert!(
        error.starts_with("draft model ") && error.contains("missing"),
        "{error}"
    );
    let other = crate::testing::tiny_model_with(300, 2, |metadata| {
        let mut tokens = crate::testing::token_texts();
        tokens[265] = "▁other".to_owned();
        let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
        metadata.insert("tokenizer.ggml.tokens", tokens);
    });
    let error = load_pair(&file, &other).unwrap_err();
    assert!(error.to_string().contains("its token 265 is"), "{error}");
    let options = LoadOptions {
        draft: Some(other.0.clone()),
        draft_must_fit: false,
        ..LoadOptions::default()
    };
    let engine = Engine::load(&file.0, &options).unwrap();
    assert_eq!(engine.info().draft, None);
    let [warning] = &engine.info().warnings[..] else {
        panic!("one warning")
    };
    assert!(warning.contains("token 265"), "{warning}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Right and wrong guesses, windows on either side, contexts that end or are shifted, several sequences in turn and at once.
    #[test]
    fn a_draft_model_changes_no_token(
        seed in 0u64..1000,
        requests in prop::collection::vec((1usize..120, 1usize..80, 0usize..8), 1..5),
        answers in prop::sample::select(vec![Answers::Text, Answers::TextWithErrors]),
        windows in (prop::option::of(3usize..100), prop::option::of(3usize..100)),
        draft_context in 20usize..300,
        shift in prop::option::of(0usize..20),
        at_once in any::<bool>(),
    ) {
        let script = Script { context: 150, window: windows.0, ..drafter() };
        let draft = Script { context: draft_context, window: windows.1, answers, ..drafter() };
        let (engine, _, _) = scripted_pair(script.clone(), draft);
        let (single, _) = scripted_engine(script);
        // The second half of them begins like the first request.
        let text = prompt(seed, 120);
        let requests: Vec<_> = requests.into_iter().enumerate().map(|(i, (n, max_tokens, max_draft))| {
            let text = if i % 2 == 0 { text[..n].to_vec() } else { prompt(seed + i as u64, n) };
            (text, GenerateOptions { shift, ..drafting(max_tokens, max_draft) })
        }).collect();
        let alone = |options: &GenerateOptions| GenerateOptions { max_draft: 0, ..options.clone() };
        if at_once {
            let running: Vec<_> = requests.iter()
                .map(|(text, options)| engine.generate(text.clone(), options.clone()).unwrap())
                .collect();
            for (generation, (text, options)) in running.into_iter().zip(&requests) {
                let expected = answer(&single, text, alone(options)).0;
                prop_assert_eq!(ids(&read(generation).unwrap().0), expected);
            }
        } else {
            for (text, options) in &requests {
                let expected = answer(&single, text, alone(options)).0;
                let (found, stats) = answer(&engine, text, options.clone());
                prop_assert_eq!(found, expected);
                prop_assert!(stats.warnings.is_empty(), "{:?}", stats.warnings);
            }
        }
        let metrics = engine.metrics();
        prop_assert_eq!(metrics.pages_free + metrics.pages_cached, metrics.pages);
    }
}
