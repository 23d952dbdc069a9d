//! The tokens still in the running for one draw, and the selections that the steps are built on.
//!
//! Memory for a whole vocabulary is taken once, when the sequence is made; a draw allocates nothing. Candidates always stay in
//! order of id: a step finds its threshold in a scratch list and then filters in place. So draws do not depend on how the
//! standard library happens to arrange equal parts, and the vocabulary is never sorted: `keep_best` and `keep_mass` select in
//! linear time. Larger keys are better; of equal keys the lower id is better.

use rsllm_cpu::largest;

use super::SamplingError;
use super::softmax::softmax_weight;
use crate::TokenId;

/// One token in the running.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The token.
    pub id: TokenId,
    /// Its current logit: finite or negative infinity, never NaN.
    pub logit: f32,
}

/// The candidates of one draw, in order of id.
#[derive(Debug)]
pub struct Candidates {
    vocab_size: usize,
    /// At most `vocab_size`.
    entries: Vec<Candidate>,
    /// Scratch of the selections, at most `vocab_size`.
    ranked: Vec<Ranked>,
    /// The largest logit of each block of the vocabulary, and scratch for selecting among them.
    maxima: [Vec<f32>; 2],
}

/// A candidate as a selection sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ranked {
    rank: Rank,
    pub(super) weight: f32,
}

/// Key and id as one integer, so that "better" is a single comparison: the larger rank has the larger key, or the same key and
/// the lower id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank(u64);

impl Candidates {
    /// Room for a vocabulary of `vocab_size` tokens (24 bytes each).
    pub fn new(vocab_size: usize) -> Self {
        let n_blocks = vocab_size.div_ceil(BLOCK);
        Self {
            vocab_size,
            entries: Vec::with_capacity(vocab_size),
            ranked: Vec::with_capacity(vocab_size),
            maxima: [Vec::with_capacity(n_blocks), Vec::with_capacity(n_blocks)],
        }
    }

    /// Takes the whole vocabulary. Tokens at positive infinity share all probability between them; NaN is an error.
    pub fn load(&mut self, logits: &[f32]) -> Result<(), SamplingError> {
        let max = checked_max(logits, self.vocab_size)?;
        let entries = logits
            .iter()
            .zip(0..)
            .map(|(&logit, id)| Candidate { id, logit });
        self.entries.clear();
        if max == f32::INFINITY {
            self.entries.extend(entries.map(|entry| Candidate {
                logit: if entry.logit == f32::INFINITY {
                    0.0
                } else {
                    f32::NEG_INFINITY
                },
                ..entry
            }));
        } else {
            self.entries.extend(entries);
        }
        Ok(())
    }

    /// As [`Candidates::load`], for steps that change the logits of the tokens `changed` and then keep the `n_best` best: takes
    /// those that may be among them, and maybe others. The rest of the vocabulary is read once and nothing more.
    pub(super) fn load_best<'i>(
        &mut self,
        logits: &[f32],
        n_best: usize,
        changed: impl Iterator<Item = &'i TokenId> + Clone,
    ) -> Result<(), SamplingError> {
        // Of the best before the changes, so many may fall behind.
        let n_best = n_best.saturating_add(changed.clone().count());
        let [maxima, scratch] = &mut self.maxima;
        if logits.len() != self.vocab_size || n_best >= maxima.capacity() {
            return self.load(logits);
        }
        let mut is_plain = true;
        maxima.clear();
        maxima.extend(logits.chunks(BLOCK).map(|block| {
            let (max, has_nan) = largest(block);
            is_plain &= !has_nan && max < f32::INFINITY;
            max
        }));
        if !is_plain {
            return self.load(logits);
        }
        scratch.clone_from(maxima);
        // So many blocks hold a logit as large, hence so many tokens do.
        let (_, &mut bar, _) =
            scratch.select_nth_unstable_by(n_best.max(1) - 1, |a, b| b.total_cmp(a));
        self.entries.clear();
        for (i, (block, &max)) in logits.chunks(BLOCK).zip(&*maxima).enumerate() {
            if max >= bar {
                let ids = (i * BLOCK) as TokenId..;
                let best = block.iter().zip(ids).filter(|&(&logit, _)| logit >= bar);
                self.entries
                    .extend(best.map(|(&logit, id)| Candidate { id, logit }));
            }
        }
        let n_best = self.entries.len();
        for &id in changed {
            // Tokens may be named that the vocabulary lacks.
            if let Some(&logit) = logits.get(id as usize)
                && logit < bar
                && self.entries.len() < self.vocab_size
            {
                self.entries.push(Candidate { id, logit });
            }
        }
        if self.entries.len() > n_best {
            self.entries.sort_unstable_by_key(|entry| entry.id);
            self.entries.dedup_by_key(|entry| entry.id);
        }
        Ok(())
    }

    /// The candidates, in order of id.
    pub fn as_slice(&self) -> &[Candidate] {
        &self.entries
    }

    /// The same, for steps that change logits. Ids must stay as they are.
    pub(super) fn as_mut_slice(&mut self) -> &mut [Candidate] {
        &mut self.entries
    }

    /// Replaces the logit of each candidate that `by_id` names with `change(logit, value)`. `by_id` is in order of id; ids
    /// without a candidate are passed over.
    pub(super) fn change<T>(&mut self, by_id: &[(TokenId, T)], change: impl Fn(f32, &T) -> f32) {
        let is_whole_vocabulary = self.entries.len() == self.vocab_size;
        if is_whole_vocabulary {
            // Then candidate `i` is token `i`.
            for (id, value) in by_id {
                if let Some(entry) = self.entries.get_mut(*id as usize) {
                    entry.logit = change(entry.logit, value);
                }
            }
            return;
        }
        let mut rest = by_id.iter().peekable();
        for entry in &mut self.entries {
            while rest.next_if(|(id, _)| *id < entry.id).is_some() {}
            if let Some((_, value)) = rest.next_if(|(id, _)| *id == entry.id) {
                entry.logit = change(entry.logit, value);
            }
        }
    }

    /// The largest logit; negative infinity when every token is banned.
    pub(super) fn max_logit(&self) -> f32 {
        self.entries.iter().fold(f32::NEG_INFINITY, |max, entry| {
            if entry.logit > max { entry.logit } else { max }
        })
    }

    /// Keeps the candidates for which `keep` holds.
    pub(super) fn retain(&mut self, keep: impl Fn(&Candidate) -> bool) {
        self.entries.retain(keep);
    }

    /// Keeps the `k` best candidates by logit, `k` above 0.
    pub(super) fn keep_best(&mut self, k: usize) {
        if k >= self.entries.len() {
            return;
        }
        let entries = self
            .entries
            .iter()
            .map(|entry| Ranked::new(entry.logit, entry.id, 0.0));
        select_best(&mut self.ranked, entries, k);
        let worst = self.ranked[k - 1].rank;
        self.retain(|entry| Rank::new(entry.logit, entry.id) >= worst);
    }

    /// Keeps the shortest best-first list of candidates whose probabilities together make `reached` true, ranked by `key`.
    /// `reached` sees shares of 1 and must be monotonic; when it never holds, everything is kept.
    pub(super) fn keep_mass(&mut self, key: impl Fn(f32) -> f32, reached: impl Fn(f64) -> bool) {
        let max = self.max_logit();
        if max == f32::NEG_INFINITY {
            return;
        }
        self.ranked.clear();
        let weigh = |entry: &Candidate| {
            Ranked::new(key(entry.logit), entry.id, softmax_weight(entry.logit, max))
        };
        self.ranked.extend(self.entries.iter().map(weigh));
        let total: f64 = self
            .ranked
            .iter()
            .map(|ranked| f64::from(ranked.weight))
            .sum();
        let worst = last_of_mass(&mut self.ranked, |mass| reached(mass / total)).rank;
        self.retain(|entry| Rank::new(key(entry.logit), entry.id) >= worst);
    }

    /// The scratch list, for draws that need a weight a candidate.
    pub(super) fn scratch(&mut self) -> (&[Candidate], &mut Vec<Ranked>) {
        (&self.entries, &mut self.ranked)
    }
}

impl Ranked {
    pub(super) fn new(key: f32, id: TokenId, weight: f32) -> Self {
        Self {
            rank: Rank::new(key, id),
            weight,
        }
    }

    pub(super) fn id(&self) -> TokenId {
        !(self.rank.0 as TokenId)
    }

    /// Best first.
    pub(super) fn best_first(&self, other: &Self) -> std::cmp::Ordering {
        other.rank.cmp(&self.rank)
    }
}

impl Rank {
    /// `key` is not NaN. Both zeros are the same key.
    fn new(key: f32, id: TokenId) -> Self {
        let bits = (key + 0.0).to_bits();
        // Floats order like their bits once the sign bit is set for positive ones and all bits are flipped for negative ones.
        let ordered = if bits >> 31 == 0 {
            bits | 1 << 31
        } else {
            !bits
        };
        Self(u64::from(ordered) << 32 | u64::from(!id))
    }
}

/// The largest of `vocab_size` logits; an error on NaN or another number of them.
pub(super) fn checked_max(logits: &[f32], vocab_size: usize) -> Result<f32, SamplingError> {
    if logits.len() != vocab_size {
        return Err(SamplingError::LogitCount {
            expected: vocab_size,
            found: logits.len(),
        });
    }
    let (max, has_nan) = largest(logits);
    if has_nan {
        let id = logits
            .iter()
            .position(|logit| logit.is_nan())
            .unwrap_or_default();
        return Err(SamplingError::NanLogit { id: id as TokenId });
    }
    Ok(max)
}

/// Tokens of a block whose maximum is looked at first.
const BLOCK: usize = 64;

/// Leaves the `k` best of `source` in `ranked` (or all, if fewer), the worst of them last, the rest in no order.
///
/// One pass with a list of twice `k`: when it is full, the better half stays and its worst key becomes the bar for the rest,
/// which nearly all later tokens fail with one comparison.
pub(super) fn select_best(
    ranked: &mut Vec<Ranked>,
    source: impl Iterator<Item = Ranked>,
    k: usize,
) {
    let limit = k.saturating_mul(2).max(64);
    let mut bar: Option<Rank> = None;
    ranked.clear();
    for item in source {
        if bar.is_some_and(|bar| item.rank < bar) {
            continue;
        }
        if ranked.len() == limit {
            bar = Some(truncate_to_best(ranked, k));
        }
        ranked.push(item);
    }
    if ranked.len() > k {
        truncate_to_best(ranked, k);
    }
}

/// Keeps the `k` best, the worst of them last; returns that one. `ranked` has more than `k`, and `k` is above 0.
fn truncate_to_best(ranked: &mut Vec<Ranked>, k: usize) -> Rank {
    let (_, &mut worst, _) = ranked.select_nth_unstable_by(k - 1, Ranked::best_first);
    ranked.truncate(k);
    worst.rank
}

/// The candidate at which the weights, summed best first, make `reached` true; the very worst when they never do.
///
/// Quickselect on mass: half of the range is put aside each round by its sum, so the work is linear. `ranked` is not empty.
fn last_of_mass(ranked: &mut [Ranked], reached: impl Fn(f64) -> bool) -> Ranked {
    let (mut start, mut end) = (0, ranked.len());
    let mut mass = 0.0_f64; // of everything before `start`
    while end - start > SORTED_DIRECTLY {
        let middle = start + (end - start) / 2;
        ranked[start..end].select_nth_unstable_by(middle - start, Ranked::best_first);
        let half: f64 = ranked[start..middle]
            .iter()
            .map(|item| f64::from(item.weight))
            .sum();
        if reached(mass + half) {
            end = middle;
        } else {
            mass += half;
            start = middle;
        }
    }
    let rest = &mut ranked[start..end];
    rest.sort_unstable_by(Ranked::best_first);
    for item in rest.iter() {
        mass += f64::from(item.weight);
        if reached(mass) {
            return *item;
        }
    }
    *rest
        .last()
        .expect("the range is halved only while it is longer than 32")
}

/// Below this, sorting is cheaper than halving.
const SORTED_DIRECTLY: usize = 32;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn loaded(logits: &[f32]) -> Candidates {
        let mut candidates = Candidates::new(logits.len());
        candidates.load(logits).unwrap();
        candidates
    }

    fn ids(candidates: &Candidates) -> Vec<TokenId> {
        candidates.as_slice().iter().map(|entry| entry.id).collect()
    }

    #[test]
    fn nan_and_wrong_lengths_are_errors() {
        let mut candidates = Candidates::new(20);
        let mut logits = [0.5; 20];
        for position in [0, 7, 15, 16, 19] {
            logits[position] = f32::NAN;
            assert_eq!(
                candidates.load(&logits),
                Err(SamplingError::NanLogit {
                    id: position as TokenId
                })
            );
            logits[position] = 0.5;
        }
        assert_eq!(
            candidates.load(&logits[1..]),
            Err(SamplingError::LogitCount {
                expected: 20,
                found: 19
            })
        );
    }

    #[test]
    fn faults_are_found_where_only_the_best_are_taken() {
        let mut candidates = Candidates::new(2000);
        let mut logits = vec![0.5; 2000];
        logits[1999] = f32::NAN;
        let loaded = candidates.load_best(&logits, 3, [].iter());
        assert_eq!(loaded, Err(SamplingError::NanLogit { id: 1999 }));
        logits[1999] = f32::INFINITY;
        candidates.load_best(&logits, 3, [].iter()).unwrap();
        candidates.keep_best(1);
        assert_eq!(ids(&candidates), [1999]);
        let loaded = candidates.load_best(&logits[1..], 3, [].iter());
        assert!(matches!(loaded, Err(SamplingError::LogitCount { .. })));
    }

    #[test]
    fn positive_infinity_takes_everything() {
        let candidates = loaded(&[1.0, f32::INFINITY, f32::NEG_INFINITY, f32::INFINITY]);
        let logits: Vec<f32> = candidates
            .as_slice()
            .iter()
            .map(|entry| entry.logit)
            .collect();
        assert_eq!(logits, [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY, 0.0]);
    }

    #[test]
    fn equal_logits_prefer_lower_ids_and_signed_zeros_are_equal() {
        let mut candidates = loaded(&[-0.0, 0.0, 0.0, 1.0, 0.0]);
        candidates.keep_best(3);
        assert_eq!(ids(&candidates), [0, 1, 3]);
    }

    /// Few distinct values, so that ties are common.
    fn any_logits() -> impl Strategy<Value = Vec<f32>> {
        let logit = prop_oneof![
            8 => (-40_i32..40).prop_map(|n| n as f32 / 4.0),
            1 => Just(f32::NEG_INFINITY),
        ];
        prop::collection::vec(logit, 1..600)
    }

    /// The weight carries the logit.
    fn sorted_best_first(logits: &[f32]) -> Vec<Ranked> {
        let mut all: Vec<Ranked> = logits
            .iter()
            .zip(0..)
            .map(|(&key, id)| Ranked::new(key, id, key))
            .collect();
        all.sort_by(Ranked::best_first);
        all
    }

    proptest! {
        #[test]
        fn keep_best_equals_a_full_sort(logits in any_logits(), k in 1_usize..700) {
            let mut candidates = loaded(&logits);
            candidates.keep_best(k);
            let mut expected: Vec<TokenId> = sorted_best_first(&logits).iter().take(k).map(Ranked::id).collect();
            expected.sort_unstable();
            prop_assert_eq!(ids(&candidates), expected);
        }

        #[test]
        fn loading_the_best_is_loading_all_for_what_keeps_them(
            logits in prop::collection::vec((-40_i32..40).prop_map(|n| n as f32 / 4.0), 1..3000),
            k in 1_usize..12,
            changed in prop::collection::btree_map(0_u32..3100, -40_i32..40, 0..8),
        ) {
            let changed: Vec<(TokenId, i32)> = changed.into_iter().collect();
            let after = |candidates: &mut Candidates| {
                candidates.change(&changed, |logit, &change| logit + change as f32);
                candidates.keep_best(k);
                candidates.as_slice().to_vec()
            };
            let mut best = Candidates::new(logits.len());
            best.load_best(&logits, k, changed.iter().map(|(id, _)| id)).unwrap();
            let all = after(&mut loaded(&logits));
            prop_assert_eq!(after(&mut best), all);
        }

        #[test]
        fn keep_mass_equals_a_full_sort(logits in any_logits(), p in 0.0_f64..1.2) {
            prop_assume!(logits.iter().any(|logit| logit.is_finite()));
            let max = logits.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
            let total: f64 = logits.iter().map(|&logit| f64::from(softmax_weight(logit, max))).sum();
            let sorted = sorted_best_first(&logits);
            let mut mass = 0.0;
            let mut expected = Vec::new();
            for item in &sorted {
                mass += f64::from(softmax_weight(item.weight, max)) / total;
                expected.push(item.id());
                if (mass - p).abs() < 1e-9 {
                    return Ok(()); // decided by rounding
                }
                if mass >= p {
                    break;
                }
            }
            expected.sort_unstable();
            let mut candidates = loaded(&logits);
            candidates.keep_mass(|logit| logit, |mass| mass >= p);
            prop_assert_eq!(ids(&candidates), expected);
        }
    }

    #[test]
    fn a_draw_does_not_allocate() {
        let logits: Vec<f32> = (0..5000_u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) % 1000) as f32 / 50.0)
            .collect();
        let mut candidates = loaded(&logits);
        let before = (candidates.entries.capacity(), candidates.ranked.capacity());
        for k in [1, 40, 2000, 4999] {
            candidates.load(&logits).unwrap();
            candidates.keep_mass(|logit| logit, |mass| mass >= 0.99);
            candidates.keep_best(k);
        }
        assert_eq!(
            (candidates.entries.capacity(), candidates.ranked.capacity()),
            before
        );
    }
}
