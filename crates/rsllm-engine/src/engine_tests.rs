//! The engine's behaviour towards its callers, on a scripted model: text, ends, cancelling, failures, closing.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::TokenId;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::forward::Phase;
use crate::generation::{FinishReason, Generation, GenerationStats, Next, Piece};
use crate::options::GenerateOptions;
use crate::sampling::SamplingOptions;
use crate::testing::{BOS, EOS, Fault, Script, byte_token, piece_token, scripted_engine};

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

fn pieces_script(texts: &[&str]) -> Script {
    let tokens = texts
        .iter()
        .map(|text| piece_token(text))
        .chain([EOS])
        .collect();
    Script {
        tokens,
        ..Script::default()
    }
}

pub(crate) fn greedy() -> GenerateOptions {
    GenerateOptions {
        sampling: SamplingOptions::greedy(),
        ..GenerateOptions::default()
    }
}

fn with_stop(stop: &[&str]) -> GenerateOptions {
    GenerateOptions {
        stop: stop.iter().map(ToString::to_string).collect(),
        ..greedy()
    }
}

pub(crate) fn read(
    mut generation: Generation,
) -> Result<(Vec<Piece>, GenerationStats), EngineError> {
    let mut pieces = Vec::new();
    while let Some(piece) = generation.next_piece()? {
        pieces.push(piece);
    }
    Ok((pieces, generation.stats(Duration::ZERO)))
}

fn run(engine: &Engine, options: GenerateOptions) -> (Vec<Piece>, GenerationStats) {
    read(engine.generate(vec![BOS, 5, 6], options).unwrap()).unwrap()
}

fn texts(pieces: &[Piece]) -> Vec<&str> {
    pieces.iter().map(|piece| piece.text.as_str()).collect()
}

pub(crate) fn ids(pieces: &[Piece]) -> Vec<TokenId> {
    pieces
        .iter()
        .flat_map(|piece| piece.ids.iter().copied())
        .collect()
}

/// Waits until the engine has begun a step.
pub(crate) fn wait_for_step(steps: &crate::testing::Steps) {
    let deadline = Instant::now() + PATIENCE;
    while steps.lock().unwrap().is_empty() {
        assert!(Instant::now() < deadline, "the engine does not start");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn an_end_token_stops_and_is_not_text() {
    let (engine, steps) = scripted_engine(pieces_script(&["Hi", " hello", " world"]));
    let (pieces, stats) = run(&engine, greedy());
    assert_eq!(texts(&pieces), ["Hi", " hello", " world"]);
    assert_eq!(ids(&pieces), ["Hi", " hello", " world"].map(piece_token));
    assert_eq!(
        (stats.finish_reason, stats.stop_text),
        (FinishReason::Stop, None)
    );
    assert_eq!(
        (
            stats.prompt_tokens,
            stats.generated_tokens,
            stats.cached_tokens
        ),
        (3, 3, 0)
    );
    assert!(stats.first_token_ns > 0 && stats.first_token_ns <= stats.total_ns);
    assert!(stats.queue_ns + stats.prefill_ns + stats.decode_ns <= stats.total_ns);
    let decode = |index| (Phase::Decode, index, 1);
    assert_eq!(
        *steps.lock().unwrap(),
        [(Phase::Prefill, 0, 3), decode(3), decode(4), decode(5)]
    );
}

#[test]
fn a_long_prompt_is_prefilled_in_chunks() {
    let (engine, steps) = scripted_engine(pieces_script(&[]));
    read(engine.generate(vec![7; 10], greedy()).unwrap()).unwrap();
    let expected = [
        (Phase::Prefill, 0, 4),
        (Phase::Prefill, 4, 4),
        (Phase::Prefill, 8, 2),
    ];
    assert_eq!(*steps.lock().unwrap(), expected);
}

#[test]
fn a_prompt_is_computed_from_where_it_differs_from_the_last() {
    let (engine, steps) = scripted_engine(pieces_script(&["Hi"]));
    let cached = |prompt: &[TokenId]| {
        steps.lock().unwrap().clear();
        let stats = read(engine.generate(prompt.to_vec(), greedy()).unwrap())
            .unwrap()
            .1;
        let prefilled = steps
            .lock()
            .unwrap()
            .iter()
            .filter(|step| step.0 == Phase::Prefill)
            .map(|step| step.2)
            .sum();
        let prefilled: usize = prefilled;
        assert_eq!(stats.cached_tokens + prefilled, prompt.len());
        stats.cached_tokens
    };
    assert_eq!(cached(&[1, 10, 11, 12, 13, 14]), 0);
    assert_eq!(cached(&[1, 10, 11, 12, 13, 14]), 5);
    // What was decoded behind a prompt counts too.
    assert_eq!(cached(&[1, 10, 11, 12, 13, 14, piece_token("Hi"), 15]), 7);
    assert_eq!(cached(&[1, 10, 20, 21]), 2);
    assert_eq!(cached(&[1, 10, 11]), 2);
    engine.logits(vec![1, 10]).unwrap().wait().unwrap();
    assert_eq!(cached(&[1, 10, 11]), 0);
}

#[test]
fn a_failed_step_leaves_nothing_to_reuse() {
    // The second chunk of the first prompt fails.
    let script = Script {
        fault: Some((1, Fault::Panic)),
        ..pieces_script(&["Hi"])
    };
    let (engine, _) = scripted_engine(script);
    let prompt: Vec<TokenId> = (10..19).collect();
    assert!(read(engine.generate(prompt.clone(), greedy()).unwrap()).is_err());
    let stats = read(engine.generate(prompt, greedy()).unwrap()).unwrap().1;
    assert_eq!(stats.cached_tokens, 4);
}

#[test]
fn a_stop_string_inside_a_token_cuts_it() {
    let (engine, _) = scripted_engine(pieces_script(&[" is", " not", " it"]));
    let (pieces, stats) = run(&engine, with_stop(&["ot"]));
    assert_eq!(texts(&pieces), [" is", " n"]);
    assert_eq!(ids(&pieces), [" is", " not"].map(piece_token));
    assert_eq!(
        (stats.finish_reason, stats.stop_text.as_deref()),
        (FinishReason::Stop, Some("ot"))
    );
}

#[test]
fn a_stop_string_over_tokens_never_leaks_but_its_tokens_are_reported() {
    let (engine, _) = scripted_engine(pieces_script(&["Hi", "\nUs", "er", ":", " x"]));
    let (pieces, stats) = run(&engine, with_stop(&["\nUser:"]));
    assert_eq!(texts(&pieces), ["Hi", ""]);
    assert_eq!(ids(&pieces), ["Hi", "\nUs", "er", ":"].map(piece_token));
    assert_eq!(stats.generated_tokens, 4);
}

#[test]
fn held_text_is_released_at_the_end() {
    let (engine, _) = scripted_engine(pieces_script(&["Hi", "\nUs"]));
    let (pieces, stats) = run(&engine, with_stop(&["\nUser:"]));
    assert_eq!(texts(&pieces), ["Hi", "\nUs"]);
    assert_eq!(stats.stop_text, None);
}

#[test]
fn characters_leave_whole_with_all_their_tokens() {
    let llama = "🦙".bytes().map(byte_token);
    let tokens: Vec<TokenId> = llama.chain([byte_token(0xC3), EOS]).collect();
    let (engine, _) = scripted_engine(Script {
        tokens: tokens.clone(),
        ..Script::default()
    });
    let (pieces, _) = run(&engine, greedy());
    assert_eq!(texts(&pieces), ["🦙", "\u{fffd}"]);
    assert_eq!((pieces[0].ids.len(), pieces[1].ids.len()), (4, 1));
    assert_eq!(ids(&pieces), tokens[..5]);
}

#[test]
fn max_tokens_is_exact() {
    for max_tokens in [0, 1, 2, 5] {
        let (engine, _) = scripted_engine(Script {
            tokens: vec![piece_token("Hi")],
            ..Script::default()
        });
        let (pieces, stats) = run(
            &engine,
            GenerateOptions {
                max_tokens: Some(max_tokens),
                ..greedy()
            },
        );
        assert_eq!(ids(&pieces).len(), max_tokens);
        assert_eq!(
            (stats.finish_reason, stats.generated_tokens),
            (FinishReason::Length, max_tokens)
        );
    }
}

#[test]
fn a_full_context_ends_the_generation() {
    let script = Script {
        tokens: vec![piece_token("Hi")],
        context: 8,
        ..Script::default()
    };
    let (engine, steps) = scripted_engine(script);
    let (pieces, stats) = run(&engine, greedy());
    // Five tokens have a place behind the prompt; a sixth can be drawn.
    assert_eq!(
        (ids(&pieces).len(), stats.finish_reason),
        (6, FinishReason::Context)
    );
    assert_eq!(steps.lock().unwrap().last(), Some(&(Phase::Decode, 7, 1)));
    let full = read(engine.generate(vec![7; 8], greedy()).unwrap()).unwrap();
    assert_eq!(
        (ids(&full.0).len(), full.1.finish_reason),
        (1, FinishReason::Context)
    );
}

#[test]
fn ignoring_the_end_never_draws_an_end_token() {
    let (engine, _) = scripted_engine(Script {
        tokens: vec![EOS],
        ..Script::default()
    });
    let options = GenerateOptions {
        ignore_eos: true,
        max_tokens: Some(6),
        ..GenerateOptions::default()
    };
    let (pieces, stats) = run(&engine, options);
    assert!(!ids(&pieces).contains(&EOS));
    assert_eq!(
        (stats.finish_reason, stats.generated_tokens),
        (FinishReason::Length, 6)
    );
}

#[test]
fn logprobs_come_with_their_tokens() {
    let (engine, _) = scripted_engine(pieces_script(&["\nUs", "er", "Hi"]));
    let options = GenerateOptions {
        logprobs: Some(2),
        ..with_stop(&["\nUser:"])
    };
    let (pieces, _) = run(&engine, options);
    for piece in &pieces {
        let chosen: Vec<TokenId> = piece
            .logprobs
            .iter()
            .map(|position| position.chosen.id)
            .collect();
        assert_eq!(chosen, piece.ids);
        assert!(
            piece
                .logprobs
                .iter()
                .all(|position| position.top.len() == 2 && position.top[0] == position.chosen)
        );
    }
    assert_eq!(ids(&pieces).len(), 3);
}

#[test]
fn impossible_requests_are_refused_with_the_numbers() {
    let (engine, steps) = scripted_engine(Script {
        tokens: vec![EOS],
        context: 8,
        ..Script::default()
    });
    let error = engine.generate(vec![7; 9], greedy()).unwrap_err();
    assert!(matches!(
        error,
        EngineError::ContextLength {
            prompt_tokens: 9,
            context: 8
        }
    ));
    assert!(matches!(
        engine.generate(vec![], greedy()),
        Err(EngineError::EmptyPrompt)
    ));
    assert!(matches!(
        engine.logits(vec![1, 9999]),
        Err(EngineError::TokenOutOfRange { id: 9999, .. })
    ));
    let bad = |change: fn(&mut GenerateOptions)| {
        let mut options = greedy();
        change(&mut options);
        match engine.generate(vec![7], options) {
            Err(EngineError::Option(error)) => error.name,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(bad(|options| options.sampling.top_p = f32::NAN), "top_p");
    assert_eq!(bad(|options| options.logprobs = Some(1000)), "logprobs");
    assert_eq!(
        bad(|options| options.max_tokens = Some(1 << 40)),
        "max_tokens"
    );
    assert_eq!(bad(|options| options.stop = vec![String::new()]), "stop");
    assert!(engine.bench(5, 5, 4).is_err() && engine.decode_logits(vec![1, 2], 3).is_err());
    assert!(steps.lock().unwrap().is_empty());
}

#[test]
fn cancelling_stops_a_long_step_at_once() {
    let script = Script {
        tokens: vec![piece_token("Hi")],
        step_time: PATIENCE,
        ..Script::default()
    };
    let (engine, steps) = scripted_engine(script);
    let mut generation = engine.generate(vec![7], greedy()).unwrap();
    wait_for_step(&steps);
    let start = Instant::now();
    generation.cancel();
    assert!(generation.next_piece().unwrap().is_none());
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!(
        generation.stats(PATIENCE).finish_reason,
        FinishReason::Cancelled
    );
}

#[test]
fn a_dropped_generation_frees_the_engine_and_a_queued_one_never_starts() {
    let script = Script {
        tokens: vec![piece_token("Hi")],
        step_time: Duration::from_millis(20),
        ..Script::default()
    };
    let (engine, steps) = scripted_engine(script);
    let endless = engine.generate(vec![7], greedy()).unwrap();
    let queued = engine.generate(vec![7, 7], greedy()).unwrap();
    wait_for_step(&steps);
    drop(queued);
    drop(endless);
    let options = GenerateOptions {
        max_tokens: Some(1),
        ..greedy()
    };
    read(engine.generate(vec![7, 7, 7], options).unwrap()).unwrap();
    assert!(
        !steps.lock().unwrap().iter().any(|step| step.2 == 2),
        "the queued prompt was computed"
    );
}

#[test]
fn waiting_can_be_cut_into_slices() {
    let script = Script {
        step_time: Duration::from_millis(100),
        ..pieces_script(&["Hi"])
    };
    let (engine, _) = scripted_engine(script);
    let mut generation = engine.generate(vec![7], greedy()).unwrap();
    let mut pending = 0;
    loop {
        match generation.next_timeout(Duration::from_millis(10)).unwrap() {
            Next::Pending => pending += 1,
            Next::Piece(piece) => assert_eq!(piece.text, "Hi"),
            Next::End => break,
        }
    }
    assert!(pending > 0 && generation.is_ended());
    assert!(matches!(generation.next_timeout(PATIENCE), Ok(Next::End)));
}

#[test]
fn a_panic_fails_its_own_request_only() {
    let script = Script {
        fault: Some((1, Fault::Panic)),
        ..pieces_script(&["Hi", " hello"])
    };
    let (engine, _) = scripted_engine(script);
    let mut generation = engine.generate(vec![7], greedy()).unwrap();
    assert_eq!(generation.next_piece().unwrap().unwrap().text, "Hi");
    match generation.next_piece() {
        Err(EngineError::Panicked { message }) => assert_eq!(message, "scripted panic"),
        other => panic!("{other:?}"),
    }
    assert!(generation.next_piece().unwrap().is_none());
    assert_eq!(
        generation.stats(PATIENCE).finish_reason,
        FinishReason::Error
    );
    assert_eq!(texts(&run(&engine, greedy()).0), ["Hi", " hello"]);
}

#[test]
fn a_logit_that_is_no_number_is_an_error() {
    let script = Script {
        fault: Some((0, Fault::NanLogit)),
        ..pieces_script(&["Hi"])
    };
    let (engine, _) = scripted_engine(script);
    let error = read(engine.generate(vec![7], greedy()).unwrap()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the logit of token 5 is not a number; the model file or a kernel is faulty"
    );
}

#[test]
fn closing_ends_everything_and_says_so() {
    let script = Script {
        tokens: vec![piece_token("Hi")],
        step_time: PATIENCE,
        ..Script::default()
    };
    let (engine, steps) = scripted_engine(script);
    let running = engine.generate(vec![7], greedy()).unwrap();
    let queued = engine.generate(vec![7], greedy()).unwrap();
    let logits = engine.logits(vec![7]).unwrap();
    wait_for_step(&steps);
    let start = Instant::now();
    engine.close();
    engine.close();
    assert!(start.elapsed() < Duration::from_secs(5));
    assert!(matches!(read(running), Err(EngineError::Closed)));
    assert!(matches!(read(queued), Err(EngineError::Closed)));
    assert!(matches!(logits.wait(), Err(EngineError::Closed)));
    assert!(matches!(
        engine.generate(vec![7], greedy()),
        Err(EngineError::Closed)
    ));
    assert!(engine.tokenizer().is_err() && engine.file().is_err() && !engine.is_open());
}

#[test]
fn dropping_the_engine_does_not_wait_for_its_work() {
    let script = Script {
        tokens: vec![piece_token("Hi")],
        step_time: PATIENCE,
        ..Script::default()
    };
    let (engine, steps) = scripted_engine(script);
    let mut generation = engine.generate(vec![7], greedy()).unwrap();
    wait_for_step(&steps);
    let start = Instant::now();
    drop(engine);
    assert!(start.elapsed() < Duration::from_secs(5));
    assert!(matches!(generation.next_piece(), Err(EngineError::Closed)));
}

#[test]
fn many_threads_share_one_engine() {
    let (engine, _) = scripted_engine(pieces_script(&["Hi", " hello", " world"]));
    let engine = Arc::new(engine);
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let engine = Arc::clone(&engine);
            thread::spawn(move || texts(&run(&engine, greedy()).0).concat())
        })
        .collect();
    for thread in threads {
        assert_eq!(thread.join().unwrap(), "Hi hello world");
    }
}

#[test]
fn logits_come_for_every_position_in_order() {
    let (engine, steps) = scripted_engine(Script {
        tokens: vec![EOS],
        ..Script::default()
    });
    let ids: Vec<TokenId> = (10..18).collect();
    let vocab_size = engine.info().vocab_size;
    let all = engine
        .decode_logits(ids.clone(), 5)
        .unwrap()
        .wait()
        .unwrap();
    let rows: Vec<f32> = all
        .chunks_exact(vocab_size)
        .map(|row| row[0] * 1000.0)
        .collect();
    assert_eq!(rows.len(), 8);
    assert!(
        rows.iter()
            .zip(&ids)
            .all(|(row, id)| (row - *id as f32).abs() < 0.01)
    );
    let expected = [
        (Phase::Prefill, 0, 3),
        (Phase::Prefill, 3, 2),
        (Phase::Decode, 5, 3),
    ];
    assert_eq!(*steps.lock().unwrap(), expected);
}

#[test]
fn bench_measures_behind_the_depth() {
    let script = Script {
        tokens: vec![EOS],
        step_time: Duration::from_millis(2),
        ..Script::default()
    };
    let (engine, steps) = scripted_engine(script);
    let times = engine.bench(6, 2, 5).unwrap().wait().unwrap();
    assert_eq!((times.prompt_tokens, times.generate_tokens), (6, 2));
    assert!(times.prompt_ns >= 4_000_000 && times.generate_ns >= 4_000_000);
    let prefill = |index, n| (Phase::Prefill, index, n);
    let decode = |index| (Phase::Decode, index, 1);
    let expected = [
        prefill(0, 4),
        prefill(4, 1),
        prefill(5, 4),
        prefill(9, 2),
        decode(5),
        decode(6),
    ];
    assert_eq!(*steps.lock().unwrap(), expected);
    let nothing = engine.bench(0, 0, 0).unwrap().wait().unwrap();
    assert_eq!((nothing.prompt_ns, nothing.generate_ns), (0, 0));
}
