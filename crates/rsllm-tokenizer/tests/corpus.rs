//! llama.cpp's vocabulary files with the ids they expect: `ggml-vocab-*.gguf` beside `.inp` and `.out`.
//!
//! They are too large for the repository; `RSLLM_TEST_VOCAB_DIR` names the folder that has them. Without it the tests
//! print that they checked nothing; with `RSLLM_REQUIRE_TEST_ASSETS` set, as in CI, they fail.

use std::path::{Path, PathBuf};

use rsllm_gguf::Gguf;
use rsllm_tokenizer::{DecodeOptions, EncodeOptions, Tokenizer, TokenizerError};

const PLAIN: EncodeOptions = EncodeOptions {
    add_special: false,
    parse_special: false,
};
/// With expected ids, of kinds that are supported.
const WITH_IDS: &[&str] = &[
    "command-r",
    "deepseek-coder",
    "deepseek-llm",
    "falcon",
    "gemma-4",
    "gpt-2",
    "llama-bpe",
    "llama-spm",
    "mpt",
    "phi-3",
    "qwen2",
    "qwen35",
    "refact",
    "starcoder",
];

fn folder() -> Option<PathBuf> {
    let folder = std::env::var_os("RSLLM_TEST_VOCAB_DIR").map(PathBuf::from);
    if folder.is_none() {
        assert!(
            std::env::var_os("RSLLM_REQUIRE_TEST_ASSETS").is_none(),
            "RSLLM_TEST_VOCAB_DIR is not set, and RSLLM_REQUIRE_TEST_ASSETS is"
        );
        #[expect(clippy::print_stderr, reason = "a test that checks nothing says so")]
        {
            eprintln!(
                "NOT TESTED: RSLLM_TEST_VOCAB_DIR does not name a folder with ggml-vocab-*.gguf"
            );
        }
    }
    folder
}

fn load(path: &Path) -> Result<Tokenizer, TokenizerError> {
    let gguf = Gguf::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Tokenizer::from_metadata(gguf.metadata())
}

#[test]
fn ids_are_the_expected_ones() {
    let Some(folder) = folder() else { return };
    for name in WITH_IDS {
        let path = folder.join(format!("ggml-vocab-{name}.gguf"));
        let tokenizer = load(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        let read = |extension: &str| {
            let path = folder.join(format!("ggml-vocab-{name}.gguf.{extension}"));
            std::fs::read_to_string(&path)
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        };
        let (inputs, outputs) = (read("inp"), read("out"));
        let mut texts: Vec<&str> = inputs.split("\n__ggml_vocab_test__\n").collect();
        // In most files the separator ends the last text too.
        texts.pop_if(|text| text.is_empty());
        let lines: Vec<&str> = outputs.lines().collect();
        assert!(
            texts.len() >= 46 && lines.len() == texts.len(),
            "{name}: {} texts, {} lines",
            texts.len(),
            lines.len()
        );
        for (text, line) in texts.into_iter().zip(lines) {
            let expected: Vec<u32> = line
                .split_whitespace()
                .map(|id| id.parse().unwrap())
                .collect();
            let ids = tokenizer.encode(text, PLAIN);
            assert_eq!(ids, expected, "{name}: {text:?}");
            let options = DecodeOptions {
                strip_space_prefix: true,
                ..DecodeOptions::default()
            };
            assert_eq!(tokenizer.decode(&ids, options), text, "{name}");
        }
    }
}

#[test]
fn every_vocabulary_loads_or_says_why_not() {
    let Some(folder) = folder() else { return };
    let mut n_loaded = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "gguf") {
            continue;
        }
        match load(&path) {
            Ok(tokenizer) => {
                n_loaded += 1;
                assert!(
                    !tokenizer.end_of_generation().is_empty(),
                    "{}",
                    path.display()
                );
            }
            Err(TokenizerError::UnsupportedKind { kind, .. }) => {
                assert!(matches!(kind.as_str(), "bert" | "t5"), "{}", path.display());
            }
            Err(error) => panic!("{}: {error}", path.display()),
        }
    }
    assert!(n_loaded >= WITH_IDS.len());
}

#[test]
fn known_cases_of_single_vocabularies() {
    let Some(folder) = folder() else { return };
    let load = |name: &str| load(&folder.join(format!("ggml-vocab-{name}.gguf"))).unwrap();

    let llama = load("llama-spm");
    let spaces: [(&str, &[u32]); 5] = [
        ("Hello", &[15043]),
        (" Hello", &[29871, 15043]),
        ("  Hello", &[259, 15043]),
        ("   Hello", &[1678, 15043]),
        ("    Hello", &[268, 15043]),
    ];
    for (text, expected) in spaces {
        assert_eq!(llama.encode(text, PLAIN), expected, "{text:?}");
    }
    let with_bos = EncodeOptions {
        add_special: true,
        ..PLAIN
    };
    assert_eq!(
        llama.encode("This is 🦙.cpp", with_bos),
        [1, 910, 338, 29871, 243, 162, 169, 156, 29889, 8223]
    );

    let falcon = load("falcon");
    assert_eq!(
        falcon.encode(" this is 🦙.cpp", PLAIN),
        [414, 304, 3346, 111, 231, 25, 29247]
    );
    assert_eq!(
        falcon.encode(" Hello, world!", PLAIN),
        [23090, 23, 1079, 12]
    );

    let qwen = load("qwen2");
    let chat = "<|im_start|>Hello World<|im_end|>";
    assert_eq!(
        qwen.encode(chat, PLAIN),
        [
            27, 91, 318, 4906, 91, 29, 9707, 4337, 27, 91, 318, 6213, 91, 29
        ]
    );
    let parse = EncodeOptions {
        parse_special: true,
        ..PLAIN
    };
    assert_eq!(qwen.encode(chat, parse), [151644, 9707, 4337, 151645]);

    let command_r = load("command-r");
    let turn = "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>Hello world!<|END_OF_TURN_TOKEN|>";
    let both = EncodeOptions {
        add_special: true,
        parse_special: true,
    };
    assert_eq!(
        command_r.encode(turn, both),
        [5, 255000, 255006, 28339, 3845, 8, 255001]
    );

    // Text to ids to text, again and again, stays as it is.
    let phi = load("phi-3");
    let options = DecodeOptions {
        strip_space_prefix: true,
        render_special: true,
        ..DecodeOptions::default()
    };
    let mut text = "<|user|>Hello there<|end|><|assistant|>Hi!".to_owned();
    let first = phi.encode(&text, parse);
    for _ in 0..5 {
        text = phi.decode(&phi.encode(&text, parse), options);
        assert_eq!(phi.encode(&text, parse), first);
    }
}
