//! Pre-tokenizers of byte-level BPE vocabularies: how a text is cut into pieces before merging.
//!
//! GGUF files carry only a name (`tokenizer.ggml.pre`); the table here gives the rule set it stands for and what else
//! the name implies. The sets are data in `sets`, in the words of `rules`.

mod rules;
mod sets;

use rules::{CharSet, Fragment, Rule, Stage};

use crate::unicode::ClassTable;

/// What a pre-tokenizer name stands for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PreTokenizer {
    stages: &'static [Stage],
    pub(crate) flags: Flags,
}

/// What a name implies besides its rules.
#[derive(Clone, Copy, Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts about a vocabulary, not a state"
)]
pub(crate) struct Flags {
    /// Whole texts are tidied after decoding: no space before `.` or `'s`.
    pub(crate) clean_spaces: bool,
    /// A piece that is a token as it stands is not merged.
    pub(crate) ignore_merges: bool,
    /// A first token is added unless the file says otherwise.
    pub(crate) add_bos: bool,
    /// A separator is added at the end unless the file says otherwise.
    pub(crate) add_sep: bool,
    /// The file's id aside, there is no first token.
    pub(crate) no_default_bos: bool,
    /// Spaces are written U+2581 in token texts.
    pub(crate) escape_spaces: bool,
    /// Token texts are plain UTF-8, not GPT-2's byte characters.
    pub(crate) raw: bool,
    /// A run of line feeds that is a token is not merged.
    pub(crate) whole_newline_runs: bool,
    /// The only vocabulary that may come without merges.
    pub(crate) merges_optional: bool,
}

impl PreTokenizer {
    /// The pre-tokenizer of the given name.
    pub(crate) fn by_name(name: &str) -> Option<Self> {
        let entry = TABLE.iter().find(|entry| entry.names.contains(&name))?;
        Some(Self {
            stages: entry.stages,
            flags: entry.flags,
        })
    }

    /// All names, in the order of the table.
    pub(crate) fn names() -> Vec<&'static str> {
        TABLE
            .iter()
            .flat_map(|entry| entry.names.iter().copied())
            .collect()
    }

    /// Cuts `text` into pieces, which together are the text, and hands them to `emit` in order. None is empty.
    pub(crate) fn split(&self, text: &str, emit: &mut dyn FnMut(&str)) {
        split_stages(self.stages, &Fragment::new(text, ClassTable::get()), emit);
    }
}

fn split_stages(stages: &[Stage], fragment: &Fragment<'_>, emit: &mut dyn FnMut(&str)) {
    let Some((stage, rest)) = stages.split_first() else {
        return emit(fragment.text);
    };
    let mut piece = |from: usize, to: usize| {
        if from < to {
            let text = &fragment.text[from..to];
            if rest.is_empty() {
                emit(text);
            } else {
                split_stages(rest, &Fragment::new(text, fragment.table), emit);
            }
        }
    };
    match stage {
        Stage::Rules(rules) => split_by_rules(rules, fragment, &mut piece),
        Stage::DigitGroups(digits) => split_digit_groups(digits, fragment, &mut piece),
    }
}

fn split_by_rules(rules: &[Rule], fragment: &Fragment<'_>, piece: &mut dyn FnMut(usize, usize)) {
    let mut gap_start = 0;
    let mut at = 0;
    while let Some(c) = fragment.char_at(at) {
        if let Some(end) = rules.iter().find_map(|rule| rule.match_at(fragment, at)) {
            piece(gap_start, at);
            piece(at, end);
            gap_start = end;
            at = end;
        } else {
            at += c.len_utf8();
        }
    }
    piece(gap_start, at);
}

fn split_digit_groups(
    digits: &CharSet,
    fragment: &Fragment<'_>,
    piece: &mut dyn FnMut(usize, usize),
) {
    let mut gap_start = 0;
    let mut at = 0;
    while let Some(c) = fragment.char_at(at) {
        let end = fragment.run_end(digits, at);
        if end == at {
            at += c.len_utf8();
            continue;
        }
        piece(gap_start, at);
        let mut left = fragment.text[at..end].chars().count();
        let mut start = at;
        for (index, _) in fragment.text[at..end].char_indices() {
            if index > 0 && left.is_multiple_of(3) {
                piece(start, at + index);
                start = at + index;
            }
            left -= 1;
        }
        piece(start, end);
        gap_start = end;
        at = end;
    }
    piece(gap_start, at);
}

struct Entry {
    names: &'static [&'static str],
    stages: &'static [Stage],
    flags: Flags,
}

const NONE: Flags = Flags {
    clean_spaces: false,
    ignore_merges: false,
    add_bos: false,
    add_sep: false,
    no_default_bos: false,
    escape_spaces: false,
    raw: false,
    whole_newline_runs: false,
    merges_optional: false,
};
const CLEAN: Flags = Flags {
    clean_spaces: true,
    ..NONE
};
const RAW: Flags = Flags {
    raw: true,
    escape_spaces: true,
    ..NONE
};

const TABLE: &[Entry] = &[
    Entry {
        names: &["default"],
        stages: sets::DEFAULT,
        flags: CLEAN,
    },
    Entry {
        names: &[
            "llama3",
            "llama-v3",
            "llama-bpe",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        stages: sets::LLAMA3,
        flags: Flags {
            ignore_merges: true,
            add_bos: true,
            ..CLEAN
        },
    },
    Entry {
        names: &["minicpm5"],
        stages: sets::MINICPM5,
        flags: Flags {
            ignore_merges: true,
            ..CLEAN
        },
    },
    Entry {
        names: &["deepseek-llm"],
        stages: sets::DEEPSEEK_LLM,
        flags: NONE,
    },
    Entry {
        names: &["deepseek-coder"],
        stages: sets::DEEPSEEK_CODER,
        flags: NONE,
    },
    Entry {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        stages: sets::DEEPSEEK_V3,
        flags: NONE,
    },
    Entry {
        names: &["spark2_5"],
        stages: sets::SPARK2_5,
        flags: NONE,
    },
    Entry {
        names: &["youtu"],
        stages: sets::YOUTU,
        flags: Flags {
            ignore_merges: true,
            ..NONE
        },
    },
    Entry {
        names: &["falcon"],
        stages: sets::FALCON,
        flags: CLEAN,
    },
    Entry {
        names: &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "gigachat",
            "jina-v2-es",
            "jina-v2-de",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "exaone4",
            "mpt",
            "olmo",
            "jais",
        ],
        stages: sets::GPT2,
        flags: CLEAN,
    },
    Entry {
        names: &["trillion", "granite-docling"],
        stages: sets::GPT2,
        flags: NONE,
    },
    Entry {
        names: &["jina-v1-en", "jina-v2-code", "roberta-bpe"],
        stages: sets::GPT2,
        flags: Flags {
            add_sep: true,
            ..CLEAN
        },
    },
    Entry {
        names: &[
            "starcoder",
            "refact",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        stages: sets::STARCODER,
        flags: CLEAN,
    },
    Entry {
        names: &["command-r", "smollm"],
        stages: sets::STARCODER,
        flags: NONE,
    },
    Entry {
        names: &["jais-2"],
        stages: sets::JAIS2,
        flags: CLEAN,
    },
    Entry {
        names: &["dbrx", "smaug-bpe"],
        stages: sets::LLAMA3,
        flags: CLEAN,
    },
    Entry {
        names: &["stablelm2"],
        stages: sets::QWEN2,
        flags: CLEAN,
    },
    Entry {
        names: &["megrez"],
        stages: sets::QWEN2,
        flags: CLEAN,
    },
    Entry {
        names: &[
            "qwen2",
            "deepseek-r1-qwen",
            "kormo",
            "f2llmv2",
            "hunyuan",
            "solar-open",
            "grok-2",
        ],
        stages: sets::QWEN2,
        flags: NONE,
    },
    Entry {
        names: &["qwen35"],
        stages: sets::QWEN35,
        flags: NONE,
    },
    Entry {
        names: &["bloom", "gpt3-finnish"],
        stages: sets::BLOOM,
        flags: CLEAN,
    },
    Entry {
        names: &["poro-chat"],
        stages: sets::BLOOM,
        flags: NONE,
    },
    Entry {
        names: &["viking"],
        stages: sets::VIKING,
        flags: NONE,
    },
    Entry {
        names: &["superbpe"],
        stages: sets::SUPERBPE,
        flags: NONE,
    },
    Entry {
        names: &["seed-coder"],
        stages: sets::SEED_CODER,
        flags: NONE,
    },
    Entry {
        names: &["ufakzeka"],
        stages: sets::UFAKZEKA,
        flags: NONE,
    },
    Entry {
        names: &["laguna"],
        stages: sets::LAGUNA,
        flags: NONE,
    },
    Entry {
        names: &["afmoe"],
        stages: sets::AFMOE,
        flags: NONE,
    },
    Entry {
        names: &["exaone-moe"],
        stages: sets::EXAONE_MOE,
        flags: CLEAN,
    },
    Entry {
        names: &["kimi-k2"],
        stages: sets::KIMI_K2,
        flags: Flags {
            merges_optional: true,
            ..NONE
        },
    },
    Entry {
        names: &["chatglm-bpe"],
        stages: sets::LLAMA3,
        flags: Flags {
            no_default_bos: true,
            ..CLEAN
        },
    },
    Entry {
        names: &["glm4", "glm5"],
        stages: sets::LLAMA3,
        flags: Flags {
            no_default_bos: true,
            ignore_merges: true,
            ..CLEAN
        },
    },
    Entry {
        names: &["tekken"],
        stages: sets::TEKKEN,
        flags: Flags {
            ignore_merges: true,
            add_bos: true,
            ..NONE
        },
    },
    Entry {
        names: &["chameleon"],
        stages: sets::CHAMELEON,
        flags: Flags {
            add_bos: true,
            ..NONE
        },
    },
    Entry {
        names: &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"],
        stages: sets::GPT4O,
        flags: NONE,
    },
    Entry {
        names: &["granite-embed-multi-97m"],
        stages: sets::GRANITE_EMBED_MULTI,
        flags: Flags {
            ignore_merges: true,
            ..NONE
        },
    },
    Entry {
        names: &["tiny_aya", "cohere2moe"],
        stages: sets::TINY_AYA,
        flags: NONE,
    },
    Entry {
        names: &["bailingmoe", "bailingmoe2", "llada-moe"],
        stages: sets::BAILINGMOE,
        flags: NONE,
    },
    Entry {
        names: &["gemma4", "granite-embed-multi-311m"],
        stages: sets::LINES,
        flags: Flags {
            clean_spaces: true,
            whole_newline_runs: true,
            add_bos: true,
            ..RAW
        },
    },
    Entry {
        names: &["mmbert"],
        stages: sets::LINES,
        flags: Flags {
            clean_spaces: true,
            whole_newline_runs: true,
            ..RAW
        },
    },
    Entry {
        names: &["sarvam-moe"],
        stages: sets::LINES,
        flags: RAW,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(name: &str, text: &str) -> Vec<String> {
        let mut pieces = Vec::new();
        PreTokenizer::by_name(name)
            .unwrap()
            .split(text, &mut |piece| pieces.push(piece.to_owned()));
        pieces
    }

    #[test]
    fn names_are_unique() {
        let mut names = PreTokenizer::names();
        let n_names = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), n_names);
        assert!(PreTokenizer::by_name("no-such").is_none());
    }

    #[test]
    fn pieces_of_each_set() {
        for (name, text, expected) in [
            (
                "gpt-2",
                "I'll  go\n\n to 12345!",
                &["I", "'ll", " ", " go", "\n\n", " to", " 12345", "!"][..],
            ),
            ("gpt-2", "a\tb  ", &["a", "\t", "b", "  "]),
            (
                "llama-bpe",
                "I'LL go\n\n to 12345!\n\nx",
                &[
                    "I", "'LL", " go", "\n\n", " to", " ", "123", "45", "!\n\n", "x",
                ],
            ),
            ("qwen2", "x=12\u{301}", &["x", "=", "1", "2", "\u{301}"]),
            ("qwen35", "क्षि 12", &["क्षि", " ", "1", "2"]),
            ("smollm", "a 12b", &["a", " ", "1", "2", "b"]),
            (
                "default",
                "$5.12345678",
                &["$", "5", ".", "123", "456", "78"],
            ),
            ("falcon", "x 1234", &["x", " ", "123", "4"]),
            (
                "deepseek-llm",
                "été 中文 12!\n  ",
                // The published punctuation rule has the range `:-~`, so it cuts ASCII letters out of words again.
                &["é", "t", "é", " ", "中文", " ", "12", "!", "\n", "  "],
            ),
            ("deepseek-coder", "a 12", &["a", " ", "1", "2"]),
            (
                "deepseek-v3",
                "#include <a.b> 12345",
                &["#include", " <", "a", ".b", ">", " ", "123", "45"],
            ),
            (
                "gpt-4o",
                "HelloWORLD's ABCdef//\n",
                &["Hello", "WORLD's", " ABCdef", "//\n"],
            ),
            ("tekken", "HelloWORLD's", &["Hello", "WORLD", "'s"]),
            (
                "kimi-k2",
                "日本語テスト's ABCdef",
                &["日本語", "テスト's", " ABCdef"],
            ),
            ("afmoe", "x1234567", &["x", "1", "234", "567"]),
            (
                "tiny_aya",
                "1234 1234x",
                &["1", "234", " ", "1", "234", "x"],
            ),
            ("superbpe", "no 12345 cut", &["no ", "12", "345", " cut"]),
            ("bloom", "ab, c(d", &["ab", ",", " c", "(", "d"]),
            ("exaone-moe", " ab cd  ef", &[" ab cd", " ", " ef"]),
            ("jais-2", "a      b", &["a", "    ", " ", " b"]),
            (
                "chameleon",
                "IMGIMGABCZ a\tb",
                &["IMGIMGABCZ", " a", "\t", "b"],
            ),
            ("gemma4", "a b\n\nc", &["a b", "\n\n", "c"]),
        ] {
            assert_eq!(pieces(name, text), expected, "{name}: {text:?}");
        }
    }

    #[test]
    fn pieces_join_to_the_text() {
        let text =
            "Ünïcode\u{3000} 'S don't\r\n\r\n  12 345　🦙🏽 <|x|> \t\t ...//\n日本語 é\u{301}e  ";
        for name in PreTokenizer::names() {
            assert_eq!(pieces(name, text).concat(), text, "{name}");
        }
    }
}
