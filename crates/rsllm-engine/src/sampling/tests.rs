//! The chain as a whole: order, defaults, seeds, and draws against the f64 reference.

use proptest::prelude::*;

use super::reference::{Reference, chi_square, mixed_logits};
use super::*;

fn kinds(chain: &SamplerChain) -> Vec<StepKind> {
    chain
        .steps
        .iter()
        .map(|step| match step {
            Step::LogitBias(_) => StepKind::LogitBias,
            Step::Penalties(_) => StepKind::Penalties,
            Step::TopK(_) => StepKind::TopK,
            Step::Typical(_) => StepKind::Typical,
            Step::TopP(_) => StepKind::TopP,
            Step::MinP(_) => StepKind::MinP,
            Step::Temperature(_) => StepKind::Temperature,
        })
        .collect()
}

fn sampler(options: &SamplingOptions, vocab_size: usize) -> Sampler {
    Sampler::new(options, vocab_size, 4096).unwrap()
}

fn draws(options: &SamplingOptions, logits: &[f32], n: usize) -> Vec<TokenId> {
    let mut sampler = sampler(options, logits.len());
    (0..n).map(|_| sampler.sample(logits).unwrap()).collect()
}

#[test]
fn neutral_options_leave_no_steps() {
    let neutral = SamplingOptions {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        typical_p: 1.0,
        ..SamplingOptions::default()
    };
    assert_eq!(kinds(&SamplerChain::new(&neutral, &DEFAULT_ORDER, 100)), []);
    let defaults = SamplerChain::new(&SamplingOptions::default(), &DEFAULT_ORDER, 100);
    assert_eq!(
        kinds(&defaults),
        [
            StepKind::TopK,
            StepKind::TopP,
            StepKind::MinP,
            StepKind::Temperature
        ]
    );
}

/// Whatever the chain: only the allowed tokens exist.
#[test]
fn drawing_within_a_mask_is_drawing_from_masked_logits() {
    let logits = mixed_logits(1000, 5);
    let allowed = TokenMask::of(1000, (0..1000).filter(|id| id % 7 == 3));
    let mut masked = logits.clone();
    allowed.apply(&mut masked);
    for options in [
        SamplingOptions::default(),
        SamplingOptions::greedy(),
        SamplingOptions {
            temperature: 1.3,
            top_k: 0,
            typical_p: 0.9,
            repeat_penalty: 1.2,
            ..SamplingOptions::default()
        },
    ] {
        let options = SamplingOptions {
            seed: Some(11),
            ..options
        };
        let (mut within, mut from_masked) = (sampler(&options, 1000), sampler(&options, 1000));
        for _ in 0..200 {
            let id = within.sample_within(&logits, &allowed).unwrap();
            assert!(allowed.allows(id));
            assert_eq!(Ok(id), from_masked.sample(&masked));
            within.accept(id);
            from_masked.accept(id);
        }
    }
}

#[test]
fn every_step_has_its_place_and_the_order_is_data() {
    let options = SamplingOptions {
        logit_bias: vec![(3, 0.5)],
        repeat_penalty: 1.1,
        typical_p: 0.9,
        ..SamplingOptions::default()
    };
    assert_eq!(
        kinds(&SamplerChain::new(&options, &DEFAULT_ORDER, 100)),
        DEFAULT_ORDER
    );
    let mut reversed = DEFAULT_ORDER;
    reversed.reverse();
    assert_eq!(
        kinds(&SamplerChain::new(&options, &reversed, 100)),
        reversed
    );
}

#[test]
fn temperature_zero_keeps_only_what_can_change_the_answer() {
    let options = SamplingOptions {
        temperature: 0.0,
        ..SamplingOptions::default()
    };
    assert_eq!(kinds(&SamplerChain::new(&options, &DEFAULT_ORDER, 100)), []);
    let penalised = SamplingOptions {
        presence_penalty: 3.0,
        ..options.clone()
    };
    assert_eq!(
        kinds(&SamplerChain::new(&penalised, &DEFAULT_ORDER, 100)),
        [StepKind::Penalties]
    );
    let mut sampler = sampler(&penalised, 3);
    assert_eq!(sampler.sample(&[1.0, 2.0, 0.0]), Ok(1));
    sampler.accept(1);
    assert_eq!(sampler.sample(&[1.0, 2.0, 0.0]), Ok(0));
    let typical = SamplingOptions {
        typical_p: 0.5,
        ..options
    };
    assert!(kinds(&SamplerChain::new(&typical, &DEFAULT_ORDER, 100)).contains(&StepKind::TopK));
}

#[test]
fn seeds_reproduce_and_differ() {
    let logits = mixed_logits(300, 1);
    let with_seed = |seed| SamplingOptions {
        temperature: 0.7,
        seed: Some(seed),
        ..SamplingOptions::default()
    };
    assert_eq!(
        draws(&with_seed(5), &logits, 50),
        draws(&with_seed(5), &logits, 50)
    );
    assert_ne!(
        draws(&with_seed(5), &logits, 50),
        draws(&with_seed(6), &logits, 50)
    );
    let greedy = |seed| SamplingOptions {
        temperature: 0.0,
        seed: Some(seed),
        ..SamplingOptions::default()
    };
    assert_eq!(draws(&greedy(5), &logits, 5), draws(&greedy(6), &logits, 5));
}

#[test]
fn a_drawn_seed_is_reported_and_reproduces() {
    let logits = mixed_logits(300, 2);
    let mut first = sampler(&SamplingOptions::default(), 300);
    let reported = SamplingOptions {
        seed: Some(first.seed()),
        ..SamplingOptions::default()
    };
    let drawn: Vec<TokenId> = (0..30).map(|_| first.sample(&logits).unwrap()).collect();
    assert_eq!(draws(&reported, &logits, 30), drawn);
}

#[test]
fn known_draws_stay_the_same() {
    // Guards the promise that a seed keeps its meaning; not to be updated lightly.
    let logits: Vec<f32> = (0..100_u16).map(|i| f32::from(i % 17) / 3.0).collect();
    let options = SamplingOptions {
        seed: Some(42),
        ..SamplingOptions::default()
    };
    assert_eq!(draws(&options, &logits, 8), KNOWN_DRAWS);
}

const KNOWN_DRAWS: [TokenId; 8] = [83, 33, 99, 67, 82, 64, 16, 65];

#[test]
fn the_default_chain_draws_its_distribution() {
    let n_tokens = 400;
    let logits = mixed_logits(n_tokens, 3);
    let options = SamplingOptions {
        typical_p: 0.97,
        seed: Some(11),
        ..SamplingOptions::default()
    };
    let mut reference = Reference::new(&logits);
    reference.top_k(options.top_k);
    reference.typical(f64::from(options.typical_p));
    reference.top_p(f64::from(options.top_p));
    reference.min_p(f64::from(options.min_p));
    reference.temperature(f64::from(options.temperature));
    let expected = reference.probabilities(n_tokens);

    let mut sampler = sampler(&options, n_tokens);
    for (ours, theirs) in sampler
        .probabilities(&logits)
        .unwrap()
        .iter()
        .zip(&expected)
    {
        assert!((f64::from(*ours) - theirs).abs() < 1e-6);
    }
    let mut counts = vec![0_u32; n_tokens];
    for _ in 0..40_000 {
        counts[sampler.sample(&logits).unwrap() as usize] += 1;
    }
    let (statistic, freedom) = chi_square(&counts, &expected);
    assert!(
        statistic < freedom + 5.0 * (2.0 * freedom).sqrt(),
        "{statistic} with {freedom}"
    );
}

#[test]
fn a_bias_beyond_the_vocabulary_is_refused() {
    let options = SamplingOptions {
        logit_bias: vec![(3, 1.0)],
        ..SamplingOptions::default()
    };
    assert!(Sampler::new(&options, 4, 16).is_ok());
    assert_eq!(
        Sampler::new(&options, 3, 16).unwrap_err().name,
        "logit_bias"
    );
}

#[test]
fn bad_logits_are_errors_with_every_chain() {
    for options in [SamplingOptions::default(), SamplingOptions::greedy()] {
        let mut sampler = sampler(&options, 3);
        assert_eq!(
            sampler.sample(&[0.0, f32::NAN, 1.0]),
            Err(SamplingError::NanLogit { id: 1 })
        );
        assert_eq!(
            sampler.sample(&[f32::NEG_INFINITY; 3]),
            Err(SamplingError::NothingToPick)
        );
        assert_eq!(
            sampler.sample(&[0.0; 4]),
            Err(SamplingError::LogitCount {
                expected: 3,
                found: 4
            })
        );
        assert_eq!(sampler.sample(&[0.0, f32::INFINITY, 1.0]), Ok(1));
        // An error leaves the sampler usable.
        assert_eq!(
            sampler.sample(&[f32::NEG_INFINITY, f32::NEG_INFINITY, 1.0]),
            Ok(2)
        );
    }
}

fn any_options() -> impl Strategy<Value = SamplingOptions> {
    let share = prop_oneof![Just(0.0_f32), Just(1.0), 0.0_f32..1.0];
    (
        (
            prop_oneof![Just(0.0_f32), Just(1e-30), Just(100.0), 0.1_f32..3.0],
            prop_oneof![Just(0_usize), 1_usize..200],
        ),
        (share.clone(), share.clone(), share),
        (
            prop_oneof![Just(1.0_f32), 0.01_f32..100.0],
            -100.0_f32..100.0,
            -100.0_f32..100.0,
        ),
        prop_oneof![
            Just(RepeatWindow::Context),
            (0_usize..80).prop_map(RepeatWindow::Last)
        ],
        any::<u64>(),
    )
        .prop_map(
            |((temperature, top_k), (top_p, min_p, typical_p), penalties, repeat_last_n, seed)| {
                let (repeat_penalty, presence_penalty, frequency_penalty) = penalties;
                SamplingOptions {
                    logit_bias: Vec::new(),
                    temperature,
                    top_k,
                    top_p,
                    min_p,
                    typical_p,
                    repeat_penalty,
                    presence_penalty,
                    frequency_penalty,
                    repeat_last_n,
                    seed: Some(seed),
                }
            },
        )
}

fn any_logit() -> impl Strategy<Value = f32> {
    prop_oneof![8 => -30.0_f32..30.0, 1 => Just(f32::NEG_INFINITY), 1 => -3.0e38_f32..3.0e38]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Any valid options over any logits draw a possible token, reproducibly, from probabilities that add up to 1.
    #[test]
    fn any_chain_draws_a_possible_token(
        options in any_options(),
        logits in prop::collection::vec(any_logit(), 1..300),
        history in prop::collection::vec(0_u32..300, 0..100),
    ) {
        prop_assume!(logits.iter().any(|logit| logit.is_finite()));
        options.validate().unwrap();
        let mut one = Sampler::new(&options, logits.len(), 64).unwrap();
        let mut two = Sampler::new(&options, logits.len(), 64).unwrap();
        for &id in &history {
            one.accept(id);
            two.accept(id);
        }
        for _ in 0..4 {
            let probabilities = one.probabilities(&logits).unwrap();
            let total: f64 = probabilities.iter().map(|&p| f64::from(p)).sum();
            prop_assert!((total - 1.0).abs() < 1e-4, "sum {}", total);
            let id = one.sample(&logits).unwrap();
            prop_assert!(probabilities[id as usize] > 0.0 && logits[id as usize] > f32::NEG_INFINITY);
            prop_assert_eq!(two.sample(&logits).unwrap(), id);
            one.accept(id);
            two.accept(id);
        }
    }
}
