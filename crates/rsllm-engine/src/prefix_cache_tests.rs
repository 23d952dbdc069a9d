//! The prefix cache against pages whose contents are known.

use proptest::prelude::*;
use rsllm_model::{PAGE_LEN, PagePools, PageTable};

use crate::TokenId;
use crate::forward::{Forward, Limits, Phase};
use crate::pages::{Pages, first_visible, slots_for};
use crate::prefix_cache::PrefixCache;
use crate::testing::{Script, ScriptedModel, Steps};

/// A cache and the pages it tells of.
struct World {
    model: ScriptedModel,
    cache: PrefixCache,
    window: Option<usize>,
}

impl World {
    fn new(n_pages: usize, window: Option<usize>) -> Self {
        let limits = Limits {
            n_layers: 1,
            vocab_size: 10,
            embed_dim: 2,
            context: n_pages * PAGE_LEN,
            max_sequences: 4,
            max_rows: 64,
            max_outputs: 4,
        };
        let script = Script {
            window,
            ..Script::default()
        };
        Self {
            model: ScriptedModel::new(script, limits, n_pages, Steps::default()),
            cache: PrefixCache::new(window),
            window,
        }
    }

    /// Takes over what is known of `tokens` and computes the rest as far as there are pages. Returns the table, the tokens in
    /// it, and how many were known.
    fn run(&mut self, tokens: &[TokenId]) -> (PageTable, usize, usize) {
        let mut table = PageTable::default();
        let adopted = self.cache.adopt(&mut self.model, None, tokens, &mut table);
        let n_known = adopted.unwrap();
        assert!(n_known < tokens.len());
        let first = first_visible(n_known, self.window);
        for (position, &id) in tokens.iter().enumerate().take(n_known).skip(first) {
            assert_eq!(self.model.read(table.slots(), position, n_known).0, id);
        }
        let mut n_tokens = n_known;
        for (i, &id) in tokens.iter().enumerate().skip(n_known) {
            let n_slots = slots_for(i + 1).saturating_sub(table.slots().len());
            let pools = self.model.pools();
            if !self.cache.make_room(pools, Pages::both(n_slots)) {
                break;
            }
            table.grow(pools, i + 1).unwrap();
            self.model.write(table.slots(), i, id, Phase::Prefill);
            n_tokens = i + 1;
            if n_tokens.is_multiple_of(PAGE_LEN) {
                self.insert(&tokens[..n_tokens], &table, false);
            }
            let visible = first_visible(n_tokens, self.window);
            table.drop_passed(self.model.pools(), visible);
        }
        (table, n_tokens, n_known)
    }

    fn insert(&mut self, tokens: &[TokenId], table: &PageTable, is_final: bool) {
        let pools = self.model.pools();
        self.cache
            .insert(pools, None, tokens, table.slots(), is_final);
    }

    fn end(&mut self, tokens: &[TokenId], mut table: PageTable) {
        self.insert(tokens, &table, true);
        table.truncate(self.model.pools(), 0);
    }

    /// Computes a text and leaves it to the cache; returns how much of it was known.
    fn turn(&mut self, tokens: &[TokenId]) -> usize {
        let (table, n_tokens, n_known) = self.run(tokens);
        self.end(&tokens[..n_tokens], table);
        assert!(self.is_sound());
        n_known
    }

    fn is_sound(&mut self) -> bool {
        let pools: &PagePools = self.model.pools();
        pools.check_integrity() && self.cache.check_integrity(pools)
    }
}

fn text(first: TokenId, n: usize) -> Vec<TokenId> {
    (0..n as TokenId).map(|i| first + i).collect()
}

#[test]
fn whole_pages_are_shared_and_parts_are_copied() {
    let mut world = World::new(10, None);
    assert_eq!(world.turn(&text(0, 150)), 0);
    assert_eq!(world.model.pools().full.n_free(), 7);
    assert_eq!(world.turn(&text(0, 150)), 149);
    assert_eq!(
        world.model.pools().full.n_free(),
        7,
        "nothing is kept twice"
    );
    assert_eq!(world.turn(&text(0, 100)), 99);
    let longer = [&text(0, 140)[..], &text(900, 60)].concat();
    assert_eq!(world.turn(&longer), 140);
    assert_eq!(world.turn(&longer), 199);
    assert_eq!(world.turn(&text(0, 150)), 149);
    // A text that goes on where a shorter one ended replaces its part of a page.
    let n_free = world.model.pools().full.n_free();
    assert_eq!(world.turn(&text(0, 170)), 150);
    assert_eq!(world.model.pools().full.n_free(), n_free);
}

#[test]
fn the_end_of_what_was_not_used_goes_first() {
    let mut world = World::new(6, None);
    world.turn(&text(0, 192));
    world.turn(&text(1000, 192));
    world.turn(&text(0, 192));
    // One page is taken from the end of the text that was used longest ago, and one more for the copy of a page.
    world.turn(&text(2000, 10));
    assert_eq!(world.turn(&text(0, 192)), 191);
    assert_eq!(world.turn(&text(1000, 129)), 64);
}

#[test]
fn what_runs_is_never_evicted() {
    let mut world = World::new(4, None);
    let (table, n_tokens, _) = world.run(&text(0, 130));
    assert_eq!(n_tokens, 130);
    let available = world.cache.available(world.model.pools());
    assert_eq!(available.full, 1);
    let (other, n_tokens, n_known) = world.run(&[&text(0, 128)[..], &text(500, 200)].concat());
    assert_eq!((n_tokens, n_known), (192, 128), "one page was left");
    world.end(&text(0, 130), table);
    assert!(world.is_sound());
    world.end(&[&text(0, 128)[..], &text(500, 64)].concat(), other);
    assert_eq!(world.cache.available(world.model.pools()).full, 4);
}

#[test]
fn a_prefix_counts_as_far_as_its_window_is_there() {
    let mut world = World::new(6, Some(64));
    world.turn(&text(0, 320));
    assert_eq!(world.turn(&text(0, 320)), 319);
    // Another text takes five window pages. What is left of the first is its end, or nothing; in both cases it must be right.
    world.turn(&text(1000, 300));
    let n_known = world.turn(&text(0, 320));
    assert!(n_known < 320 && world.is_sound());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_page_is_lost_and_none_holds_what_it_should_not(
        window in prop_oneof![Just(None), Just(Some(1)), Just(Some(70)), Just(Some(200))],
        turns in prop::collection::vec(
            // Texts with common beginnings: three cuts through a tree of two branches at every one of a few places.
            (prop::collection::vec((0u32..2, 1usize..90), 1..5), any::<bool>()),
            1..25,
        ),
    ) {
        let mut world = World::new(9, window);
        let mut kept: Vec<(Vec<TokenId>, PageTable)> = Vec::new();
        for (parts, ends) in turns {
            let tokens: Vec<TokenId> = parts
                .iter()
                .enumerate()
                .flat_map(|(i, &(branch, n))| vec![i as TokenId * 2 + branch; n])
                .collect();
            let (table, n_tokens, _) = world.run(&tokens);
            let tokens = tokens[..n_tokens].to_vec();
            if ends {
                world.end(&tokens, table);
            } else {
                kept.push((tokens, table));
            }
            if kept.len() > 2 {
                let (tokens, table) = kept.remove(0);
                world.end(&tokens, table);
            }
            prop_assert!(world.is_sound());
        }
        for (tokens, table) in kept {
            world.end(&tokens, table);
        }
        prop_assert!(world.is_sound());
        let all = world.cache.available(world.model.pools());
        prop_assert_eq!(all.full, 9);
        let pools = world.model.pools();
        let all_free = world.cache.make_room(pools, Pages { full: 9, window: 0 });
        prop_assert!(all_free);
        prop_assert!(world.cache.check_integrity(world.model.pools()));
    }
}
