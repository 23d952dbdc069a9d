//! Which classes a character is in, as far as pre-tokenizers ask: one table lookup a character.
//!
//! The data are those of `regex-syntax`, cut back to Unicode 15.1: that is what the reference uses (found by comparing all
//! code points), and hardly a vocabulary was made with a later version. To it, later characters are of no class.

use std::sync::LazyLock;

use regex_syntax::hir::{Class, HirKind};

/// A set of character classes, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Classes(u16);

impl Classes {
    pub(crate) const NONE: Self = Self(0);
    /// Lu and Lt.
    pub(crate) const UPPER: Self = Self(1);
    /// Ll.
    pub(crate) const LOWER: Self = Self(1 << 1);
    /// Lm and Lo: letters that count as upper and as lower case where a rule asks.
    pub(crate) const CASELESS: Self = Self(1 << 2);
    /// M.
    pub(crate) const MARK: Self = Self(1 << 3);
    /// N.
    pub(crate) const NUMBER: Self = Self(1 << 4);
    /// P.
    pub(crate) const PUNCTUATION: Self = Self(1 << 5);
    /// S.
    pub(crate) const SYMBOL: Self = Self(1 << 6);
    /// The property White_Space, 25 characters.
    pub(crate) const SPACE: Self = Self(1 << 7);
    /// CR and LF.
    pub(crate) const NEWLINE: Self = Self(1 << 8);
    /// The script Han.
    pub(crate) const HAN: Self = Self(1 << 9);
    /// L.
    pub(crate) const LETTER: Self = Self::UPPER.or(Self::LOWER).or(Self::CASELESS);

    pub(crate) const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether the two have a class in common.
    pub(crate) const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// Classes of all characters: pages of 256, equal pages stored once.
#[derive(Debug)]
pub(crate) struct ClassTable {
    page_of: Vec<u16>,
    pages: Vec<[Classes; 256]>,
}

impl ClassTable {
    /// The one table, made on first use (about a millisecond).
    pub(crate) fn get() -> &'static Self {
        static TABLE: LazyLock<ClassTable> = LazyLock::new(ClassTable::build);
        &TABLE
    }

    /// The classes of `c`.
    pub(crate) fn classes(&self, c: char) -> Classes {
        let code = c as usize;
        self.pages[usize::from(self.page_of[code >> 8])][code & 0xFF]
    }

    fn build() -> Self {
        let n_pages = (char::MAX as usize >> 8) + 1;
        let mut is_assigned = vec![false; char::MAX as usize + 1];
        for (first, last) in class_ranges(r"\p{Age=15.1}") {
            is_assigned[first as usize..=last as usize].fill(true);
        }
        let mut flat = vec![[Classes::NONE; 256]; n_pages];
        for (pattern, class) in [
            (r"[\p{Lu}\p{Lt}]", Classes::UPPER),
            (r"\p{Ll}", Classes::LOWER),
            (r"[\p{Lm}\p{Lo}]", Classes::CASELESS),
            (r"\p{M}", Classes::MARK),
            (r"\p{N}", Classes::NUMBER),
            (r"\p{P}", Classes::PUNCTUATION),
            (r"\p{S}", Classes::SYMBOL),
            (r"\p{Han}", Classes::HAN),
        ] {
            for (first, last) in class_ranges(pattern) {
                for code in (first as usize..=last as usize).filter(|&code| is_assigned[code]) {
                    let entry = &mut flat[code >> 8][code & 0xFF];
                    *entry = entry.or(class);
                }
            }
        }
        for code in
            (0..=0x3000).filter(|&code| char::from_u32(code).is_some_and(char::is_whitespace))
        {
            let entry = &mut flat[code as usize >> 8][code as usize & 0xFF];
            *entry = entry.or(Classes::SPACE);
        }
        for newline in [b'\r', b'\n'] {
            let entry = &mut flat[0][usize::from(newline)];
            *entry = entry.or(Classes::NEWLINE);
        }

        let mut table = Self {
            page_of: Vec::with_capacity(n_pages),
            pages: Vec::new(),
        };
        for page in flat {
            // Neighbours are often alike (ideographs, unassigned planes); looking back a little finds most repeats.
            let known = table
                .pages
                .iter()
                .rev()
                .take(8)
                .position(|other| *other == page);
            let index = known.map_or(table.pages.len(), |back| table.pages.len() - 1 - back);
            if known.is_none() {
                table.pages.push(page);
            }
            table.page_of.push(index as u16);
        }
        table
    }
}

/// The code point ranges that a one-class pattern matches.
fn class_ranges(pattern: &str) -> Vec<(char, char)> {
    let hir = regex_syntax::parse(pattern).expect("the patterns above are well formed");
    match hir.kind() {
        HirKind::Class(Class::Unicode(class)) => class
            .iter()
            .map(|range| (range.start(), range.end()))
            .collect(),
        kind => unreachable!("a class pattern parses as a Unicode class, not {kind:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_of_sample_characters() {
        let table = ClassTable::get();
        for (c, class) in [
            ('A', Classes::UPPER),
            ('ǅ', Classes::UPPER),
            ('é', Classes::LOWER),
            ('中', Classes::CASELESS.or(Classes::HAN)),
            ('ʰ', Classes::CASELESS),
            ('\u{301}', Classes::MARK),
            ('5', Classes::NUMBER),
            ('½', Classes::NUMBER),
            ('!', Classes::PUNCTUATION),
            ('+', Classes::SYMBOL),
            ('\u{3000}', Classes::SPACE),
            ('\u{85}', Classes::SPACE),
            ('\n', Classes::SPACE.or(Classes::NEWLINE)),
            ('\0', Classes::NONE),
            // A letter since Unicode 16.
            ('\u{13EB5}', Classes::NONE),
            ('\u{10FFFF}', Classes::NONE),
        ] {
            assert_eq!(table.classes(c), class, "{c:?}");
        }
        assert_eq!(
            ('\0'..=char::MAX)
                .filter(|&c| table.classes(c).meets(Classes::SPACE))
                .count(),
            25
        );
    }
}
