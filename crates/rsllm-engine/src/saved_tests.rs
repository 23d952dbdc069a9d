//! Prefixes that travel from engine to engine.

use std::time::Duration;

use rsllm_model::PAGE_LEN;
use rsllm_tensor::KvType;

use crate::TokenId;
use crate::engine::Engine;
use crate::error::{EngineError, ErrorClass};
use crate::options::{GenerateOptions, LoadOptions};
use crate::sampling::{PositionLogprobs, SamplingOptions};
use crate::saved::SavedPrefixError;
use crate::testing::{Answers, BOS, Script, TempFile, scripted_engine, tiny_model};

fn prompt(n: usize) -> Vec<TokenId> {
    (0..n as TokenId)
        .map(|i| if i == 0 { BOS } else { 3 + i * 7 % 250 })
        .collect()
}

/// Log-probabilities of `n` tokens behind a prompt, and how much of it was in the cache.
fn numbers(engine: &Engine, prompt: &[TokenId], n: usize) -> (Vec<PositionLogprobs>, usize) {
    let options = GenerateOptions {
        max_tokens: Some(n),
        ignore_eos: true,
        logprobs: Some(20),
        sampling: SamplingOptions::greedy(),
        ..GenerateOptions::default()
    };
    let mut generation = engine.generate(prompt.to_vec(), options).unwrap();
    let mut all = Vec::new();
    while let Some(piece) = generation.next_piece().unwrap() {
        all.extend(piece.logprobs);
    }
    (all, generation.stats(Duration::ZERO).cached_tokens)
}

fn load(file: &TempFile, kv_type: KvType) -> Engine {
    let options = LoadOptions {
        kv_type,
        threads: Some(1),
        ..LoadOptions::default()
    };
    Engine::load(&file.0, &options).unwrap()
}

fn saved(engine: &Engine, ids: &[TokenId]) -> Vec<u8> {
    engine.save_prefix(ids).unwrap().wait().unwrap()
}

fn restored(engine: &Engine, bytes: &[u8]) -> usize {
    let reply = engine.restore_prefix(bytes.to_vec()).unwrap();
    reply.wait().unwrap()
}

#[test]
fn a_restored_prefix_is_found_and_changes_no_bit() {
    let file = tiny_model(1200);
    let prompt = prompt(600);
    for kv_type in KvType::ALL {
        let first = load(&file, kv_type);
        let expected = numbers(&first, &prompt, 5).0;
        // Known ones and computed ones are the same.
        let bytes = saved(&first, &prompt);
        assert!(bytes == saved(&load(&file, kv_type), &prompt[..590]));
        let second = load(&file, kv_type);
        assert_eq!(restored(&second, &bytes), 576);
        assert_eq!(numbers(&second, &prompt, 5), (expected, 576));
        // Twice is once.
        assert_eq!(restored(&second, &bytes), 576);
        let metrics = second.metrics();
        assert_eq!(metrics.pages_free + metrics.pages_cached, metrics.pages);
        assert!(metrics.pages_cached <= 10, "{metrics:?}");
    }
}

#[test]
fn what_belongs_elsewhere_is_refused() {
    let (file, longer) = (tiny_model(1200), tiny_model(1300));
    let engine = load(&file, KvType::F16);
    let bytes = saved(&engine, &prompt(200));
    let refused = |engine: &Engine, bytes: &[u8]| {
        let error = engine.restore_prefix(bytes.to_vec()).unwrap_err();
        assert!(matches!(
            error.class(),
            ErrorClass::Option { name: "prefix" }
        ));
        match error {
            EngineError::SavedPrefix(error) => error,
            other => panic!("{other:?}"),
        }
    };
    let other = load(&longer, KvType::F16);
    assert_eq!(refused(&other, &bytes), SavedPrefixError::Model);
    let other = load(&file, KvType::Q8_0);
    let expected = SavedPrefixError::KvType { expected: "q8_0" };
    assert_eq!(refused(&other, &bytes), expected);
    for at in (0..bytes.len()).step_by(1009) {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1;
        refused(&engine, &flipped);
        refused(&engine, &bytes[..at]);
    }
    assert!(matches!(
        engine.save_prefix(&prompt(PAGE_LEN - 1)),
        Err(EngineError::ShortPrefix { n_tokens: 63, .. })
    ));
}

#[test]
fn windowed_layers_travel_too() {
    for window in [None, Some(3), Some(64), Some(100)] {
        let engine = || {
            scripted_engine(Script {
                window,
                context: 512,
                answers: Answers::Text,
                max_rows: 50,
                ..Script::default()
            })
        };
        let text = prompt(300);
        let bytes = saved(&engine().0, &text);
        let (second, steps) = engine();
        assert_eq!(restored(&second, &bytes), 256);
        let mut generation = second
            .generate(text.clone(), GenerateOptions::default())
            .unwrap();
        generation.next_piece().unwrap();
        assert_eq!(generation.stats(Duration::ZERO).cached_tokens, 0);
        assert_eq!(steps.lock().unwrap()[0].1, 256);
    }
}

#[test]
fn a_restored_prefix_pushes_out_what_nobody_uses_but_nothing_else() {
    let script = || Script {
        context: 256,
        answers: Answers::Text,
        max_rows: 64,
        max_sequences: 2,
        step_time: Duration::from_millis(1),
        ..Script::default()
    };
    let bytes = saved(&scripted_engine(script()).0, &prompt(256));
    let (engine, _) = scripted_engine(script());
    let running = engine
        .generate(prompt(70)[1..].to_vec(), GenerateOptions::default())
        .unwrap();
    let mut running = running;
    running.next_piece().unwrap();
    let reply = engine.restore_prefix(bytes.clone()).unwrap().wait();
    assert!(matches!(reply, Err(EngineError::Model(_))), "{reply:?}");
    drop(running);
    engine.logits(vec![BOS]).unwrap().wait().unwrap();
    assert_eq!(restored(&engine, &bytes), 256);
}

#[test]
fn a_folder_keeps_prefixes_and_one_damaged_file_hinders_no_other() {
    let file = tiny_model(1200);
    let folder = file.0.with_extension("prefixes");
    let engine = load(&file, KvType::F16);
    assert!(engine.restore_folder(&folder).unwrap().is_empty());
    let (a, b) = (prompt(200), [&[BOS, 9][..], &prompt(200)].concat());
    let first = engine.persist_prefix(&a, &folder).unwrap();
    assert_eq!(engine.persist_prefix(&a, &folder).unwrap(), first);
    engine.persist_prefix(&b, &folder).unwrap();
    let foreign = folder.join("0000000000000000-0000000000000000.rsllm-kv");
    std::fs::write(foreign, "other").unwrap();
    std::fs::write(&first, &std::fs::read(&first).unwrap()[1..]).unwrap();
    let engine = load(&file, KvType::F16);
    let files = engine.restore_folder(&folder).unwrap();
    assert_eq!(files.len(), 2);
    let broken = files.iter().find(|file| file.path == first).unwrap();
    assert!(matches!(broken.result, Err(EngineError::SavedPrefix(_))));
    assert_eq!(numbers(&engine, &a, 1).1, 1, "the first token is known");
    assert_eq!(numbers(&engine, &b, 1).1, 192);
    std::fs::remove_dir_all(folder).unwrap();
}
