//! Loading and running a real file, tiny and random.

use std::time::Duration;

use rsllm_cpu::Isa;
use rsllm_tensor::KvType;

use crate::TokenId;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::options::{GenerateOptions, LoadOptions};
use crate::sampling::SamplingOptions;
use crate::testing::{BOS, tiny_model};

fn greedy(max_tokens: usize) -> GenerateOptions {
    GenerateOptions {
        max_tokens: Some(max_tokens),
        ignore_eos: true,
        sampling: SamplingOptions::greedy(),
        ..GenerateOptions::default()
    }
}

fn generated(engine: &Engine, prompt: &[TokenId], options: GenerateOptions) -> Vec<TokenId> {
    let mut generation = engine.generate(prompt.to_vec(), options).unwrap();
    let mut ids = Vec::new();
    while let Some(piece) = generation.next_piece().unwrap() {
        ids.extend(piece.ids);
    }
    ids
}

fn prompt(n: usize) -> Vec<TokenId> {
    (0..n as TokenId)
        .map(|i| if i == 0 { BOS } else { 3 + i * 7 % 250 })
        .collect()
}

#[test]
fn the_report_says_what_was_loaded() {
    let file = tiny_model(300);
    let engine = Engine::load(
        &file.0,
        &LoadOptions {
            threads: Some(1),
            ..LoadOptions::default()
        },
    )
    .unwrap();
    let info = engine.info();
    assert_eq!(
        (info.context, info.context_reason.as_str()),
        (300, "the model's limit")
    );
    assert_eq!(
        (info.architecture.as_str(), info.n_layers, info.embed_dim),
        ("llama", 2, 128)
    );
    assert_eq!(
        (info.threads, info.isa, info.kv_type),
        (1, Isa::detect(), "f16")
    );
    // 320 tokens in whole pages, two layers, K and V, two heads of 32, two bytes.
    assert_eq!(info.kv_bytes, 320 * 2 * 2 * 2 * 32 * 2);
    assert!(
        info.weight_bytes > 0
            && info.weight_bytes < info.file_bytes
            && info.parameters * 4 == info.weight_bytes
    );
    assert!(info.warnings.is_empty(), "{:?}", info.warnings);
    assert_eq!(
        engine
            .file()
            .unwrap()
            .metadata()
            .u32("llama.block_count")
            .unwrap(),
        2
    );
}

#[test]
fn what_is_generated_is_what_the_logits_say() {
    let file = tiny_model(300);
    let engine = Engine::load(&file.0, &LoadOptions::default()).unwrap();
    let prompt = prompt(9);
    let ids = generated(&engine, &prompt, greedy(20));
    assert_eq!(ids.len(), 20);
    let all: Vec<TokenId> = prompt.iter().chain(&ids).copied().collect();
    let logits = engine
        .decode_logits(all, prompt.len())
        .unwrap()
        .wait()
        .unwrap();
    let end_tokens = engine.end_tokens();
    let rows = logits
        .chunks_exact(engine.info().vocab_size)
        .skip(prompt.len() - 1);
    for (row, id) in rows.zip(&ids) {
        let best = (0..row.len())
            .filter(|&i| !end_tokens.contains(&(i as TokenId)))
            .max_by(|&a, &b| row[a].total_cmp(&row[b]));
        assert_eq!(best, Some(*id as usize));
    }
}

#[test]
fn results_do_not_depend_on_threads_mapping_or_what_ran_before() {
    let file = tiny_model(1200);
    let base = LoadOptions {
        threads: Some(1),
        ..LoadOptions::default()
    };
    let engine = Engine::load(&file.0, &base).unwrap();
    // Longer than a step, and than several pages.
    let prompt = prompt(700);
    let expected = generated(&engine, &prompt, greedy(12));
    let expected_logits = engine.logits(prompt.clone()).unwrap().wait().unwrap();
    assert_eq!(generated(&engine, &prompt, greedy(12)), expected);
    for options in [
        LoadOptions {
            threads: Some(3),
            ..base.clone()
        },
        LoadOptions {
            mmap: false,
            ..base.clone()
        },
    ] {
        let other = Engine::load(&file.0, &options).unwrap();
        generated(&other, &prompt[..33], greedy(3));
        assert_eq!(generated(&other, &prompt, greedy(12)), expected);
        assert_eq!(
            other.logits(prompt.clone()).unwrap().wait().unwrap(),
            expected_logits
        );
    }
}

#[test]
fn a_reused_prefix_changes_no_bit() {
    let file = tiny_model(1200);
    let options = LoadOptions {
        threads: Some(2),
        ..LoadOptions::default()
    };
    let (reused, fresh) = (
        Engine::load(&file.0, &options).unwrap(),
        Engine::load(&file.0, &options).unwrap(),
    );
    let prompt = prompt(600);
    let first_logprobs = |engine: &Engine, prompt: &[TokenId]| {
        let options = GenerateOptions {
            logprobs: Some(100),
            ..greedy(1)
        };
        let mut generation = engine.generate(prompt.to_vec(), options).unwrap();
        let piece = generation.next_piece().unwrap();
        while generation.next_piece().unwrap().is_some() {}
        (
            piece.unwrap().logprobs,
            generation.stats(Duration::ZERO).cached_tokens,
        )
    };
    generated(&reused, &prompt[..523], greedy(30));
    for n in [600, 600, 530, 524] {
        let (logprobs, n_cached) = first_logprobs(&reused, &prompt[..n]);
        assert!(n_cached >= 523, "{n_cached} of {n}");
        fresh.logits(vec![BOS]).unwrap().wait().unwrap(); // forgets its prefix
        assert_eq!((logprobs, 0), first_logprobs(&fresh, &prompt[..n]));
    }
}

#[test]
fn every_kv_type_and_instruction_set_runs() {
    let file = tiny_model(128);
    for kv_type in KvType::ALL {
        for isa in Isa::available() {
            let options = LoadOptions {
                kv_type,
                isa: Some(isa),
                threads: Some(1),
                ..LoadOptions::default()
            };
            let engine = Engine::load(&file.0, &options).unwrap();
            assert_eq!(
                (engine.info().kv_type, engine.info().isa),
                (kv_type.name(), isa)
            );
            assert_eq!(generated(&engine, &prompt(4), greedy(4)).len(), 4);
        }
    }
}

#[test]
fn a_long_prefill_can_be_cancelled_and_the_engine_goes_on() {
    let file = tiny_model(4096);
    let engine = Engine::load(&file.0, &LoadOptions::default()).unwrap();
    let mut generation = engine.generate(prompt(4000), greedy(1)).unwrap();
    assert!(generation.next_timeout(Duration::from_millis(1)).is_ok());
    generation.cancel();
    while generation.next_piece().unwrap().is_some() {}
    assert_eq!(generated(&engine, &prompt(4), greedy(2)).len(), 2);
}

#[test]
fn bad_load_options_and_files_are_told_apart() {
    let file = tiny_model(128);
    let error = |options: &LoadOptions| Engine::load(&file.0, options).unwrap_err();
    let option_of = |options: &LoadOptions| match error(options) {
        EngineError::Option(error) => error.name,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        option_of(&LoadOptions {
            threads: Some(0),
            ..LoadOptions::default()
        }),
        "threads"
    );
    assert_eq!(
        option_of(&LoadOptions {
            context: Some(0),
            ..LoadOptions::default()
        }),
        "context"
    );
    let huge = LoadOptions {
        context: Some(2_000_000_000),
        ..LoadOptions::default()
    };
    assert!(matches!(
        error(&huge),
        EngineError::ContextMemory {
            context: 2_000_000_000,
            ..
        }
    ));
    assert!(matches!(
        Engine::load("/no/such/file", &LoadOptions::default()),
        Err(EngineError::Gguf(_))
    ));
    let longer = LoadOptions {
        context: Some(200),
        ..LoadOptions::default()
    };
    let engine = Engine::load(&file.0, &longer).unwrap();
    assert_eq!(
        engine.info().context_reason,
        "as requested; beyond the 128 tokens the model was trained for"
    );
}

#[test]
fn the_plan_is_what_loading_allocates() {
    let file = tiny_model(2048);
    for kv_type in KvType::ALL {
        let options = LoadOptions {
            kv_type,
            threads: Some(3),
            ..LoadOptions::default()
        };
        let plan = crate::plan(&file.0, &options).unwrap();
        let engine = Engine::load(&file.0, &options).unwrap();
        let of = |info: &crate::EngineInfo| {
            (
                info.weight_bytes,
                info.kv_bytes,
                info.scratch_bytes,
                info.context,
                info.context_reason.clone(),
            )
        };
        assert_eq!(of(&plan), of(engine.info()));
        assert!(plan.kv_bytes > 0 && plan.scratch_bytes > 0);
    }
}
