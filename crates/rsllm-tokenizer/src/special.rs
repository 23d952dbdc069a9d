//! Tokens that mean something: the ids a file names, those found by their text when it does not, and which of all these
//! end a generation.

use rsllm_gguf::{Metadata, Value};

use crate::TokenId;
use crate::error::TokenizerError;
use crate::vocabulary::{TokenKind, Vocabulary};
use crate::warning::TokenizerWarning;

/// Ids of the tokens with a role; `None` where the vocabulary has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Begin of text.
    pub bos: Option<TokenId>,
    /// End of text.
    pub eos: Option<TokenId>,
    /// End of turn.
    pub eot: Option<TokenId>,
    /// End of message: the turn goes on after a tool has answered.
    pub eom: Option<TokenId>,
    /// Stands for what cannot be written.
    pub unknown: Option<TokenId>,
    /// Between two texts.
    pub separator: Option<TokenId>,
    /// Fills batches.
    pub padding: Option<TokenId>,
    /// Stands for a text to be guessed.
    pub mask: Option<TokenId>,
    /// Fill-in-the-middle: before the text that precedes the gap.
    pub fim_prefix: Option<TokenId>,
    /// Fill-in-the-middle: before the text that follows the gap.
    pub fim_suffix: Option<TokenId>,
    /// Fill-in-the-middle: before the text of the gap.
    pub fim_middle: Option<TokenId>,
    /// Fill-in-the-middle: padding.
    pub fim_pad: Option<TokenId>,
    /// Fill-in-the-middle: before the name of a repository.
    pub fim_repo: Option<TokenId>,
    /// Fill-in-the-middle: between files.
    pub fim_separator: Option<TokenId>,
}

impl SpecialTokens {
    /// The ids of `defaults`, replaced by those the file names. Ids outside the vocabulary are left out with a warning.
    pub(crate) fn from_metadata(
        metadata: &Metadata,
        defaults: Self,
        vocab_size: usize,
        warnings: &mut Vec<TokenizerWarning>,
    ) -> Result<Self, TokenizerError> {
        let mut tokens = defaults;
        // Names of roles that newer files write otherwise; where a file has both, the newer one stays.
        for (key, slot) in [
            ("tokenizer.ggml.prefix_token_id", &mut tokens.fim_prefix),
            ("tokenizer.ggml.suffix_token_id", &mut tokens.fim_suffix),
            ("tokenizer.ggml.middle_token_id", &mut tokens.fim_middle),
        ] {
            read_id(metadata, key, slot, vocab_size, warnings)?;
        }
        for (key, slot) in [
            (BOS_KEY, &mut tokens.bos),
            (EOS_KEY, &mut tokens.eos),
            ("tokenizer.ggml.eot_token_id", &mut tokens.eot),
            ("tokenizer.ggml.eom_token_id", &mut tokens.eom),
            ("tokenizer.ggml.unknown_token_id", &mut tokens.unknown),
            // The misspelling is the format's.
            ("tokenizer.ggml.seperator_token_id", &mut tokens.separator),
            ("tokenizer.ggml.padding_token_id", &mut tokens.padding),
            ("tokenizer.ggml.mask_token_id", &mut tokens.mask),
            ("tokenizer.ggml.fim_pre_token_id", &mut tokens.fim_prefix),
            ("tokenizer.ggml.fim_suf_token_id", &mut tokens.fim_suffix),
            ("tokenizer.ggml.fim_mid_token_id", &mut tokens.fim_middle),
            ("tokenizer.ggml.fim_pad_token_id", &mut tokens.fim_pad),
            ("tokenizer.ggml.fim_rep_token_id", &mut tokens.fim_repo),
            ("tokenizer.ggml.fim_sep_token_id", &mut tokens.fim_separator),
        ] {
            read_id(metadata, key, slot, vocab_size, warnings)?;
        }
        Ok(tokens)
    }
}

fn read_id(
    metadata: &Metadata,
    key: &'static str,
    slot: &mut Option<TokenId>,
    vocab_size: usize,
    warnings: &mut Vec<TokenizerWarning>,
) -> Result<(), TokenizerError> {
    let Some(value) = metadata.get(key) else {
        return Ok(());
    };
    let Some(id) = Value::as_integer(value) else {
        return Err(metadata.range_error(key, "a token id").into());
    };
    match TokenId::try_from(id) {
        Ok(id) if (id as usize) < vocab_size => *slot = Some(id),
        _ => warnings.push(TokenizerWarning::SpecialIdOutOfRange {
            key,
            id,
            vocab_size,
        }),
    }
    Ok(())
}

/// Whether the file itself names the first and the last token.
pub(crate) fn names_bos_and_eos(metadata: &Metadata) -> (bool, bool) {
    (metadata.contains(BOS_KEY), metadata.contains(EOS_KEY))
}

const BOS_KEY: &str = "tokenizer.ggml.bos_token_id";
const EOS_KEY: &str = "tokenizer.ggml.eos_token_id";

/// Finds roles by text, corrects the kinds of tokens found so, and returns the sorted ids that end a generation.
pub(crate) fn discover(
    vocabulary: &mut Vocabulary,
    special: &mut SpecialTokens,
    warnings: &mut Vec<TokenizerWarning>,
) -> Vec<TokenId> {
    for (slot, texts) in [
        (&mut special.eot, EOT),
        (&mut special.eom, EOM),
        (&mut special.fim_prefix, FIM_PREFIX),
        (&mut special.fim_suffix, FIM_SUFFIX),
        (&mut special.fim_middle, FIM_MIDDLE),
        (&mut special.fim_pad, FIM_PAD),
        (&mut special.fim_repo, FIM_REPO),
        (&mut special.fim_separator, FIM_SEPARATOR),
    ] {
        if slot.is_none() {
            *slot = texts
                .iter()
                .find_map(|text| vocabulary.id_of(text.as_bytes()));
            if let Some(id) = *slot {
                mark_control(vocabulary, id, warnings);
            }
        }
    }

    let mut ends: Vec<TokenId> = [
        special.eos,
        special.eot,
        special.eom,
        special.fim_pad,
        special.fim_repo,
        special.fim_separator,
    ]
    .into_iter()
    .flatten()
    .collect();
    // gpt-oss writes these between channels and they must be seen; ordinary parsing would hide them.
    for text in ALWAYS_SHOWN {
        if let Some(id) = vocabulary.id_of(text.as_bytes()) {
            vocabulary.set_kind(id, TokenKind::UserDefined);
        }
    }
    let has = |texts: &[&str]| {
        texts
            .iter()
            .any(|text| vocabulary.id_of(text.as_bytes()).is_some())
    };
    let end_is_inner = has(&["<|call|>", "<|calls|>"]) && has(&["<|return|>", "<|flush|>"]);
    // In Gemma 4 it is the end of struck-out HTML text.
    let slash_s_is_inner = has(&["<|tool_response>", "<|plamo:eos|>"]);
    for &text in END_OF_GENERATION {
        let Some(id) = vocabulary.id_of(text.as_bytes()) else {
            continue;
        };
        if text == "<|end|>" && end_is_inner {
            ends.retain(|&end| end != id);
            vocabulary.set_kind(id, TokenKind::UserDefined);
        } else if text == "</s>" && slash_s_is_inner {
            ends.retain(|&end| end != id);
        } else {
            mark_control(vocabulary, id, warnings);
            ends.push(id);
        }
    }
    ends.sort_unstable();
    ends.dedup();
    ends
}

fn mark_control(vocabulary: &mut Vocabulary, id: TokenId, warnings: &mut Vec<TokenizerWarning>) {
    if vocabulary.kind(id) != TokenKind::Control {
        warnings.push(TokenizerWarning::NotMarkedControl {
            id,
            text: String::from_utf8_lossy(vocabulary.text(id)).into_owned(),
        });
        vocabulary.set_kind(id, TokenKind::Control);
    }
}

/// Which special tokens take white space with them. Files do not say; it goes by the model.
#[derive(Debug)]
pub(crate) enum Stripping {
    /// None.
    Nothing,
    /// Phi 3: all, on the right, but for a few.
    Phi3,
    /// The token of this text, on the left.
    Left(&'static str),
}

impl Stripping {
    pub(crate) fn from_metadata(metadata: &Metadata) -> Self {
        let lossy = |key: &str| {
            let bytes = metadata.opt_bytes(key).ok().flatten().unwrap_or_default();
            String::from_utf8_lossy(bytes).to_lowercase()
        };
        let (name, architecture) = (lossy("general.name"), lossy("general.architecture"));
        let pre = lossy("tokenizer.ggml.pre");
        if name.contains("phi-3") || name.contains("phi3") {
            Self::Phi3
        } else if pre == "modern-bert" || architecture == "modern-bert" {
            Self::Left("[MASK]")
        } else if pre.starts_with("jina-v2-")
            || pre == "mmbert"
            || matches!(architecture.as_str(), "nomic-bert-moe" | "jina-bert-v3")
        {
            Self::Left("<mask>")
        } else {
            Self::Nothing
        }
    }

    /// Whether white space on the left and on the right of the token goes with it.
    pub(crate) fn sides(&self, text: &str) -> (bool, bool) {
        match self {
            Self::Nothing => (false, false),
            Self::Phi3 => (false, !matches!(text, "<unk>" | "<s>" | "<|endoftext|>")),
            Self::Left(mask) => (text == *mask, false),
        }
    }
}

const EOT: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
];
const EOM: &[&str] = &["<|eom_id|>"];
const FIM_PREFIX: &[&str] = &[
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<｜fim▁begin｜>",
    "<PRE>",
    "▁<PRE>",
    "<|code_prefix|>",
    "<|prefix|>",
];
const FIM_SUFFIX: &[&str] = &[
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<｜fim▁hole｜>",
    "<SUF>",
    "▁<SUF>",
    "<|code_suffix|>",
    "<|suffix|>",
];
const FIM_MIDDLE: &[&str] = &[
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<｜fim▁end｜>",
    "<MID>",
    "▁<MID>",
    "<|code_middle|>",
    "<|middle|>",
];
const FIM_PAD: &[&str] = &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"];
const FIM_REPO: &[&str] = &[
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
];
const FIM_SEPARATOR: &[&str] = &["<|file_sep|>"];
const END_OF_GENERATION: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];
const ALWAYS_SHOWN: &[&str] = &["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];
