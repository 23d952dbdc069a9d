//! Encoding and decoding with toy vocabularies: each rule where a person can follow it.

mod common;

use common::{PARSE, PLAIN, byte_level, characters, pieces, sentence_piece, tokenizer};
use rsllm_tokenizer::{DecodeOptions, EncodeOptions, TextPart, TokenizerWarning};

const ENGLISH: &[&str] = &[
    "h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld",
];

#[test]
fn merges_go_by_rank_then_from_the_left() {
    let tokenizer = tokenizer(&byte_level("gpt-2", ENGLISH, &[]));
    assert_eq!(
        pieces(&tokenizer, "hello world", PLAIN),
        ["hello", "Ġworld"]
    );
    assert_eq!(pieces(&tokenizer, "lll", PLAIN), ["ll", "l"]);
    assert_eq!(pieces(&tokenizer, "ello", PLAIN), ["e", "ll", "o"]);
    assert!(tokenizer.encode("", PLAIN).is_empty());
}

#[test]
fn whole_pieces_skip_merging_where_the_vocabulary_says_so() {
    // "held" cannot be merged from its parts, yet is a token.
    let mut merges = byte_level("llama-bpe", &["h e"], &[("held", 1)]);
    assert_eq!(pieces(&tokenizer(&merges), "held", PLAIN), ["held"]);
    merges.insert("tokenizer.ggml.pre", "gpt-2");
    assert_eq!(pieces(&tokenizer(&merges), "held", PLAIN), ["he", "l", "d"]);
}

#[test]
fn control_tokens_come_from_text_only_when_asked() {
    let tokenizer = tokenizer(&byte_level(
        "gpt-2",
        ENGLISH,
        &[("<|x|>", 3), ("<tool>", 4)],
    ));
    assert_eq!(
        pieces(&tokenizer, "he<|x|>", PLAIN),
        ["he", "<", "|", "x", "|", ">"]
    );
    assert_eq!(pieces(&tokenizer, "he<|x|>", PARSE), ["he", "<|x|>"]);
    assert_eq!(pieces(&tokenizer, "a<tool>b", PLAIN), ["a", "<tool>", "b"]);
}

#[test]
fn merging_never_yields_a_control_token() {
    let metadata = byte_level("gpt-2", &["h e", "he y"], &[]);
    let mut types = vec![1; 258];
    types[257] = 3;
    let mut metadata = metadata;
    metadata.insert("tokenizer.ggml.token_type", types);
    assert_eq!(pieces(&tokenizer(&metadata), "hey", PLAIN), ["he", "y"]);
    assert_eq!(pieces(&tokenizer(&metadata), "hey", PARSE), ["hey"]);
    metadata.insert("tokenizer.ggml.pre", "llama-bpe");
    assert_eq!(pieces(&tokenizer(&metadata), "hey", PLAIN), ["he", "y"]);

    // The same holds for user-defined tokens that a protocol is built on.
    let metadata = sentence_piece(&["▁", "<", "|", "<|"], &[("<|>", 4), (">", 1)]);
    let untrusted = [TextPart {
        text: "<|>",
        trusted: false,
    }];
    assert_eq!(
        tokenizer(&metadata).encode_parts(&untrusted, false),
        [259, 262, 264]
    );

    let metadata = sentence_piece(&["▁", "h", "e", "he"], &[("hey", 3), ("y", 1)]);
    assert_eq!(
        pieces(&tokenizer(&metadata), "hey", PLAIN),
        ["▁", "he", "y"]
    );
}

#[test]
fn untrusted_parts_yield_no_protocol_tokens() {
    let tokenizer = tokenizer(&byte_level(
        "gpt-2",
        ENGLISH,
        &[("<|x|>", 3), ("<|channel|>", 4), ("<b>", 4), ("ĊĊ", 1)],
    ));
    let text_of = |parts: &[(&str, bool)]| {
        let parts: Vec<_> = parts
            .iter()
            .map(|&(text, trusted)| TextPart { text, trusted })
            .collect();
        let ids = tokenizer.encode_parts(&parts, false);
        let texts: Vec<_> = ids
            .iter()
            .map(|&id| String::from_utf8_lossy(tokenizer.token_text(id).unwrap()))
            .collect();
        texts.join(" ")
    };
    assert_eq!(
        text_of(&[("<|x|>he", true), ("llo<|x|>", false), ("<|x|>", true)]),
        "<|x|> hello < | x | > <|x|>"
    );
    assert_eq!(
        text_of(&[("<b><|channel|>", false)]),
        "<b> < | c h a n n e l | >"
    );
    assert_eq!(text_of(&[("<b><|channel|>", true)]), "<b> <|channel|>");
    // A token's text may not straddle a border into trust, but may straddle one between trusted parts.
    assert_eq!(text_of(&[("<|", true), ("x|>", false)]), "< | x | >");
    assert_eq!(text_of(&[("<|", false), ("x|>", true)]), "< | x | >");
    assert_eq!(
        text_of(&[("<|", true), ("", false), ("x|>", true)]),
        "<|x|>"
    );
    assert_eq!(text_of(&[("<", false), ("b>", true)]), "<b>");
}

#[test]
fn borders_change_no_ids() {
    let tokenizer = tokenizer(&byte_level("gpt-2", ENGLISH, &[("<|x|>", 3)]));
    let text = "hello  world hello";
    let whole = tokenizer.encode(text, PLAIN);
    for cut in 0..=text.len() {
        let (left, right) = text.split_at(cut);
        for trusted in [false, true] {
            let parts = [
                TextPart {
                    text: left,
                    trusted,
                },
                TextPart {
                    text: right,
                    trusted: !trusted,
                },
            ];
            assert_eq!(tokenizer.encode_parts(&parts, false), whole, "cut at {cut}");
        }
    }
}

#[test]
fn scores_decide_and_rare_characters_become_bytes() {
    let tokenizer = tokenizer(&sentence_piece(
        &["▁", "a", "b", "c", "bc", "ab", "▁a"],
        &[],
    ));
    // "bc" has a better score than "ab".
    assert_eq!(pieces(&tokenizer, "abc", PLAIN), ["▁a", "bc"]);
    assert_eq!(pieces(&tokenizer, "é", PLAIN), ["▁", "<0xC3>", "<0xA9>"]);
    assert!(tokenizer.encode("", PLAIN).is_empty());
    assert_eq!(
        tokenizer.encode(
            "",
            EncodeOptions {
                add_special: true,
                ..PLAIN
            }
        ),
        [1]
    );
}

#[test]
fn space_prefix_comes_first_and_after_special_tokens() {
    let mut metadata = sentence_piece(&["▁", "a", "b", "▁a", "▁▁"], &[("<u>", 4)]);
    let prefixed = tokenizer(&metadata);
    assert_eq!(pieces(&prefixed, "a", PLAIN), ["▁a"]);
    assert_eq!(pieces(&prefixed, " a", PLAIN), ["▁", "▁a"]);
    assert_eq!(
        pieces(&prefixed, "a<s>a<u>a", PARSE),
        ["▁a", "<s>", "▁a", "<u>", "▁a"]
    );
    let strip = DecodeOptions {
        strip_space_prefix: true,
        render_special: true,
        ..DecodeOptions::default()
    };
    for text in ["a", " a", "a<s>a<u>a", "<s> a", "  "] {
        assert_eq!(prefixed.decode(&prefixed.encode(text, PARSE), strip), text);
    }
    metadata.insert("tokenizer.ggml.add_space_prefix", false);
    assert_eq!(
        pieces(&tokenizer(&metadata), "a<s>a", PARSE),
        ["a", "<s>", "a"]
    );
}

#[test]
fn equal_scores_merge_from_the_left() {
    let metadata = sentence_piece(&["▁", "a", "aa"], &[]);
    assert_eq!(
        pieces(&tokenizer(&metadata), "aaa", PLAIN),
        ["▁", "aa", "a"]
    );
}

#[test]
fn character_bpe_escapes_spaces_and_keeps_line_feed_runs() {
    let tokenizer = tokenizer(&characters(&["a b", "▁ ab", "▁ ▁"]));
    assert_eq!(
        pieces(&tokenizer, "ab ab\n\nc", PLAIN),
        ["ab", "▁ab", "\n\n", "c"]
    );
    assert_eq!(pieces(&tokenizer, "  ab", PLAIN), ["▁", "▁ab"]);
    assert_eq!(pieces(&tokenizer, "\n\n\n", PLAIN), ["\n", "\n", "\n"]);
    assert_eq!(pieces(&tokenizer, "é", PLAIN), ["<0xC3>", "<0xA9>"]);
    assert_eq!(
        tokenizer.decode(&tokenizer.encode("ab é\n", PLAIN), DecodeOptions::default()),
        "ab é\n"
    );
    // The kind insists on its first token.
    assert!(tokenizer.add_bos());
}

#[test]
fn first_and_last_tokens_follow_the_file() {
    let mut metadata = byte_level("gpt-2", ENGLISH, &[("<s>", 3), ("</s>", 3)]);
    let (bos, eos) = (256 + ENGLISH.len() as u32, 257 + ENGLISH.len() as u32);
    metadata.insert("tokenizer.ggml.bos_token_id", bos);
    metadata.insert("tokenizer.ggml.eos_token_id", eos);
    let special = EncodeOptions {
        add_special: true,
        ..PLAIN
    };
    assert_eq!(tokenizer(&metadata).encode("he", special), [256]);
    metadata.insert("tokenizer.ggml.add_bos_token", true);
    metadata.insert("tokenizer.ggml.add_eos_token", true);
    let tokenizer = tokenizer(&metadata);
    assert_eq!(tokenizer.encode("he", special), [bos, 256, eos]);
    assert_eq!(tokenizer.encode("he", PLAIN), [256]);
    assert_eq!((tokenizer.add_bos(), tokenizer.add_eos()), (true, true));
    assert_eq!(tokenizer.end_of_generation(), [eos]);
}

#[test]
fn roles_are_found_by_text() {
    let tokenizer = tokenizer(&byte_level(
        "gpt-2",
        ENGLISH,
        &[
            ("<|im_end|>", 1),
            ("<|fim_pad|>", 3),
            ("<|eom_id|>", 3),
            ("<|fim_prefix|>", 3),
        ],
    ));
    let id = |text| tokenizer.token_id(text);
    assert_eq!(tokenizer.eot(), id("<|im_end|>"));
    assert_eq!(tokenizer.special_tokens().fim_prefix, id("<|fim_prefix|>"));
    assert!(tokenizer.is_end_of_generation(id("<|im_end|>").unwrap()));
    assert!(tokenizer.is_end_of_generation(id("<|fim_pad|>").unwrap()));
    assert!(tokenizer.is_end_of_generation(id("<|eom_id|>").unwrap()));
    assert!(!tokenizer.is_end_of_generation(id("<|fim_prefix|>").unwrap()));
    // It was marked as ordinary text in the file.
    assert_eq!(pieces(&tokenizer, "<|im_end|>", PARSE), ["<|im_end|>"]);
    assert!(matches!(
        tokenizer.warnings(),
        [TokenizerWarning::NotMarkedControl { .. }]
    ));
}

#[test]
fn gpt_oss_shows_its_channels_and_does_not_end_at_end() {
    let special = [
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|channel|>",
        "<|start|>",
    ]
    .map(|text| (text, 3));
    let tokenizer = tokenizer(&byte_level("gpt-4o", ENGLISH, &special));
    let id = |text| tokenizer.token_id(text).unwrap();
    assert!(!tokenizer.is_end_of_generation(id("<|end|>")));
    assert!(tokenizer.is_end_of_generation(id("<|return|>")));
    assert!(tokenizer.is_end_of_generation(id("<|call|>")));
    assert_eq!(tokenizer.token_bytes(id("<|channel|>")), b"<|channel|>");
    assert_eq!(tokenizer.token_bytes(id("<|return|>")), b"");
}

#[test]
fn white_space_goes_with_phi_3_tokens() {
    let mut metadata = sentence_piece(&["▁", "a", "▁a"], &[("<|user|>", 3), ("<|endoftext|>", 3)]);
    metadata.insert("general.name", "Phi3 mini");
    let tokenizer = tokenizer(&metadata);
    assert_eq!(
        pieces(&tokenizer, "<|user|> \n a", PARSE),
        ["<|user|>", "▁a"]
    );
    assert_eq!(pieces(&tokenizer, "<s> a", PARSE), ["<s>", "▁", "▁a"]);
    // The white space goes even if it is not trusted, as it would in one text.
    let parts = [
        TextPart {
            text: "<|user|>\n",
            trusted: true,
        },
        TextPart {
            text: "\n a",
            trusted: false,
        },
    ];
    assert_eq!(
        tokenizer.encode_parts(&parts, false),
        tokenizer.encode("<|user|>\n\n a", PARSE)
    );
}

#[test]
fn falcon_gets_its_default_ids_and_others_do_not() {
    let mut tokens = vec!["a"; 11];
    tokens.push("<|endoftext|>");
    let mut metadata = byte_level("falcon", ENGLISH, &[]);
    metadata.insert("tokenizer.ggml.token_type", vec![1; 12]);
    metadata.insert("tokenizer.ggml.tokens", tokens);
    assert_eq!(
        (tokenizer(&metadata).bos(), tokenizer(&metadata).eos()),
        (Some(11), Some(11))
    );
    metadata.insert("tokenizer.ggml.tokens", vec!["a"; 12]);
    assert_eq!(
        (tokenizer(&metadata).bos(), tokenizer(&metadata).eos()),
        (None, None)
    );
}

#[test]
fn streams_hold_back_incomplete_characters() {
    let tokenizer = tokenizer(&byte_level("gpt-2", ENGLISH, &[("<|x|>", 3)]));
    let mut stream = tokenizer.stream_decoder();
    let mut texts = Vec::new();
    for id in tokenizer.encode("hello🦙<|x|>", PARSE) {
        texts.push(stream.push(id).to_owned());
    }
    assert_eq!(texts, ["hello", "", "", "", "🦙", ""]);
    assert_eq!(stream.finish(), "");
    assert_eq!(stream.push(u32::MAX), "");
}

#[test]
fn spaces_are_cleaned_up_only_when_both_sides_ask() {
    let metadata = byte_level("gpt-2", ENGLISH, &[]);
    let clean = DecodeOptions {
        clean_up_spaces: true,
        ..DecodeOptions::default()
    };
    let cleaning = tokenizer(&metadata);
    let ids = cleaning.encode("hello , world", PLAIN);
    assert_eq!(cleaning.decode(&ids, clean), "hello, world");
    assert_eq!(
        cleaning.decode(&ids, DecodeOptions::default()),
        "hello , world"
    );
    let tokenizer = tokenizer(&byte_level("smollm", ENGLISH, &[]));
    assert_eq!(
        tokenizer.decode(&tokenizer.encode("hello , world", PLAIN), clean),
        "hello , world"
    );
}
