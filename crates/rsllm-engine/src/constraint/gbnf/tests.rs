use super::*;

#[test]
fn a_regular_grammar_is_one_terminal() {
    let lark = to_lark("root ::= item+\nitem ::= \"- \" [^\\n]+ \"\\n\"\n").unwrap();
    assert_eq!(lark.lines().count(), 3, "{lark}");
}
