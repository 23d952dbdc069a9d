//! The rule sets, each the data of one published regular expression or a sequence of them.
//!
//! Where the reference engine reads a pattern with its categories of letters taken together, so do these: the ids must
//! be the same.

use super::rules::{CasedWord, CharSet, Rule, Run, Stage};
use crate::unicode::Classes;

const LETTER: CharSet = CharSet::of(Classes::LETTER);
const LETTER_MARK: CharSet = CharSet::of(Classes::LETTER.or(Classes::MARK));
const NUMBER: CharSet = CharSet::of(Classes::NUMBER);
const PUNCTUATION: CharSet = CharSet::of(Classes::PUNCTUATION);
const PUNCTUATION_SYMBOL: CharSet = CharSet::of(Classes::PUNCTUATION.or(Classes::SYMBOL));
const SPACE: CharSet = CharSet::of(Classes::SPACE);
const NEWLINE: CharSet = CharSet::of(Classes::NEWLINE);
const LINE_FEED: CharSet = CharSet::ranges(&[('\n', '\n')]);
const NOT_LINE_FEED: CharSet = CharSet::none_of(Classes::NONE).with(&[('\n', '\n')]);
const NEWLINE_SLASH: CharSet = NEWLINE.with(&[('/', '/')]);
const BLANK: CharSet = CharSet::ranges(&[(' ', ' ')]);
const ASCII_DIGIT: CharSet = CharSet::ranges(&[('0', '9')]);
const ASCII_LETTER: CharSet = CharSet::ranges(&[('A', 'Z'), ('a', 'z')]);
const ASCII_PUNCTUATION: CharSet =
    CharSet::ranges(&[('!', '/'), (':', '@'), ('[', '`'), ('{', '~')]);
/// `[^\s\p{L}\p{N}]`
const OTHER: CharSet = CharSet::none_of(Classes::SPACE.or(Classes::LETTER).or(Classes::NUMBER));
/// `[^\r\n\p{L}\p{N}]`
const WORD_LEAD: CharSet =
    CharSet::none_of(Classes::NEWLINE.or(Classes::LETTER).or(Classes::NUMBER));
/// `[^\r\n\p{L}\p{P}\p{S}]`
const WORD_LEAD_NO_PUNCTUATION: CharSet = CharSet::none_of(
    Classes::NEWLINE
        .or(Classes::LETTER)
        .or(Classes::PUNCTUATION)
        .or(Classes::SYMBOL),
);

const CONTRACTION: Rule = Rule::Contraction { any_case: false };
const CONTRACTION_ANY_CASE: Rule = Rule::Contraction { any_case: true };
/// `[^\r\n\p{L}\p{N}]?\p{L}+`
const WORD: Rule = Run::of(LETTER).after_optional(WORD_LEAD).rule();
/// `[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+`
const MARKED_WORD: Rule = Run::of(LETTER_MARK)
    .after_optional(WORD_LEAD_NO_PUNCTUATION)
    .rule();
/// `[!-/:-@\[-`{-~][A-Za-z]+`
const PUNCTUATED_WORD: Rule = Run::of(ASCII_LETTER).after(ASCII_PUNCTUATION).rule();
const ONE_NUMBER: Rule = Run::of(NUMBER).times(1, 1).rule();
const THREE_NUMBERS: Rule = Run::of(NUMBER).times(1, 3).rule();
/// ` ?[^\s\p{L}\p{N}]+[\r\n]*`
const OTHERS: Rule = Run::of(OTHER)
    .after_optional(BLANK)
    .then(NEWLINE, u32::MAX)
    .rule();
/// ` ?[^\s\p{L}\p{N}]+[\r\n/]*`
const OTHERS_SLASH: Rule = Run::of(OTHER)
    .after_optional(BLANK)
    .then(NEWLINE_SLASH, u32::MAX)
    .rule();
/// ` ?[\p{P}\p{S}]+[\r\n]*`
const PUNCTUATIONS: Rule = Run::of(PUNCTUATION_SYMBOL)
    .after_optional(BLANK)
    .then(NEWLINE, u32::MAX)
    .rule();
const SPACES: Rule = Run::of(SPACE).rule();

const NUMBERS_STAGE: Stage = Stage::Rules(&[Run::of(NUMBER).rule()]);
const ONE_NUMBER_STAGE: Stage = Stage::Rules(&[ONE_NUMBER]);
const THREE_NUMBERS_STAGE: Stage = Stage::Rules(&[THREE_NUMBERS]);
const NEWLINE_STAGE: Stage = Stage::Rules(&[Run::of(NEWLINE).times(1, 1).rule()]);
const LINES_STAGE: Stage =
    Stage::Rules(&[Run::of(NOT_LINE_FEED).rule(), Run::of(LINE_FEED).rule()]);
const GPT2_STAGE: Stage = Stage::Rules(&[
    CONTRACTION,
    Run::of(LETTER).after_optional(BLANK).rule(),
    Run::of(NUMBER).after_optional(BLANK).rule(),
    Run::of(OTHER).after_optional(BLANK).rule(),
    Rule::SpacesBeforeText,
]);
/// One digit a piece.
const QWEN2_STAGE: Stage = Stage::Rules(&[
    CONTRACTION_ANY_CASE,
    WORD,
    ONE_NUMBER,
    OTHERS,
    Rule::ThroughLastNewline,
    Rule::SpacesBeforeText,
    SPACES,
]);

pub(super) const GPT2: &[Stage] = &[GPT2_STAGE];
pub(super) const STARCODER: &[Stage] = &[ONE_NUMBER_STAGE, GPT2_STAGE];
pub(super) const QWEN2: &[Stage] = &[QWEN2_STAGE];
/// Up to three digits a piece.
pub(super) const LLAMA3: &[Stage] = &[Stage::Rules(&[
    CONTRACTION_ANY_CASE,
    WORD,
    THREE_NUMBERS,
    OTHERS,
    Rule::ThroughLastNewline,
    Rule::SpacesBeforeText,
    SPACES,
])];
/// Marks count as letters.
pub(super) const QWEN35: &[Stage] = &[Stage::Rules(&[
    CONTRACTION_ANY_CASE,
    Run::of(LETTER_MARK).after_optional(WORD_LEAD).rule(),
    ONE_NUMBER,
    Run::of(CharSet::none_of(
        Classes::SPACE
            .or(Classes::LETTER)
            .or(Classes::MARK)
            .or(Classes::NUMBER),
    ))
    .after_optional(BLANK)
    .then(NEWLINE, u32::MAX)
    .rule(),
    Rule::ThroughLastNewline,
    Rule::SpacesBeforeText,
    SPACES,
])];
pub(super) const DEFAULT: &[Stage] = &[
    Stage::Rules(&[Run::of(PUNCTUATION.with(DEFAULT_SYMBOLS)).rule()]),
    GPT2_STAGE,
    NUMBERS_STAGE,
    Stage::Rules(&[Run::of(ASCII_DIGIT).times(3, 3).rule()]),
];
pub(super) const FALCON: &[Stage] = &[
    Stage::Rules(&[Run::of(PUNCTUATION.with(FALCON_SYMBOLS)).rule()]),
    GPT2_STAGE,
    Stage::Rules(&[Run::of(ASCII_DIGIT).times(3, 3).rule()]),
];
/// Only `\s` sees white space beyond ASCII, ranges do not: so the reference reads these patterns.
const DEEPSEEK_IDEOGRAPH: CharSet = CharSet::ranges(DEEPSEEK_IDEOGRAPHS).except(Classes::SPACE);
pub(super) const DEEPSEEK_LLM: &[Stage] = &[
    NEWLINE_STAGE,
    Stage::Rules(&[Run::of(CharSet::ranges(DEEPSEEK_LETTERS))
        .after_optional(SPACE)
        .rule()]),
    Stage::Rules(&[
        Run::of(CharSet::ranges(DEEPSEEK_PUNCTUATION).except(Classes::SPACE))
            .after_optional(SPACE)
            .rule(),
    ]),
    Stage::Rules(&[Rule::Trailing(SPACE)]),
    Stage::Rules(&[Run::of(DEEPSEEK_IDEOGRAPH).rule()]),
    NUMBERS_STAGE,
];
pub(super) const DEEPSEEK_CODER: &[Stage] = &[
    NEWLINE_STAGE,
    Stage::Rules(&[Run::of(LETTER).after_optional(SPACE).rule()]),
    Stage::Rules(&[Run::of(PUNCTUATION).after_optional(SPACE).rule()]),
    Stage::Rules(&[Run::of(DEEPSEEK_IDEOGRAPH).rule()]),
    ONE_NUMBER_STAGE,
];
pub(super) const DEEPSEEK_V3: &[Stage] = &[
    THREE_NUMBERS_STAGE,
    Stage::Rules(&[Run::of(CharSet::ranges(CJK_KANA)).rule()]),
    Stage::Rules(&[
        PUNCTUATED_WORD,
        MARKED_WORD,
        PUNCTUATIONS,
        Rule::ThroughLastNewline,
        Rule::SpacesBeforeText,
        SPACES,
    ]),
];
pub(super) const SPARK2_5: &[Stage] = &[
    THREE_NUMBERS_STAGE,
    Stage::Rules(&[Run::of(CharSet::ranges(CJK_KANA)).rule()]),
    Stage::Rules(&[
        PUNCTUATED_WORD,
        MARKED_WORD,
        Run::of(PUNCTUATION_SYMBOL).after_optional(BLANK).rule(),
        Run::of(NEWLINE).times(1, 1).rule(),
        Rule::SpacesBeforeText,
        SPACES,
    ]),
    ONE_NUMBER_STAGE,
];
pub(super) const AFMOE: &[Stage] = &[
    Stage::DigitGroups(NUMBER),
    Stage::Rules(&[Run::of(CharSet::ranges(AFMOE_SCRIPTS)).rule()]),
    Stage::Rules(&[
        PUNCTUATED_WORD,
        MARKED_WORD,
        PUNCTUATIONS,
        Rule::ThroughLastNewline,
        Rule::SpacesBeforeText,
        SPACES,
    ]),
];
pub(super) const YOUTU: &[Stage] = &[
    Stage::Rules(&[
        Run::of(CharSet::ranges(&[('가', '힣'), ('ㄱ', 'ㆎ')])).rule(),
        Run::of(CharSet::ranges(YOUTU_PUNCTUATION)).rule(),
        Run::of(CharSet::ranges(&[('ㄅ', 'ㄯ')])).rule(),
        Run::of(CharSet::ranges(CJK_KANA)).rule(),
    ]),
    Stage::Rules(&[
        Run::of(LETTER_MARK)
            .after_optional(WORD_LEAD)
            .then_contraction()
            .rule(),
        ONE_NUMBER,
        OTHERS_SLASH,
        Rule::ThroughLastNewline,
        Rule::SpacesBeforeText,
        SPACES,
    ]),
];
pub(super) const TINY_AYA: &[Stage] = &[
    Stage::DigitGroups(NUMBER),
    Stage::Rules(&[
        Run::of(LETTER_MARK)
            .after_optional(WORD_LEAD)
            .then_contraction()
            .rule(),
        THREE_NUMBERS,
        OTHERS_SLASH,
        Rule::ThroughLastNewline,
        Rule::SpacesBeforeText,
        SPACES,
    ]),
];
pub(super) const GPT4O: &[Stage] = &[Stage::Rules(&[
    Rule::CasedWord(CasedWord {
        lead: WORD_LEAD,
        upper: NOT_ASCII_LOWER,
        lower: NOT_ASCII_UPPER,
        contraction: true,
    }),
    THREE_NUMBERS,
    OTHERS_SLASH,
    Rule::ThroughLastNewline,
    Rule::SpacesBeforeText,
    SPACES,
])];
pub(super) const GRANITE_EMBED_MULTI: &[Stage] = &[Stage::Rules(&[
    Rule::CasedWord(CasedWord {
        lead: WORD_LEAD,
        upper: LETTER_MARK.except_range(&[('a', 'z')]),
        lower: LETTER_MARK.except_range(&[('A', 'Z')]),
        contraction: true,
    }),
    THREE_NUMBERS,
    OTHERS_SLASH,
    Rule::ThroughLastNewline,
    Rule::SpacesBeforeText,
    SPACES,
])];
pub(super) const TEKKEN: &[Stage] = &[Stage::Rules(&[
    Rule::CasedWord(CasedWord {
        lead: WORD_LEAD,
        upper: NOT_ASCII_LOWER,
        lower: NOT_ASCII_UPPER,
        contraction: false,
    }),
    ONE_NUMBER,
    OTHERS_SLASH,
    Rule::ThroughLastNewline,
    Rule::SpacesBeforeText,
    SPACES,
])];
pub(super) const KIMI_K2: &[Stage] = &[Stage::Rules(&[
    Run::of(CharSet::of(Classes::HAN)).rule(),
    Rule::CasedWord(CasedWord {
        lead: WORD_LEAD,
        upper: CharSet::of(Classes::UPPER.or(Classes::CASELESS).or(Classes::MARK))
            .except(Classes::HAN),
        lower: CharSet::of(Classes::LOWER.or(Classes::CASELESS).or(Classes::MARK))
            .except(Classes::HAN),
        contraction: true,
    }),
    THREE_NUMBERS,
    OTHERS,
    Rule::ThroughLastNewline,
    Rule::SpacesBeforeText,
    SPACES,
])];
/// Words, with all that is not white space or one of a few signs.
pub(super) const BLOOM: &[Stage] = &[BLOOM_STAGE];
pub(super) const VIKING: &[Stage] = &[BLOOM_STAGE, ONE_NUMBER_STAGE];
const BLOOM_STAGE: Stage = Stage::Rules(&[Run::of(
    CharSet::none_of(Classes::SPACE).with(BLOOM_SIGNS),
)
.after_optional(BLANK)
.rule()]);
pub(super) const SUPERBPE: &[Stage] = &[NUMBERS_STAGE, Stage::DigitGroups(ASCII_DIGIT)];
pub(super) const BAILINGMOE: &[Stage] = QWEN2;
pub(super) const SEED_CODER: &[Stage] = &[Stage::Rules(&[
    CONTRACTION_ANY_CASE,
    WORD,
    ONE_NUMBER,
    Run::of(OTHER).after_optional(BLANK).rule(),
    Rule::ThroughLastNewline,
    Rule::SpacesBeforeText,
    SPACES,
])];
pub(super) const UFAKZEKA: &[Stage] = &[Stage::Rules(&[
    WORD,
    ONE_NUMBER,
    OTHERS,
    Rule::ThroughLastNewline,
    Rule::SpacesBeforeText,
    SPACES,
])];
pub(super) const LAGUNA: &[Stage] = &[LINES_STAGE, QWEN2_STAGE];
pub(super) const EXAONE_MOE: &[Stage] = &[Stage::Rules(&[
    CONTRACTION_ANY_CASE,
    Rule::Phrase { lead: WORD_LEAD },
    ONE_NUMBER,
    Run::of(OTHER)
        .after_optional(BLANK)
        .then(NEWLINE_SLASH, 1)
        .rule(),
    Rule::ThroughLastNewline,
    Rule::SpacesBeforeText,
    SPACES,
])];
pub(super) const MINICPM5: &[Stage] = &[
    THREE_NUMBERS_STAGE,
    Stage::Rules(&[
        CONTRACTION_ANY_CASE,
        WORD,
        Run::of(NUMBER).rule(),
        OTHERS,
        Rule::ThroughLastNewline,
        Rule::SpacesBeforeText,
        SPACES,
    ]),
];
pub(super) const JAIS2: &[Stage] = &[Stage::Rules(&[
    CONTRACTION_ANY_CASE,
    WORD,
    THREE_NUMBERS,
    OTHERS,
    Rule::ThroughLastNewline,
    Rule::SpacesExactly(512),
    Rule::SpacesExactly(256),
    Rule::SpacesExactly(128),
    Rule::SpacesExactly(64),
    Rule::SpacesExactly(32),
    Rule::SpacesExactly(16),
    Rule::SpacesExactly(8),
    Rule::SpacesExactly(4),
    Rule::SpacesExactly(2),
    Rule::SpacesExactly(1),
    Run::of(SPACE).times(1, 1).rule(),
])];
pub(super) const CHAMELEON: &[Stage] = &[
    Stage::Rules(&[Rule::Bracketed {
        before: "<sentinel:",
        body: ASCII_DIGIT,
        max: u32::MAX,
        after: ">",
    }]),
    Stage::Rules(&[Rule::Bracketed {
        before: "IMGIMG",
        body: CharSet::ranges(&[('A', 'I')]),
        max: 4,
        after: "Z",
    }]),
    Stage::Rules(&[
        Rule::Literal("\t"),
        Rule::Literal("\n"),
        Rule::Literal("    "),
        Rule::Literal("  "),
    ]),
    ONE_NUMBER_STAGE,
    Stage::Rules(&[Run::of(PUNCTUATION.with(ASCII_SIGNS)).times(1, 1).rule()]),
    GPT2_STAGE,
];
/// Lines and runs of line feeds.
pub(super) const LINES: &[Stage] = &[LINES_STAGE];

const NOT_ASCII_LOWER: CharSet = LETTER.except_range(&[('a', 'z')]);
const NOT_ASCII_UPPER: CharSet = LETTER.except_range(&[('A', 'Z')]);
const ASCII_SIGNS: &[(char, char)] = &[('!', '/'), (':', '@'), ('[', '`'), ('{', '~')];
const DEFAULT_SYMBOLS: &[(char, char)] = &[
    ('$', '$'),
    ('+', '+'),
    ('<', '>'),
    ('^', '^'),
    ('|', '|'),
    ('~', '~'),
];
const FALCON_SYMBOLS: &[(char, char)] = &[
    ('$', '$'),
    ('+', '+'),
    ('<', '>'),
    ('^', '^'),
    ('`', '`'),
    ('|', '|'),
    ('~', '~'),
];
const BLOOM_SIGNS: &[(char, char)] = &[
    ('(', ')'),
    ('|', '|'),
    ('.', '.'),
    (',', ','),
    ('!', '!'),
    ('?', '?'),
    ('…', '…'),
    ('。', '。'),
    ('，', '，'),
    ('、', '、'),
    ('।', '।'),
    ('۔', '۔'),
    ('،', '،'),
];
const CJK_KANA: &[(char, char)] = &[('一', '龥'), ('\u{3040}', 'ゟ'), ('゠', 'ヿ')];
/// Cased letters as DeepSeek lists them.
#[rustfmt::skip]
const DEEPSEEK_LETTERS: &[(char, char)] = &[
    ('A', 'Z'), ('a', 'z'), ('µ', 'µ'), ('À', 'Ö'), ('Ø', 'ö'),
    ('ø', 'ƺ'), ('Ƽ', 'ƿ'), ('Ǆ', 'ʓ'), ('ʕ', 'ʯ'), ('Ͱ', 'ͳ'),
    ('Ͷ', 'Ͷ'), ('ͷ', 'ͷ'), ('ͻ', 'ͽ'), ('Ϳ', 'Ϳ'), ('Ά', 'Ά'),
    ('Έ', 'Ί'), ('Ό', 'Ό'), ('Ύ', 'Ρ'), ('Σ', 'ϵ'), ('Ϸ', 'ҁ'),
    ('Ҋ', 'ԯ'), ('Ա', 'Ֆ'), ('Ⴀ', 'Ⴥ'), ('Ꭰ', 'Ᏽ'), ('ᏸ', 'ᏽ'),
    ('Ა', 'Ჺ'), ('Ჽ', 'Ჿ'), ('ᴀ', 'ᴫ'), ('ᵫ', 'ᵷ'), ('ᵹ', 'ᶚ'),
    ('Ḁ', 'ἕ'), ('Ἐ', 'Ἕ'), ('ἠ', 'ὅ'), ('Ὀ', 'Ὅ'), ('ὐ', 'ὗ'),
    ('Ὑ', 'Ὑ'), ('Ὓ', 'Ὓ'), ('Ὕ', 'Ὕ'), ('Ὗ', '\u{1F7D}'), ('ᾀ', 'ᾴ'),
    ('ᾶ', 'ᾼ'), ('\u{1FBE}', '\u{1FBE}'), ('ῂ', 'ῄ'), ('ῆ', 'ῌ'), ('ῐ', '\u{1FD3}'),
    ('ῖ', '\u{1FDB}'), ('ῠ', 'Ῥ'), ('ῲ', 'ῴ'), ('ῶ', 'ῼ'), ('ℂ', 'ℂ'),
    ('ℇ', 'ℇ'), ('ℊ', 'ℓ'), ('ℕ', 'ℕ'), ('ℙ', 'ℝ'), ('ℤ', 'ℤ'),
    ('\u{2126}', '\u{2126}'), ('ℨ', 'ℨ'), ('\u{212A}', 'ℭ'), ('ℯ', 'ℴ'), ('ℹ', 'ℹ'),
    ('ℼ', 'ℿ'), ('ⅅ', 'ⅉ'), ('ⅎ', 'ⅎ'), ('Ↄ', 'Ↄ'), ('ↄ', 'ↄ'),
    ('Ⰰ', 'ⱻ'), ('Ȿ', 'ⳤ'), ('Ⳬ', 'ⳮ'), ('Ⳳ', 'Ⳳ'), ('ⳳ', 'ⳳ'),
    ('Ꙁ', 'ꙭ'), ('Ꚁ', 'ꚛ'), ('Ꜣ', 'ꝯ'), ('ꝱ', 'ꞇ'), ('Ꞌ', 'ꞎ'),
    ('ꭰ', 'ꮿ'), ('ﬀ', 'ﬆ'), ('ﬓ', 'ﬗ'), ('Ａ', 'Ｚ'), ('ａ', 'ｚ'),
    ('𐐀', '𐑏'), ('𐒰', '𐓓'), ('𐓘', '𐓻'), ('𐲀', '𐲲'), ('𐳀', '𐳲'),
    ('𑢠', '𑣟'), ('𞤀', '𞥃'),
];
/// The last range holds the ideographic space.
#[rustfmt::skip]
const DEEPSEEK_PUNCTUATION: &[(char, char)] = &[
    ('!', '/'), (':', '~'), ('！', '／'), ('：', '～'), ('‘', '‟'),
    ('\u{3000}', '。'),
];
/// The second range, U+0800 to U+4E00, is the published one.
#[rustfmt::skip]
const DEEPSEEK_IDEOGRAPHS: &[(char, char)] = &[
    ('一', '龥'), ('ࠀ', '一'), ('가', '\u{D7FF}'),
];
/// Scripts written without spaces.
#[rustfmt::skip]
const AFMOE_SCRIPTS: &[(char, char)] = &[
    ('一', '鿿'), ('㐀', '䶿'), ('\u{F900}', '\u{FAFF}'), ('\u{3040}', 'ゟ'), ('゠', 'ヿ'),
    ('･', 'ﾟ'), ('⼀', '\u{2FDF}'), ('เ', '\u{E7F}'), ('\u{E80}', '\u{EFF}'), ('ក', '\u{17FF}'),
    ('က', '႟'), ('ꩠ', 'ꩿ'), ('ꧠ', '\u{A9FF}'), ('가', '\u{D7AF}'), ('ᄀ', 'ᇿ'),
];
/// Punctuation of East Asian texts.
#[rustfmt::skip]
const YOUTU_PUNCTUATION: &[(char, char)] = &[
    ('！', '！'), ('…', '…'), ('“', '“'), ('”', '”'), ('‘', '‘'),
    ('’', '’'), ('—', '—'), ('：', '：'), ('；', '；'), ('，', '，'),
    ('、', '〿'), ('︰', '﹏'),
];
