//! Generations side by side on a scripted model whose tokens depend on everything before them, so that a page in the wrong
//! place shows.

use std::thread;
use std::time::{Duration, Instant};

use crate::TokenId;
use crate::embedding::Pooling;
use crate::engine::Engine;
use crate::engine_tests::{PATIENCE, greedy, ids, read, wait_for_step};
use crate::error::EngineError;
use crate::forward::Phase;
use crate::generation::{FinishReason, Generation};
use crate::options::GenerateOptions;
use crate::sampling::Rng;
use crate::testing::{Answers, Script, piece_token, scripted_engine};

const SCRIPT: Script = Script {
    tokens: Vec::new(),
    step_time: Duration::ZERO,
    fault: None,
    context: 512,
    window: None,
    answers: Answers::TextAndPhases,
    poison: None,
    max_sequences: 4,
    pages: 0,
    max_rows: 32,
    suppressed: Vec::new(),
};

/// `n` tokens that no prompt with another `seed` begins with.
fn prompt(seed: u64, n: usize) -> Vec<TokenId> {
    let mut rng = Rng::new(seed);
    (0..n)
        .map(|_| 3 + (rng.next_unit() * 200.0) as TokenId)
        .collect()
}

fn up_to(max_tokens: usize) -> GenerateOptions {
    GenerateOptions {
        max_tokens: Some(max_tokens),
        ..greedy()
    }
}

fn tokens(generation: Generation) -> Vec<TokenId> {
    ids(&read(generation).unwrap().0)
}

fn answer(engine: &Engine, prompt: &[TokenId], max_tokens: usize) -> Vec<TokenId> {
    tokens(engine.generate(prompt.to_vec(), up_to(max_tokens)).unwrap())
}

/// Tokens of `prompt` that were found in the cache, and the answer.
fn cached(engine: &Engine, prompt: &[TokenId], max_tokens: usize) -> (usize, Vec<TokenId>) {
    let generation = engine.generate(prompt.to_vec(), up_to(max_tokens)).unwrap();
    let (pieces, stats) = read(generation).unwrap();
    (stats.cached_tokens, ids(&pieces))
}

/// The answer of an engine that has done nothing else.
fn alone(prompt: &[TokenId], max_tokens: usize) -> Vec<TokenId> {
    answer(&scripted_engine(SCRIPT).0, prompt, max_tokens)
}

/// Asks for all at once, and compares with each alone.
fn check_together(script: Script, requests: &[(Vec<TokenId>, usize)]) -> Engine {
    let engine = scripted_engine(script).0;
    let generations: Vec<Generation> = requests
        .iter()
        .map(|(prompt, n)| engine.generate(prompt.clone(), up_to(*n)).unwrap())
        .collect();
    for (generation, (prompt, n)) in generations.into_iter().zip(requests) {
        assert_eq!(tokens(generation), alone(prompt, *n));
    }
    let metrics = engine.metrics();
    assert_eq!(metrics.started, metrics.ended);
    assert_eq!(metrics.pages_free + metrics.pages_cached, metrics.pages);
    engine
}

#[test]
fn many_run_in_one_step_and_each_says_what_it_says_alone() {
    let script = Script {
        step_time: Duration::from_millis(2),
        ..SCRIPT
    };
    let requests: Vec<_> = (0..9)
        .map(|i| (prompt(i, 3 + 11 * i as usize), 12))
        .collect();
    let metrics = check_together(script, &requests).metrics();
    assert!(metrics.batch_sizes[2] > 0, "{metrics:?}");
    assert_eq!(metrics.batch_sizes[3..], [0; 5], "no more than four");
    assert_eq!(
        metrics.prefill_tokens,
        (0..9).map(|i| 3 + 11 * i).sum::<u64>()
    );
    assert_eq!(metrics.decode_tokens, 9 * 11);
    assert!(metrics.prefill_ns > 0 && metrics.decode_ns > 0 && metrics.queue_ns > 0);
}

#[test]
fn too_few_pages_slow_down_but_change_nothing() {
    // Eight pages hold one context; four sequences of five pages each want more.
    let requests: Vec<_> = (0..6).map(|i| (prompt(i, 40 + i as usize), 250)).collect();
    for window in [None, Some(70), Some(200)] {
        let script = Script { window, ..SCRIPT };
        let metrics = check_together(script, &requests).metrics();
        assert!(metrics.preempted > 0, "{metrics:?}");
    }
}

#[test]
fn a_prompt_does_not_stop_those_that_generate() {
    let script = Script {
        step_time: Duration::from_millis(1),
        max_rows: 64,
        ..SCRIPT
    };
    let (engine, steps) = scripted_engine(script);
    let first = engine.generate(prompt(1, 5), up_to(120)).unwrap();
    wait_for_step(&steps);
    let second = engine.generate(prompt(2, 300), up_to(2)).unwrap();
    assert_eq!(tokens(second), alone(&prompt(2, 300), 2));
    assert_eq!(tokens(first), alone(&prompt(1, 5), 120));
    let steps = steps.lock().unwrap();
    let n_before_second = |wanted: (Phase, usize)| {
        steps
            .iter()
            .position(|step| (step.0, step.1) == wanted)
            .unwrap()
    };
    // Once the second prompt has begun, every part of it has a token of the first beside it.
    let second: Vec<_> = steps[n_before_second((Phase::Decode, 5))..]
        .iter()
        .filter(|step| step.0 == Phase::Prefill)
        .collect();
    assert!(second.len() >= 5, "{second:?}");
}

#[test]
fn a_prompt_can_go_in_the_middle_of_its_pass() {
    let script = Script {
        step_time: Duration::from_millis(15),
        answers: Answers::Text,
        max_rows: 64,
        ..SCRIPT
    };
    let (engine, steps) = scripted_engine(script);
    let stream = engine.generate(prompt(1, 5), up_to(60)).unwrap();
    wait_for_step(&steps);
    // Two prompts share a pass: one is cancelled at different places, the other has to be computed all the same.
    for pause in [1, 8, 16, 24] {
        let cancelled = engine.generate(prompt(pause, 9), up_to(5)).unwrap();
        let kept = engine.generate(prompt(100 + pause, 9), up_to(5)).unwrap();
        thread::sleep(Duration::from_millis(pause));
        drop(cancelled);
        let single = scripted_engine(Script {
            answers: Answers::Text,
            ..SCRIPT
        });
        let expected = answer(&single.0, &prompt(100 + pause, 9), 5);
        assert_eq!(tokens(kept), expected);
    }
    drop(stream);
    answer(&engine, &[7], 1);
    let metrics = engine.metrics();
    assert_eq!(metrics.pages_free + metrics.pages_cached, metrics.pages);
}

#[test]
fn one_of_several_can_be_cancelled_and_all_of_them_at_once() {
    let script = Script {
        step_time: Duration::from_millis(20),
        ..SCRIPT
    };
    let (engine, steps) = scripted_engine(script);
    let kept = engine.generate(prompt(1, 20), up_to(10)).unwrap();
    let mut cancelled = engine.generate(prompt(2, 20), up_to(400)).unwrap();
    wait_for_step(&steps);
    cancelled.cancel();
    while cancelled.next_piece().unwrap().is_some() {}
    assert_eq!(
        cancelled.stats(PATIENCE).finish_reason,
        FinishReason::Cancelled
    );
    assert_eq!(tokens(kept), alone(&prompt(1, 20), 10));

    let script = Script {
        step_time: PATIENCE,
        ..SCRIPT
    };
    let (engine, steps) = scripted_engine(script);
    let running: Vec<_> = (0..3)
        .map(|i| engine.generate(prompt(i, 9), up_to(9)).unwrap())
        .collect();
    wait_for_step(&steps);
    let start = Instant::now();
    for generation in &running {
        generation.cancel();
    }
    for generation in running {
        assert!(tokens(generation).is_empty());
    }
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn only_the_request_at_fault_fails() {
    const POISON: TokenId = 240;
    let script = Script {
        step_time: Duration::from_millis(2),
        poison: Some(POISON),
        ..SCRIPT
    };
    let (engine, _) = scripted_engine(script);
    let mut poisoned = prompt(3, 50);
    poisoned[45] = POISON;
    let generations: Vec<_> = [prompt(1, 30), poisoned, prompt(2, 30)]
        .into_iter()
        .map(|prompt| engine.generate(prompt, up_to(30)).unwrap())
        .collect();
    let mut results = generations.into_iter().map(read);
    let mut tokens = || results.next().unwrap().map(|(pieces, _)| ids(&pieces));
    assert_eq!(tokens().unwrap(), alone(&prompt(1, 30), 30));
    assert!(matches!(tokens(), Err(EngineError::Panicked { .. })));
    assert_eq!(tokens().unwrap(), alone(&prompt(2, 30), 30));
}

#[test]
fn a_request_that_wants_the_model_alone_waits_its_turn() {
    let script = Script {
        step_time: Duration::from_millis(2),
        ..SCRIPT
    };
    let (engine, steps) = scripted_engine(script);
    let first = engine.generate(prompt(1, 5), up_to(5)).unwrap();
    let logits = engine.logits(prompt(2, 7)).unwrap();
    let second = engine.generate(prompt(3, 11), up_to(5)).unwrap();
    assert_eq!(tokens(first).len(), 5);
    assert_eq!(logits.wait().unwrap().len(), 7 * engine.info().vocab_size);
    assert_eq!(tokens(second).len(), 5);
    let steps = steps.lock().unwrap();
    let begin = |n| {
        steps
            .iter()
            .position(|step| *step == (Phase::Prefill, 0, n))
    };
    assert_eq!(begin(5), Some(0));
    assert!(begin(4) == Some(5) && begin(11) > begin(4), "{steps:?}");
    drop(steps);
    let reply = engine.embed(vec![vec![7, 8], vec![9]], Pooling::Last, false);
    assert_eq!(reply.unwrap().wait().unwrap(), [8.0, 1.0, 9.0, 0.0]);
}

#[test]
fn the_same_prompt_again_computes_one_token() {
    let (engine, steps) = scripted_engine(SCRIPT);
    let text = prompt(1, 400);
    let (n_cached, first) = cached(&engine, &text, 5);
    assert_eq!(n_cached, 0);
    steps.lock().unwrap().clear();
    assert_eq!(cached(&engine, &text, 5), (399, first));
    assert_eq!(steps.lock().unwrap()[0], (Phase::Prefill, 399, 1));
}

#[test]
fn a_second_turn_computes_what_is_new() {
    let (engine, _) = scripted_engine(SCRIPT);
    let mut text = prompt(1, 150);
    let reply = answer(&engine, &text, 100);
    text.extend(&reply);
    text.extend(prompt(2, 10));
    // The last token of the reply was never evaluated.
    assert_eq!(cached(&engine, &text, 5).0, 249);
}

#[test]
fn a_common_beginning_is_found_again_and_again() {
    let script = Script {
        answers: Answers::Text,
        ..SCRIPT
    };
    let (engine, _) = scripted_engine(script);
    let system = prompt(1, 130);
    let begin = |seed| [&system[..], &prompt(seed, 20)].concat();
    assert_eq!(cached(&engine, &begin(2), 5).0, 0);
    let (n_cached, reply) = cached(&engine, &begin(3), 5);
    assert_eq!(n_cached, 130);
    let second_turn = [&begin(3)[..], &reply, &prompt(4, 20)].concat();
    assert_eq!(cached(&engine, &second_turn, 5).0, 154);
    // In the middle of a text, and of a page.
    let other = [&second_turn[..100], &prompt(5, 100)].concat();
    assert_eq!(cached(&engine, &other, 5).0, 100);
}

#[test]
fn interleaved_conversations_both_find_their_beginnings() {
    let (engine, _) = scripted_engine(SCRIPT);
    let (mut a, mut b) = (prompt(1, 90), prompt(2, 120));
    for turn in 0..3 {
        for (text, seed) in [(&mut a, 10 + turn), (&mut b, 20 + turn)] {
            let n_before = text.len();
            let (n_cached, reply) = cached(&engine, text, 9);
            assert!(
                turn == 0 || n_cached >= n_before - 16,
                "{n_cached} of {n_before}"
            );
            text.extend(reply);
            text.extend(prompt(seed, 15));
        }
    }
}

#[test]
fn a_running_sequence_shares_its_pages() {
    let script = Script {
        step_time: Duration::from_millis(5),
        ..SCRIPT
    };
    let (engine, steps) = scripted_engine(script);
    let text = prompt(1, 200);
    let mut first = engine.generate(text.clone(), up_to(200)).unwrap();
    wait_for_step(&steps);
    first.next_piece().unwrap();
    let (n_cached, _) = cached(&engine, &text, 3);
    assert_eq!(n_cached, 192, "whole pages");
    assert!(!first.is_ended());
}

#[test]
fn windowed_layers_decide_what_can_be_reused() {
    for window in [3, 64, 100] {
        let script = Script {
            window: Some(window),
            answers: Answers::Text,
            ..SCRIPT
        };
        let (engine, _) = scripted_engine(script);
        let text = prompt(1, 300);
        let expected = alone(&text, 5).len();
        let (_, first) = cached(&engine, &text, 5);
        assert_eq!(first.len(), expected);
        let (n_cached, again) = cached(&engine, &text, 5);
        assert_eq!((n_cached, again), (299, first));
        // Other texts push the pages of both groups out, oldest first; whatever is left must be used rightly, which the
        // scripted model checks.
        for seed in 2..6 {
            answer(&engine, &prompt(seed, 150), 5);
            cached(&engine, &text[..250], 5);
        }
    }
}

#[test]
fn a_short_text_in_few_pages_is_reused_too() {
    let script = Script {
        pages: 1,
        context: 64,
        ..SCRIPT
    };
    let (engine, _) = scripted_engine(script);
    assert_eq!(cached(&engine, &prompt(1, 20), 5).0, 0);
    assert_eq!(cached(&engine, &prompt(1, 20), 5).0, 19);
    assert_eq!(cached(&engine, &prompt(2, 20), 5).0, 0);
    assert_eq!(cached(&engine, &prompt(1, 20), 5).0, 0);
}

#[test]
fn those_that_begin_alike_wait_for_the_first() {
    let script = Script {
        answers: Answers::Text,
        step_time: Duration::from_millis(1),
        ..SCRIPT
    };
    let requests: Vec<_> = (0..4)
        .map(|i| ([prompt(1, 200), prompt(10 + i, 20)].concat(), 8))
        .collect();
    let single = scripted_engine(Script {
        answers: Answers::Text,
        ..SCRIPT
    })
    .0;
    let engine = scripted_engine(script.clone()).0;
    let start = |request: &(Vec<TokenId>, usize)| {
        engine
            .generate(request.0.clone(), up_to(request.1))
            .unwrap()
    };
    let generations: Vec<_> = requests.iter().map(start).collect();
    for (generation, (prompt, n)) in generations.into_iter().zip(&requests) {
        assert_eq!(tokens(generation), answer(&single, prompt, *n));
    }
    // 220 tokens once, and what is behind three whole pages of 64 for the others.
    let n_prefilled = engine.metrics().prefill_tokens;
    assert!(n_prefilled <= 220 + 3 * (220 - 192), "{n_prefilled}");

    // When the first goes away, the next computes.
    let engine = scripted_engine(Script {
        step_time: Duration::from_millis(20),
        ..script
    });
    let start = |request: &(Vec<TokenId>, usize)| {
        engine
            .0
            .generate(request.0.clone(), up_to(request.1))
            .unwrap()
    };
    let first = start(&requests[0]);
    let others: Vec<_> = requests[1..].iter().map(start).collect();
    wait_for_step(&engine.1);
    drop(first);
    for (generation, (prompt, n)) in others.into_iter().zip(&requests[1..]) {
        assert_eq!(tokens(generation), answer(&single, prompt, *n));
    }
}

#[test]
fn a_full_context_is_shifted_when_asked_for() {
    for (window, num_keep) in [(None, 10), (Some(40), 0), (None, 500)] {
        let script = Script {
            context: 100,
            pages: 4,
            window,
            answers: Answers::Text,
            ..SCRIPT
        };
        let engine = scripted_engine(script).0;
        let text = prompt(1, 60);
        let options = |shift| GenerateOptions {
            shift,
            ..up_to(200)
        };
        let run = |options| read(engine.generate(text.clone(), options).unwrap()).unwrap();
        let (pieces, stats) = run(options(None));
        assert_eq!(
            (stats.finish_reason, stats.shifts),
            (FinishReason::Context, 0)
        );
        let before = ids(&pieces);
        assert_eq!(before.len(), 41);
        let (pieces, stats) = run(options(Some(num_keep)));
        let all = ids(&pieces);
        assert_eq!((all.len(), stats.generated_tokens), (200, 200));
        assert_eq!(stats.finish_reason, FinishReason::Length);
        assert!(all.starts_with(&before) && stats.shifts > 1);
        // What follows is what a prompt of the kept tokens is answered with.
        let full = [&text[..], &before].concat();
        let n_keep = num_keep.min(75);
        let n_dropped = (full.len() - n_keep).div_ceil(2);
        let kept = [&full[..n_keep], &full[n_keep + n_dropped..]].concat();
        let (again, _) = read(engine.generate(kept, options(None)).unwrap()).unwrap();
        let again = ids(&again);
        assert!(all[before.len()..].starts_with(&again), "{all:?} {again:?}");
        assert!(stats.dropped_tokens >= stats.shifts * 13);
        let metrics = engine.metrics();
        assert_eq!(metrics.pages_free + metrics.pages_cached, metrics.pages);
    }
}

/// Random requests with common beginnings, too few pages, and callers that go away.
#[test]
fn random_trouble_changes_no_answer_and_loses_no_page() {
    for seed in 0..6 {
        let mut rng = Rng::new(seed);
        let mut below = |n: usize| (rng.next_unit() * n as f64) as usize;
        let script = Script {
            answers: Answers::Text,
            window: [None, Some(40), Some(150)][below(3)],
            max_sequences: 1 + below(6),
            max_rows: 8 + below(64),
            ..SCRIPT
        };
        let single = scripted_engine(Script {
            answers: Answers::Text,
            ..SCRIPT
        })
        .0;
        let engine = scripted_engine(script).0;
        let mut running = Vec::new();
        for _ in 0..40 {
            let mut text = prompt(below(3) as u64, 1 + below(250));
            text.extend(prompt(100 + below(3) as u64, below(50)));
            let n = 1 + below(150);
            let generation = engine.generate(text.clone(), up_to(n)).unwrap();
            match below(4) {
                0 => drop(generation),
                1 => {
                    thread::sleep(Duration::from_micros(below(2000) as u64));
                    drop(generation);
                }
                _ => running.push((generation, text, n)),
            }
        }
        for (generation, text, n) in running {
            assert_eq!(tokens(generation), answer(&single, &text, n));
        }
        // A request that runs alone ends after all that were dropped.
        engine
            .logits(vec![piece_token("Hi")])
            .unwrap()
            .wait()
            .unwrap();
        answer(&engine, &[7], 1);
        let metrics = engine.metrics();
        assert_eq!(metrics.pages_free + metrics.pages_cached, metrics.pages);
        assert_eq!((metrics.running, metrics.waiting), (0, 0));
        assert_eq!(metrics.started, metrics.ended);
    }
}
