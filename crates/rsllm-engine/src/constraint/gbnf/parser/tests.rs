//! Mistakes, limits, and what ends a rule.

use super::*;

fn error(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

#[test]
fn mistakes_are_told_with_line_and_column() {
    for (text, expected) in [
        ("", "no rule `root`"),
        ("Root ::= [^\\n]+", "no rule `root`"),
        ("rout::=\"route\"", "no rule `root`"),
        (
            ":== \"x\"",
            "line 1, column 1 of the grammar: expected the name of a rule, found `:`",
        ),
        (
            "root := \"x\"",
            "line 1, column 6 of the grammar: expected `::=`, found `:`",
        ),
        (
            "root ::= \"x",
            "line 1, column 12 of the grammar: expected a closing `\"`",
        ),
        (
            "root ::= a\nb ::= \"\"",
            "line 1, column 10 of the grammar: there is no rule `a`",
        ),
        (
            "root ::= \"a\"\nroot ::= \"b\"",
            "line 2, column 1 of the grammar: the rule `root` is defined twice",
        ),
        ("root ::= (\"a\"\n", "expected `)`, found the end"),
        ("root ::= \"a\" )", "found `)`"),
        ("root ::= * \"a\"", "found `*`"),
        ("root ::= [z-a]", "range 'z' to 'a'"),
        ("root ::= []", "a class with a character"),
        ("root ::= \"\\q\"", "unknown escape `\\q`"),
        ("root ::= \"\\x4\"", "unknown escape"),
        ("root ::= \"\\uD800\"", "`\\uD800` is no character"),
        ("root ::= \"a\"{3,2}", "the repetition `{3,2}`"),
        ("root ::= \"a\"{2001}", "the repetition `{2001}`"),
        ("root ::= \"a\"{99999999999}", "the repetition"),
        ("root ::= \"a\"{,2}", "the repetition `{,2}`"),
        (
            "root ::= <[12]>",
            "the token terminal `<[12]>` is not supported",
        ),
        ("root ::= !<think>", "the token terminal `!<think>`"),
    ] {
        let error = error(text);
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn depth_and_rules_are_limited() {
    assert!(error(&format!("root ::= {}", "(".repeat(100_000))).contains("nested groups"));
    assert!(error(&format!("root ::= \"a\"{}", "*".repeat(100_000))).contains("nested"));
    let many: Vec<String> = (0..1200).map(|i| format!("r{i} ::= \"a\"\n")).collect();
    assert!(error(&many.concat()).contains("rules"));
}

#[test]
fn line_feeds_end_rules_only_outside_of_groups() {
    let grammar =
        parse("root ::= # first\n \"a\" | # or\n ( \"b\"\n \"c\" )*\nx ::= |\"y\"\n").unwrap();
    let chars = |c| Node::Chars(CharSet::one(c));
    assert_eq!(
        grammar.rules[0].body,
        Node::Choice(vec![
            chars('a'),
            Node::Repeat {
                node: Box::new(Node::Sequence(vec![chars('b'), chars('c')])),
                min: 0,
                max: None
            }
        ])
    );
    assert_eq!(
        grammar.rules[1].body,
        Node::Choice(vec![Node::empty(), chars('y')])
    );
}

#[test]
fn escapes_and_classes() {
    let grammar = parse(r#"root ::= "\x41\u00e9\U0001F600\n\"\\" [^"\\\]a-c-]"#).unwrap();
    let Node::Sequence(nodes) = &grammar.rules[0].body else {
        panic!()
    };
    let text: Vec<Node> = "Aé😀\n\"\\"
        .chars()
        .map(|c| Node::Chars(CharSet::one(c)))
        .collect();
    assert_eq!(nodes[0], Node::Sequence(text));
    let excluded = CharSet::new([('"', '"'), ('\\', ']'), ('a', 'c'), ('-', '-')]);
    assert_eq!(nodes[1], Node::Chars(excluded.negated()));
}
