//! What users of other engines met in the field, as far as it concerns the engine: prefix cache (PFX), many callers (CON), context
//! length (CTX) and memory (MEM), each by its number in the project's list of field cases. Cases of the server and of the command
//! line are tested there.

use std::thread;
use std::time::Duration;

use crate::TokenId;
use crate::engine::Engine;
use crate::engine_tests::{PATIENCE, greedy, ids, read, wait_for_step};
use crate::forward::Phase;
use crate::generation::{FinishReason, GenerationStats};
use crate::options::{GenerateOptions, LoadOptions};
use crate::testing::{Answers, Script, scripted_engine, tiny_model};

/// A model with room for long conversations.
fn script() -> Script {
    Script {
        context: 8192,
        answers: Answers::Text,
        max_sequences: 4,
        max_rows: 512,
        ..Script::default()
    }
}

fn prompt(seed: usize, n: usize) -> Vec<TokenId> {
    (0..n)
        .map(|i| 3 + ((seed * 131 + i * i + i / 7) % 200) as TokenId)
        .collect()
}

fn run(engine: &Engine, prompt: &[TokenId], max_tokens: usize) -> (Vec<TokenId>, GenerationStats) {
    let options = GenerateOptions {
        max_tokens: Some(max_tokens),
        ..greedy()
    };
    let (pieces, stats) = read(engine.generate(prompt.to_vec(), options).unwrap()).unwrap();
    (ids(&pieces), stats)
}

#[test]
fn pfx_01_the_same_request_again_evaluates_a_hundredth_at_most_and_says_so() {
    for window in [None, Some(512)] {
        let engine = scripted_engine(Script { window, ..script() }).0;
        let text = prompt(1, 2000);
        let (first, _) = run(&engine, &text, 8);
        let before = engine.metrics().prefill_tokens;
        let (again, stats) = run(&engine, &text, 8);
        assert_eq!(again, first);
        assert!(stats.cached_tokens >= 1980, "{stats:?}");
        assert!(engine.metrics().prefill_tokens - before <= 20);
    }
}

#[test]
fn pfx_02_a_second_turn_evaluates_what_is_new() {
    let engine = scripted_engine(script()).0;
    let mut text = prompt(1, 4000);
    text.extend(run(&engine, &text, 100).0);
    text.extend(prompt(2, 20));
    let before = engine.metrics().prefill_tokens;
    run(&engine, &text, 1);
    let n_new = engine.metrics().prefill_tokens - before;
    assert!(n_new <= 20 + 64, "{n_new}");
}

#[test]
fn pfx_03_the_second_turn_finds_the_first_behind_a_shared_system_prompt() {
    let engine = scripted_engine(script()).0;
    let system = prompt(1, 700);
    for seed in 2..5 {
        let mut text = [&system[..], &prompt(seed, 30)].concat();
        let (reply, first) = run(&engine, &text, 50);
        assert!(seed == 2 || first.cached_tokens >= 700, "{first:?}");
        text.extend(reply);
        text.extend(prompt(10 + seed, 30));
        let (_, second) = run(&engine, &text, 50);
        assert!(second.cached_tokens >= 779, "{second:?}");
    }
}

#[test]
fn pfx_04_the_cpu_finds_it_too() {
    let file = tiny_model(1024);
    let options = LoadOptions {
        threads: Some(1),
        ..LoadOptions::default()
    };
    let engine = Engine::load(&file.0, &options).unwrap();
    let text = prompt(1, 500);
    let (first, _) = run(&engine, &text, 8);
    let (again, stats) = run(&engine, &text, 8);
    assert_eq!((again, stats.cached_tokens), (first, 499));
}

#[test]
fn pfx_05_and_06_a_text_that_diverges_goes_on_from_there_and_says_where() {
    let engine = scripted_engine(script()).0;
    let text = prompt(1, 5663);
    run(&engine, &text, 1);
    let other = [&text[..3433], &[250], &text[3434..]].concat();
    let (_, stats) = run(&engine, &other, 1);
    assert_eq!(stats.cached_tokens, 3433);
}

#[test]
fn pfx_07_interleaved_chats_both_hit() {
    let engine = scripted_engine(script()).0;
    let (mut a, mut b) = (prompt(1, 1000), prompt(2, 1000));
    for turn in 0..2 {
        for text in [&mut a, &mut b] {
            let n_before = text.len();
            let (reply, stats) = run(&engine, text, 20);
            assert!(
                turn == 0 || stats.cached_tokens + 40 >= n_before,
                "{stats:?}"
            );
            text.extend(reply);
            text.extend(prompt(50 + turn, 20));
        }
    }
}

#[test]
fn con_03_a_dead_client_frees_its_place_wherever_it_stands() {
    let script = Script {
        step_time: Duration::from_millis(5),
        max_sequences: 1,
        ..script()
    };
    let options = || GenerateOptions {
        max_tokens: Some(5000),
        ..greedy()
    };
    // While generating, and in the middle of a long prompt.
    for n_prompt in [5, 8000] {
        let (engine, steps) = scripted_engine(script.clone());
        let dead = engine.generate(prompt(1, n_prompt), options()).unwrap();
        wait_for_step(&steps);
        thread::sleep(Duration::from_millis(12));
        drop(dead);
        let n_before = steps.lock().unwrap().len();
        run(&engine, &prompt(2, 3), 1);
        let steps = steps.lock().unwrap();
        let next = steps
            .iter()
            .position(|step| *step == (Phase::Prefill, 0, 3));
        assert!(next.unwrap() <= n_before + 1, "{steps:?}");
    }
    // In the queue: it never starts.
    let (engine, steps) = scripted_engine(script);
    let first = engine.generate(prompt(1, 5), options()).unwrap();
    wait_for_step(&steps);
    drop(engine.generate(prompt(2, 77), options()).unwrap());
    drop(first);
    run(&engine, &prompt(3, 3), 1);
    assert!(!steps.lock().unwrap().contains(&(Phase::Prefill, 0, 77)));
    assert_eq!(engine.metrics().started, 2);
}

#[test]
fn con_05_and_06_one_request_after_another_and_nothing_grows() {
    let engine = scripted_engine(script()).0;
    thread::scope(|scope| {
        for client in 0..5 {
            let engine = &engine;
            scope.spawn(move || {
                for i in 0..100 {
                    let (reply, stats) = run(engine, &prompt(client * 1000 + i, 9), 4);
                    assert_eq!(
                        (reply.len(), stats.finish_reason),
                        (4, FinishReason::Length)
                    );
                }
            });
        }
    });
    run(&engine, &prompt(1, 9), 1);
    let metrics = engine.metrics();
    assert_eq!((metrics.started, metrics.ended), (501, 501));
    assert!(metrics.pages > 0);
    assert_eq!(metrics.pages_free + metrics.pages_cached, metrics.pages);
}

#[test]
fn ctx_06_and_07_output_without_end_ends_with_the_context_or_its_caller() {
    let engine = scripted_engine(Script {
        context: 256,
        ..script()
    })
    .0;
    let endless = || GenerateOptions {
        max_tokens: None,
        ignore_eos: true,
        ..greedy()
    };
    let (pieces, stats) = read(engine.generate(prompt(1, 20), endless()).unwrap()).unwrap();
    assert_eq!(stats.finish_reason, FinishReason::Context);
    assert_eq!(
        20 + ids(&pieces).len(),
        257,
        "the last token is never evaluated"
    );
    let mut stopped = engine.generate(prompt(1, 20), endless()).unwrap();
    stopped.next_piece().unwrap();
    stopped.cancel();
    assert!(matches!(
        stopped.stats(PATIENCE).finish_reason,
        FinishReason::Cancelled | FinishReason::Context
    ));
}

#[test]
fn ctx_09_one_token_is_one_token() {
    let engine = scripted_engine(script()).0;
    let (reply, stats) = run(&engine, &prompt(1, 20), 1);
    assert_eq!((reply.len(), stats.generated_tokens), (1, 1));
    assert_eq!(stats.finish_reason, FinishReason::Length);
}

#[test]
fn mem_03_and_04_the_plan_counts_scratch_and_callers_share_the_context() {
    let file = tiny_model(2048);
    let plan = |max_sequences, context| {
        let options = LoadOptions {
            max_sequences,
            context: Some(context),
            threads: Some(1),
            ..LoadOptions::default()
        };
        crate::plan(&file.0, &options).unwrap()
    };
    let one = plan(1, 2048);
    assert!(one.scratch_bytes > 0);
    assert_eq!(plan(4, 2048).kv_bytes, one.kv_bytes);
    assert_eq!(plan(1, 4096).kv_bytes, 2 * one.kv_bytes);
}
