//! The tokenizer: what callers hold.

use std::fmt;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex};

use rsllm_gguf::{Metadata, StringArray};

use crate::TokenId;
use crate::bpe::{Bpe, Merges};
use crate::cache::{self, Scratch};
use crate::decode::{DecodeOptions, PieceWriter, StreamDecoder, clean_up_spaces};
use crate::error::TokenizerError;
use crate::partition::{Finder, Part, Pattern};
use crate::settings::{Algorithm, Settings};
use crate::special::{self, SpecialTokens, Stripping};
use crate::spm::SentencePiece;
use crate::vocabulary::{TokenKind, Vocabulary};
use crate::warning::TokenizerWarning;
use crate::words::SPACE;

/// Turns text into the ids of one vocabulary and back. Clones share all data; any number of threads may use it.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) vocabulary: Vocabulary,
    pub(crate) settings: Settings,
    special: SpecialTokens,
    /// Sorted.
    end_of_generation: Vec<TokenId>,
    model: Model,
    finders: Finders,
    warnings: Vec<TokenizerWarning>,
}

#[derive(Debug)]
enum Model {
    Bpe(Box<Bpe>),
    SentencePiece(Box<SentencePiece>),
}

/// Which special tokens a search finds.
#[derive(Debug)]
struct Finders {
    /// All.
    all: Finder,
    /// Those that are text: user-defined ones.
    user_defined: Finder,
    /// User-defined ones that no protocol is built on.
    harmless: Finder,
}

/// How [`Tokenizer::encode`] treats special tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Add the tokens that begin and end a text, as far as the vocabulary asks for them.
    pub add_special: bool,
    /// Read the texts of control tokens as these tokens. Without it they are plain text; user-defined tokens are found
    /// in either case.
    pub parse_special: bool,
}

/// A stretch of a text for [`Tokenizer::encode_parts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextPart<'t> {
    /// The text.
    pub text: &'t str,
    /// Whether it may contain control tokens: true for what a template writes, false for what it fills in.
    pub trusted: bool,
}

impl Tokenizer {
    /// Reads the vocabulary that a model's metadata describe.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self, TokenizerError> {
        let mut warnings = Vec::new();
        let settings = Settings::from_metadata(metadata, &mut warnings)?;
        let merge_texts = match &settings.pre_tokenizer {
            Some(pre_tokenizer) => Merges::texts(metadata, &pre_tokenizer.flags),
            None => Ok(StringArray::default()),
        };
        let (vocabulary, merges) = both(
            merge_texts
                .as_ref()
                .is_ok_and(|texts| texts.len() > FEW_MERGES),
            || Vocabulary::from_metadata(metadata),
            || merge_texts.and_then(|texts| Merges::new(&texts)),
        );
        let mut vocabulary = vocabulary?;
        let mut special = settings.special_tokens(metadata, &vocabulary, &mut warnings)?;
        let end_of_generation = special::discover(&mut vocabulary, &mut special, &mut warnings);
        let model = if let Some(pre_tokenizer) = settings.pre_tokenizer {
            Model::Bpe(Box::new(Bpe::new(merges?, pre_tokenizer, &vocabulary)))
        } else {
            if !vocabulary.has_scores() {
                warnings.push(TokenizerWarning::MissingScores);
            }
            Model::SentencePiece(Box::new(SentencePiece::new(&vocabulary, special.unknown)))
        };
        let finders = Finders::new(&vocabulary, &Stripping::from_metadata(metadata));
        let inner = Inner {
            vocabulary,
            settings,
            special,
            end_of_generation,
            model,
            finders,
            warnings,
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// The ids of `text`.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Vec<TokenId> {
        let finders = &self.inner.finders;
        let finder = if options.parse_special {
            &finders.all
        } else {
            &finders.user_defined
        };
        let mut encoder = Encoder::new(&self.inner, text.len(), options.add_special);
        finder.cut(text, 0, text.len(), &mut |part| encoder.part(text, part));
        encoder.finish()
    }

    /// The ids of one text given in parts. Control tokens are read only where they lie in trusted parts (neighbouring
    /// trusted parts are one); all else is encoded as if there were no borders, so that a border inside a word or a run
    /// of spaces changes no id.
    ///
    /// Untrusted parts never yield a control token, nor a user-defined token written with `<|` or `|>`: some models
    /// build their protocol on these.
    pub fn encode_parts(&self, parts: &[TextPart<'_>], add_special: bool) -> Vec<TokenId> {
        let mut text = String::with_capacity(parts.iter().map(|part| part.text.len()).sum());
        // Stretches of trusted text.
        let mut trusted: Vec<(usize, usize)> = Vec::new();
        for part in parts {
            let start = text.len();
            text.push_str(part.text);
            match trusted.last_mut() {
                _ if !part.trusted => {}
                Some((_, end)) if *end == start => *end = text.len(),
                _ => trusted.push((start, text.len())),
            }
        }

        // First the protocol in trusted stretches; then, in all that is left, what is found in any text.
        let finders = &self.inner.finders;
        let mut encoder = Encoder::new(&self.inner, text.len(), add_special);
        let mut done = 0;
        let mut fixed: Vec<Part> = Vec::new();
        for &(start, end) in &trusted {
            finders.all.cut(&text, start, end, &mut |part| {
                if part
                    .token
                    .is_some_and(|id| self.inner.vocabulary.is_protocol(id))
                {
                    fixed.push(if finders.all.strips() {
                        finders.all.grow(&text, part)
                    } else {
                        part
                    });
                }
            });
        }
        for token in fixed {
            if done < token.start {
                finders.harmless.cut(&text, done, token.start, &mut |part| {
                    encoder.part(&text, part);
                });
            }
            encoder.part(&text, token);
            done = token.end;
        }
        finders.harmless.cut(&text, done, text.len(), &mut |part| {
            encoder.part(&text, part);
        });
        encoder.finish()
    }

    /// The text of `ids`, with U+FFFD for bytes that are not UTF-8. Ids outside the vocabulary are left out.
    pub fn decode(&self, ids: &[TokenId], options: DecodeOptions) -> String {
        let bytes = self.decode_bytes(ids, options);
        let text = String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
        if options.clean_up_spaces && self.inner.settings.clean_spaces {
            clean_up_spaces(&text)
        } else {
            text
        }
    }

    /// The bytes of `ids`; [`DecodeOptions::clean_up_spaces`] has no effect.
    pub fn decode_bytes(&self, ids: &[TokenId], options: DecodeOptions) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        let mut writer = PieceWriter::new(options);
        for &id in ids {
            writer.push(&self.inner, id, &mut bytes);
        }
        bytes
    }

    /// The bytes that one token adds to a text; none for control tokens and ids outside the vocabulary.
    pub fn token_bytes(&self, id: TokenId) -> Vec<u8> {
        self.decode_bytes(&[id], DecodeOptions::default())
    }

    /// The token's text as the file has it, which need not be UTF-8; `None` outside the vocabulary.
    pub fn token_text(&self, id: TokenId) -> Option<&[u8]> {
        ((id as usize) < self.vocab_size()).then(|| self.inner.vocabulary.text(id))
    }

    /// The token with exactly this text in the file; the last if there are several.
    pub fn token_id(&self, text: &str) -> Option<TokenId> {
        self.inner.vocabulary.id_of(text.as_bytes())
    }

    /// A decoder for ids that come one by one. Texts of control tokens are left out.
    pub fn stream_decoder(&self) -> StreamDecoder {
        self.stream_decoder_with(DecodeOptions::default())
    }

    /// A decoder for ids that come one by one; [`DecodeOptions::clean_up_spaces`] has no effect.
    pub fn stream_decoder_with(&self, options: DecodeOptions) -> StreamDecoder {
        StreamDecoder::new(Arc::clone(&self.inner), options)
    }

    /// The number of tokens. A model's embedding may have more rows.
    pub fn vocab_size(&self) -> usize {
        self.inner.vocabulary.len()
    }

    /// What the token is; unused outside the vocabulary.
    pub fn kind(&self, id: TokenId) -> TokenKind {
        self.inner.vocabulary.kind(id)
    }

    /// The token's score; 0 where the vocabulary has none.
    pub fn score(&self, id: TokenId) -> f32 {
        self.inner.vocabulary.score(id)
    }

    /// The tokens with a role.
    pub fn special_tokens(&self) -> &SpecialTokens {
        &self.inner.special
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<TokenId> {
        self.inner.special.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<TokenId> {
        self.inner.special.eos
    }

    /// The token that ends a turn.
    pub fn eot(&self) -> Option<TokenId> {
        self.inner.special.eot
    }

    /// Whether generation ends at this token. More tokens do than [`Self::eos`].
    pub fn is_end_of_generation(&self, id: TokenId) -> bool {
        self.inner.end_of_generation.binary_search(&id).is_ok()
    }

    /// All tokens at which generation ends, in increasing order.
    pub fn end_of_generation(&self) -> &[TokenId] {
        &self.inner.end_of_generation
    }

    /// Whether encoding with `add_special` begins with [`Self::bos`].
    pub fn add_bos(&self) -> bool {
        self.inner.settings.add_bos && self.bos().is_some()
    }

    /// Whether encoding with `add_special` ends with [`Self::eos`].
    pub fn add_eos(&self) -> bool {
        self.inner.settings.add_eos && self.eos().is_some()
    }

    /// Whether a space is put before the text and after special tokens, as SentencePiece vocabularies want.
    pub fn adds_space_prefix(&self) -> bool {
        self.inner.adds_space_prefix()
    }

    /// How text becomes tokens.
    pub fn algorithm(&self) -> Algorithm {
        self.inner.settings.algorithm
    }

    /// What was odd about the file.
    pub fn warnings(&self) -> &[TokenizerWarning] {
        &self.inner.warnings
    }
}

impl fmt::Debug for Tokenizer {
    /// What it is, not its hundred thousands of tokens.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("algorithm", &self.algorithm())
            .field("vocab_size", &self.vocab_size())
            .finish_non_exhaustive()
    }
}

impl Inner {
    pub(crate) fn adds_space_prefix(&self) -> bool {
        self.settings.add_space_prefix && self.settings.algorithm == Algorithm::SentencePiece
    }
}

impl Finders {
    fn new(vocabulary: &Vocabulary, stripping: &Stripping) -> Self {
        let (mut all, mut user_defined, mut harmless) = (Vec::new(), Vec::new(), Vec::new());
        for (id, text) in vocabulary.iter() {
            let kind = vocabulary.kind(id);
            if !matches!(
                kind,
                TokenKind::Control | TokenKind::Unknown | TokenKind::UserDefined
            ) {
                continue;
            }
            // A text that is not UTF-8 occurs in no text.
            let Ok(text) = std::str::from_utf8(text) else {
                continue;
            };
            // Of equal texts the last id wins, here as everywhere.
            if vocabulary.id_of(text.as_bytes()) != Some(id) {
                continue;
            }
            let (strip_left, strip_right) = stripping.sides(text);
            let pattern = Pattern {
                id,
                text: text.to_owned(),
                strip_left,
                strip_right,
            };
            if kind == TokenKind::UserDefined {
                if !vocabulary.is_protocol(id) {
                    harmless.push(pattern.clone());
                }
                user_defined.push(pattern.clone());
            }
            all.push(pattern);
        }
        Self {
            all: Finder::new(all),
            user_defined: Finder::new(user_defined),
            harmless: Finder::new(harmless),
        }
    }
}

/// What two functions return, the second on a thread of its own if asked for and to be had.
fn both<A, B: Send>(
    in_parallel: bool,
    first: impl FnOnce() -> A,
    second: impl FnOnce() -> B + Send,
) -> (A, B) {
    // Taken by whichever thread runs it: one that cannot be made does not give it back.
    let second = Mutex::new(Some(second));
    let run_second = || {
        let second = second.lock().ok().and_then(|mut second| second.take());
        second.map(|second| second())
    };
    std::thread::scope(|scope| {
        let thread = in_parallel
            .then(|| std::thread::Builder::new().spawn_scoped(scope, run_second))
            .and_then(Result::ok);
        let first = first();
        let second = match thread {
            Some(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            None => run_second(),
        };
        (first, second.expect("nothing else has run it"))
    })
}

/// With more, a thread of their own pays.
const FEW_MERGES: usize = 20_000;

/// One text being encoded.
struct Encoder<'t> {
    inner: &'t Inner,
    add_special: bool,
    ids: Vec<TokenId>,
    /// Whether a text fragment here gets the space prefix: at the start and after special tokens.
    at_start: bool,
    scratch: Scratch,
    escaped: String,
}

impl<'t> Encoder<'t> {
    fn new(inner: &'t Inner, text_len: usize, add_special: bool) -> Self {
        // English has four bytes a token or more.
        let mut ids = Vec::with_capacity(text_len / 4 + 2);
        let mut scratch = Scratch::default();
        if text_len >= cache::MIN_TEXT {
            scratch.cache.enable();
        }
        if add_special && inner.settings.add_bos {
            ids.extend(inner.special.bos);
        }
        Self {
            inner,
            add_special,
            ids,
            at_start: true,
            scratch,
            escaped: String::new(),
        }
    }

    fn part(&mut self, text: &str, part: Part) {
        if let Some(id) = part.token {
            self.ids.push(id);
            self.at_start = true;
        } else {
            self.fragment(&text[part.start..part.end]);
            self.at_start = false;
        }
    }

    fn fragment(&mut self, text: &str) {
        let vocabulary = &self.inner.vocabulary;
        match &self.inner.model {
            Model::Bpe(bpe) => bpe.encode(vocabulary, text, &mut self.scratch, &mut self.ids),
            Model::SentencePiece(model) => {
                self.escaped.clear();
                if self.at_start && self.inner.adds_space_prefix() {
                    self.escaped.push(SPACE);
                }
                self.escaped
                    .extend(text.chars().map(|c| if c == ' ' { SPACE } else { c }));
                model.encode(vocabulary, &self.escaped, &mut self.scratch, &mut self.ids);
            }
        }
    }

    fn finish(mut self) -> Vec<TokenId> {
        if self.add_special {
            if self.inner.settings.add_sep {
                self.ids.extend(self.inner.special.separator);
            }
            if self.inner.settings.add_eos {
                self.ids.extend(self.inner.special.eos);
            }
        }
        self.ids
    }
}
