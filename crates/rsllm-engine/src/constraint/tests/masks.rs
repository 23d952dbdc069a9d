//! Masks against brute force, and grammars against an oracle that knows no lexer.

use std::cell::Cell;
use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::super::gbnf::oracle::Oracle;
use super::*;
use crate::constraint::ConstraintError;

/// Every mask on a random way through the constraint holds exactly the tokens whose bytes may come next, one by one.
fn check_masks(setup: &Setup, spec: &ConstraintSpec, seed: u64, n_steps: usize) {
    let mut constraint = setup.compile(spec);
    let mut random = seed;
    let mut text = Vec::new();
    for _ in 0..n_steps {
        let mask = constraint.allowed().unwrap().clone();
        let may_end = constraint.may_end().unwrap();
        for id in setup.token_ids() {
            let expected = if setup.tokenizer.is_end_of_generation(id) {
                may_end
            } else {
                let bytes = setup.text_bytes(id);
                !bytes.is_empty() && setup.feed(&constraint, &bytes).is_some()
            };
            assert_eq!(
                mask.allows(id),
                expected,
                "{spec:?} after {:?}: token {id}, {:?}",
                String::from_utf8_lossy(&text),
                String::from_utf8_lossy(&setup.text_bytes(id))
            );
        }
        let choices: Vec<TokenId> = setup
            .token_ids()
            .filter(|&id| mask.allows(id) && !setup.tokenizer.is_end_of_generation(id))
            .collect();
        if choices.is_empty() {
            assert!(constraint.is_complete().unwrap());
            return;
        }
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let id = choices[(random >> 33) as usize % choices.len()];
        text.extend(setup.text_bytes(id));
        constraint.accept(id).unwrap();
    }
}

#[test]
fn masks_equal_brute_force() {
    let setup = Setup::new();
    let schema = r#"{"type": "object", "properties": {"name": {"type": "string", "maxLength": 4},
        "ab": {"type": "array", "items": {"type": ["integer", "null", "boolean"]}, "maxItems": 2}}, "required": ["name"]}"#;
    let specs = [
        ConstraintSpec::JsonSchema(schema.to_owned()),
        ConstraintSpec::JsonSchema(
            r#"{"enum": ["é\"", "ab", 12, null, [1], {"a": 1}]}"#.to_owned(),
        ),
        ConstraintSpec::Json,
        ConstraintSpec::Regex("[ab]{2,5}(é|12)*".to_owned()),
        ConstraintSpec::Regex("(?s).*".to_owned()),
        ConstraintSpec::Lark("start: \"a\" start | B\nB: /b+\\n/".to_owned()),
        ConstraintSpec::Gbnf("root ::= \"{\" (root \",\")* \"}\" | [^{}]+".to_owned()),
        ConstraintSpec::Gbnf("root ::= \"a\" root \"b\" | \"a\" | \"ab\"".to_owned()),
    ];
    for spec in &specs {
        for seed in 0..3 {
            check_masks(&setup, spec, seed, 8);
        }
    }
}

/// What a grammar takes, letter by letter, is what the oracle says. Returns whether there was anything to compare.
fn agrees_with_the_oracle(setup: &Setup, gbnf: &str) -> bool {
    let oracle = match Oracle::new(gbnf) {
        Ok(oracle) => oracle,
        Err(ConstraintError::Grammar { .. } | ConstraintError::Unsatisfiable { .. }) => {
            return false;
        }
        Err(error) => panic!("{gbnf}: {error}"),
    };
    let constraint = match setup
        .grammars
        .compile(&ConstraintSpec::Gbnf(gbnf.to_owned()))
    {
        Ok(constraint) => constraint,
        // The empty text alone: there is nothing to draw.
        Err(error) => panic!("{gbnf}: {error}"),
    };
    let mut pending = vec![(String::new(), constraint)];
    let mut seen = BTreeSet::new();
    while let Some((text, constraint)) = pending.pop() {
        for letter in ['a', 'b', 'é', '\n'] {
            let longer = format!("{text}{letter}");
            let mut constraint = constraint.twin();
            let taken = letter
                .to_string()
                .bytes()
                .all(|byte| constraint.accept(setup.byte_tokens[byte as usize]).is_ok());
            let (expected, may_end) = oracle.judge(&longer);
            assert_eq!(
                taken,
                expected,
                "{gbnf}\n{longer:?}\n{}",
                crate::constraint::gbnf::to_lark(gbnf).unwrap()
            );
            if taken {
                assert_eq!(
                    constraint.may_end().unwrap(),
                    may_end,
                    "{gbnf}\n{longer:?} may end\n{}",
                    crate::constraint::gbnf::to_lark(gbnf).unwrap()
                );
                if longer.chars().count() < 5 && seen.insert(longer.clone()) {
                    pending.push((longer, constraint));
                }
            }
        }
    }
    true
}

#[test]
fn grammars_that_mislead_a_longest_match_keep_all_their_texts() {
    let setup = Setup::new();
    for gbnf in [
        "root ::= \"a\"* \"ab\"",
        "root ::= x \"b\"\nx ::= \"a\" | \"ab\"",
        "root ::= x y\nx ::= \"a\" x | \"a\"\ny ::= [ab]* \"b\"",
        "root ::= \"a\" root \"b\" | \"a\" | \"ab\"",
        "root ::= (\"a\" | \"ab\") (root | \"b\" \"b\")",
        "root ::= [ab]+ \"a\" (root)?",
        "root ::= \"a\"? (\"a\" root \"b\")? \"b\"*",
        "root ::= ((\"a\"?)* \"b\" root)? \"b\"",
        "root ::= [^\"]* (\"b\" root \"b\" | \"\")",
        "root ::= \"a\"{2,3} (\"b\" root){0,2}",
        "root ::= x{3} | \"é\" root \"é\"\nx ::= \"a\"{0,2} \"b\"?",
    ] {
        assert!(agrees_with_the_oracle(&setup, gbnf), "{gbnf}");
    }
}

/// A right-hand side over rules `r0` to `r2`.
fn expression() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        3 => prop::sample::select(vec![
            "\"a\"", "\"b\"", "\"ab\"", "\"aab\"", "\"é\"", "[ab]", "[^a]", "[aé]", "\"\"", ".", "\"\\n\"",
        ])
        .prop_map(str::to_owned),
        2 => prop::sample::select(vec!["root", "r1", "r2"]).prop_map(str::to_owned),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 1..4).prop_map(|parts| parts.join(" ")),
            prop::collection::vec(inner.clone(), 2..4)
                .prop_map(|parts| format!("({})", parts.join(" | "))),
            (
                inner,
                prop::sample::select(vec!["*", "+", "?", "{2}", "{0,2}", "{1,}"])
            )
                .prop_map(|(inner, times)| format!("({inner}){times}")),
        ]
    })
}

#[test]
fn random_grammars_agree_with_the_oracle() {
    let setup = Setup::new();
    let mut runner = TestRunner::new(ProptestConfig {
        cases: std::env::var("RSLLM_PROPTEST_CASES")
            .ok()
            .and_then(|cases| cases.parse().ok())
            .unwrap_or(128),
        ..ProptestConfig::default()
    });
    let rules = (expression(), expression(), expression());
    let n_compared = Cell::new(0);
    runner
        .run(&rules, |(root, r1, r2)| {
            let gbnf = format!("root ::= {root}\nr1 ::= {r1}\nr2 ::= {r2}\n");
            let compared = agrees_with_the_oracle(&setup, &gbnf);
            n_compared.set(n_compared.get() + usize::from(compared));
            Ok(())
        })
        .unwrap();
    // The others are left-recursive, or never end.
    assert!(n_compared.get() > 20, "{}", n_compared.get());
}
