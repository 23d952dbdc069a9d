//! Sets of characters, as ranges of code points.

/// Ranges of code points, in order, apart from each other, without surrogates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CharSet {
    ranges: Vec<(u32, u32)>,
}

impl CharSet {
    /// The characters of `ranges`, first and last of each.
    pub(super) fn new(ranges: impl IntoIterator<Item = (char, char)>) -> Self {
        Self::from_codes(
            ranges
                .into_iter()
                .map(|(first, last)| (u32::from(first), u32::from(last)))
                .collect(),
        )
    }

    pub(super) fn one(c: char) -> Self {
        Self::new([(c, c)])
    }

    /// Every character.
    pub(super) fn all() -> Self {
        Self::new([('\0', char::MAX)])
    }

    /// All other characters.
    pub(super) fn negated(&self) -> Self {
        let mut gaps = Vec::new();
        let mut next = 0;
        for &(first, last) in &self.ranges {
            if next < first {
                gaps.push((next, first - 1));
            }
            next = last + 1;
        }
        if next <= MAX {
            gaps.push((next, MAX));
        }
        Self::from_codes(gaps)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// First and last code point of each range.
    pub(super) fn ranges(&self) -> &[(u32, u32)] {
        &self.ranges
    }

    fn from_codes(mut ranges: Vec<(u32, u32)>) -> Self {
        ranges.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match merged.last_mut() {
                Some((_, end)) if first <= *end + 1 => *end = last.max(*end),
                _ => merged.push((first, last)),
            }
        }
        // Surrogates are no characters.
        let ranges = merged
            .into_iter()
            .flat_map(|(first, last)| {
                [
                    (first, last.min(SURROGATES.0 - 1)),
                    (first.max(SURROGATES.1 + 1), last),
                ]
            })
            .filter(|(first, last)| first <= last)
            .fold(Vec::new(), |mut ranges: Vec<(u32, u32)>, range| {
                // A range on one side of the surrogates comes out of both cuts.
                if ranges.last() != Some(&range) {
                    ranges.push(range);
                }
                ranges
            });
        Self { ranges }
    }
}

const MAX: u32 = char::MAX as u32;
const SURROGATES: (u32, u32) = (0xD800, 0xDFFF);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_merge_and_negate_without_surrogates() {
        let set = CharSet::new([('c', 'e'), ('a', 'b'), ('d', 'k')]);
        assert_eq!(set.ranges(), [(0x61, 0x6B)]);
        assert_eq!(
            set.negated().ranges(),
            [(0, 0x60), (0x6C, 0xD7FF), (0xE000, 0x10_FFFF)]
        );
        assert_eq!(set.negated().negated(), set);
        assert!(CharSet::all().negated().is_empty());
        assert_eq!(CharSet::one('\u{E000}').ranges(), [(0xE000, 0xE000)]);
    }
}
