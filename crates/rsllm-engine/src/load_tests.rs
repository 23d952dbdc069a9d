//! Loading and running a real file, tiny and random.

use std::time::Duration;

use rsllm_cpu::Isa;
use rsllm_tensor::KvType;

use crate::TokenId;
use crate::embedding::Pooling;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::generation::Generation;
use crate::options::{GenerateOptions, LoadOptions};
use crate::sampling::{PositionLogprobs, SamplingOptions};
use crate::testing::{BOS, TempFile, tiny_model};

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

/// Log-probabilities of a generation, and how many tokens of the prompt were found in the cache.
fn numbers(engine: &Engine, prompt: &[TokenId], n: usize) -> (Vec<PositionLogprobs>, usize) {
    let options = GenerateOptions {
        logprobs: Some(50),
        ..greedy(n)
    };
    numbers_of(engine.generate(prompt.to_vec(), options).unwrap())
}

fn numbers_of(mut generation: Generation) -> (Vec<PositionLogprobs>, usize) {
    let mut all = Vec::new();
    while let Some(piece) = generation.next_piece().unwrap() {
        all.extend(piece.logprobs);
    }
    (all, generation.stats(Duration::ZERO).cached_tokens)
}

fn load(file: &TempFile, threads: usize) -> Engine {
    let options = LoadOptions {
        threads: Some(threads),
        ..LoadOptions::default()
    };
    Engine::load(&file.0, &options).unwrap()
}

/// Text of a sequence with its figures.
fn with_draft(
    engine: &Engine,
    prompt: &[TokenId],
    options: &GenerateOptions,
    max_draft: usize,
) -> (Vec<TokenId>, crate::generation::GenerationStats) {
    let options = GenerateOptions {
        max_draft,
        ..options.clone()
    };
    let mut generation = engine.generate(prompt.to_vec(), options).unwrap();
    let mut ids = Vec::new();
    while let Some(piece) = generation.next_piece().unwrap() {
        ids.extend(piece.ids);
    }
    (ids, generation.stats(Duration::from_secs(1)))
}

#[test]
fn drafts_change_no_token_and_some_come_true() {
    let file = tiny_model(400);
    let engine = load(&file, 1);
    let sampled = |temperature| GenerateOptions {
        sampling: SamplingOptions {
            temperature,
            seed: Some(3),
            ..SamplingOptions::default()
        },
        ..greedy(300)
    };
    // A random model soon repeats itself; a prompt that does makes it guess from the start.
    let repeated: Vec<TokenId> = (0..60)
        .map(|i| if i == 0 { BOS } else { 5 + i % 6 })
        .collect();
    let (mut drafted, mut accepted) = (0, 0);
    for options in [greedy(300), greedy(7), sampled(0.2), sampled(1.5)] {
        for prompt in [&prompt(20), &repeated, &prompt(390)] {
            let (plain, stats) = with_draft(&engine, prompt, &options, 0);
            assert_eq!((stats.drafted_tokens, stats.accepted_tokens), (0, 0));
            let (ids, stats) = with_draft(&engine, prompt, &options, 7);
            assert_eq!(ids, plain);
            assert_eq!(stats.generated_tokens, ids.len());
            assert!(stats.accepted_tokens <= stats.drafted_tokens);
            drafted += stats.drafted_tokens;
            accepted += stats.accepted_tokens;
        }
    }
    assert!(
        accepted > 0 && drafted > accepted,
        "{accepted} of {drafted}"
    );
    let metrics = engine.metrics();
    assert_eq!(metrics.pages_free + metrics.pages_cached, metrics.pages);
}

#[test]
fn a_reused_prefix_changes_no_bit() {
    let file = tiny_model(1200);
    let reused = load(&file, 2);
    let prompt = prompt(600);
    generated(&reused, &prompt[..523], greedy(30));
    for n in [600, 600, 530, 524] {
        let (logprobs, n_cached) = numbers(&reused, &prompt[..n], 1);
        assert!(n_cached >= 523, "{n_cached} of {n}");
        assert_eq!((logprobs, 0), numbers(&load(&file, 2), &prompt[..n], 1));
    }
}

#[test]
fn the_same_bits_alone_and_in_company() {
    let file = tiny_model(4096);
    // Of different lengths, so that prompts and generations overlap; none is a prefix of another.
    let prompts: Vec<Vec<TokenId>> = (0..16)
        .map(|i| {
            let mut prompt = prompt(5 + 11 * i);
            prompt[1] = 10 + i as TokenId;
            prompt
        })
        .collect();
    let alone: Vec<_> = {
        let engine = load(&file, 1);
        let numbers = |prompt: &Vec<TokenId>| numbers(&engine, prompt, 120).0;
        prompts.iter().map(numbers).collect()
    };
    for threads in [1, 2] {
        let engine = load(&file, threads);
        let generations: Vec<Generation> = prompts
            .iter()
            .map(|prompt| {
                let options = GenerateOptions {
                    logprobs: Some(50),
                    ..greedy(120)
                };
                engine.generate(prompt.clone(), options).unwrap()
            })
            .collect();
        let together: Vec<_> = (generations.into_iter())
            .map(|generation| numbers_of(generation).0)
            .collect();
        assert!(together == alone, "{threads} threads");
        let metrics = engine.metrics();
        assert!(metrics.batch_sizes[4] > 0, "{metrics:?}");
    }
}

#[test]
fn a_sequence_that_gave_its_pages_away_continues_with_the_same_bits() {
    let file = tiny_model(512);
    let prompts: Vec<Vec<TokenId>> = (0..6)
        .map(|i| {
            let mut prompt = prompt(50 + 9 * i);
            prompt[1] = 10 + i as TokenId;
            prompt
        })
        .collect();
    // Together they need three times the pages of a context.
    let engine = load(&file, 2);
    let options = || GenerateOptions {
        logprobs: Some(50),
        ..greedy(160)
    };
    let generations: Vec<Generation> = prompts
        .iter()
        .map(|prompt| engine.generate(prompt.clone(), options()).unwrap())
        .collect();
    for (generation, prompt) in generations.into_iter().zip(&prompts) {
        let (numbers_together, _) = numbers_of(generation);
        assert!(numbers_together == numbers(&load(&file, 1), prompt, 160).0);
    }
    let metrics = engine.metrics();
    assert!(metrics.preempted > 0, "{metrics:?}");
    assert_eq!(metrics.pages_free + metrics.pages_cached, metrics.pages);
}

#[test]
fn embeddings_are_rows_of_the_last_layer() {
    let file = tiny_model(300);
    let engine = load(&file, 2);
    let texts = vec![prompt(5), prompt(150)];
    let embed = |pooling, normalise| {
        let reply = engine.embed(texts.clone(), pooling, normalise).unwrap();
        reply.wait().unwrap()
    };
    let all = embed(Pooling::None, false);
    let rows: Vec<&[f32]> = all.chunks_exact(128).collect();
    assert_eq!(rows.len(), 155);
    assert_eq!(embed(Pooling::Last, false), [rows[4], rows[154]].concat());
    assert_eq!(embed(Pooling::Cls, false), [rows[0], rows[5]].concat());
    assert_eq!(rows[0], rows[5], "both begin alike");
    let mean = embed(Pooling::Mean, true);
    for row in mean.chunks_exact(128) {
        let length: f32 = row.iter().map(|value| value * value).sum();
        assert!((length - 1.0).abs() < 1e-4);
    }
    assert_eq!(mean.len(), 2 * 128);
    assert!(engine.embed(vec![vec![]], Pooling::Mean, true).is_err());
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

#[test]
fn a_plan_says_what_a_context_needs_even_if_it_does_not_fit() {
    let file = tiny_model(128);
    let options = LoadOptions {
        context: Some(1 << 27),
        ..LoadOptions::default()
    };
    let plan = crate::plan(&file.0, &options).unwrap();
    assert!(plan.kv_bytes >= 1 << 36);
    assert!(Engine::load(&file.0, &options).is_err());
}

#[test]
fn ranking_needs_a_head() {
    let file = tiny_model(128);
    let engine = load(&file, 1);
    let error = engine
        .embed(vec![prompt(5)], Pooling::Rank, false)
        .unwrap_err()
        .to_string();
    assert!(error.contains("cls.output.weight"), "{error}");
}
