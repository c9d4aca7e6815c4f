//! The division of a part into passes.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

/// The samples of an iteration in descending order of cost, and the rules of their passes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Packer<'a> {
    pub(super) costs: &'a [f64],
    pub(super) lengths: &'a [u64],
    /// Maximum number of tokens of a pass, padding included. At least `least` times the longest sample, so any `least`
    /// samples share a pass.
    pub(super) max_tokens: u64,
    pub(super) is_padded: bool,
    pub(super) least: usize,
}

impl Packer<'_> {
    /// Returns the smallest number of passes found for these samples, at least 1.
    pub(super) fn needed(&self, samples: &[usize]) -> usize {
        if self.max_tokens == u64::MAX {
            return 1;
        }
        let samples = self.by_length(samples);
        if !self.is_padded {
            return self.best_fit(&samples).len().max(1);
        }
        let (mut begin, mut passes) = (0, 0);
        while let Some(&longest) = samples.get(begin) {
            begin = begin.saturating_add(self.fitting(longest, self.max_tokens).max(1));
            passes += 1;
        }
        passes.max(1)
    }

    /// Divides samples into exactly this number of passes, each with at least `least` samples if there are enough. The passes
    /// are balanced by cost or, if they are padded, contain samples of similar length and are balanced by tokens.
    /// `None` if no division was found or there are fewer samples than passes.
    pub(super) fn split(&self, samples: &[usize], passes: usize) -> Option<Vec<Vec<usize>>> {
        let least = self.least.min(samples.len() / passes.max(1));
        if least == 0 {
            return None;
        }
        if self.is_padded {
            return self.grouped(&self.by_length(samples), passes, least);
        }
        let mut balanced = self.balanced(samples, passes);
        self.fill(&mut balanced, least);
        if balanced.iter().all(|pass| self.tokens(pass) <= self.max_tokens) {
            return Some(balanced);
        }
        let mut packed = self.best_fit(&self.by_length(samples));
        if packed.len() > passes {
            return None;
        }
        packed.resize(passes, Vec::new());
        self.fill(&mut packed, least);
        Some(packed)
    }

    /// Returns the cost of a pass.
    pub(super) fn cost(&self, pass: &[usize]) -> f64 {
        pass.iter().map(|&sample| self.costs[sample]).sum()
    }

    fn tokens(&self, pass: &[usize]) -> u64 {
        pass.iter().map(|&sample| self.lengths[sample]).sum()
    }

    fn by_length(&self, samples: &[usize]) -> Vec<usize> {
        let mut sorted = samples.to_vec();
        sorted.sort_unstable_by_key(|&sample| (Reverse(self.lengths[sample]), sample));
        sorted
    }

    /// Returns how many samples of this one's length have at most this number of tokens.
    fn fitting(&self, sample: usize, tokens: u64) -> usize {
        let samples = tokens.checked_div(self.lengths[sample]).unwrap_or(u64::MAX);
        usize::try_from(samples).unwrap_or(usize::MAX)
    }

    /// Packs samples, the longest first, each into the fullest pass that has room for it. As with first fit, the number of
    /// passes is at most 11/9 of the optimum and 6/9 of a pass, and at most one pass has fewer than `least` samples.
    fn best_fit(&self, samples: &[usize]) -> Vec<Vec<usize>> {
        let mut passes: Vec<Vec<usize>> = Vec::new();
        let mut rooms: BTreeSet<(u64, usize)> = BTreeSet::new();
        for &sample in samples {
            let length = self.lengths[sample];
            let (room, pass) =
                rooms.range((length, 0)..).next().copied().unwrap_or((self.max_tokens, passes.len()));
            if pass == passes.len() {
                passes.push(Vec::new());
            }
            rooms.remove(&(room, pass));
            rooms.insert((room - length, pass));
            passes[pass].push(sample);
        }
        passes
    }

    /// Assigns samples, the most expensive first, each to the pass with the lowest cost.
    fn balanced(&self, samples: &[usize], passes: usize) -> Vec<Vec<usize>> {
        let mut balanced = vec![Vec::new(); passes];
        // The bits of positive floats have the order of the floats.
        let mut costs: BinaryHeap<_> = (0..passes).map(|pass| Reverse((0.0_f64.to_bits(), pass))).collect();
        for &sample in samples {
            let Some(Reverse((cost, pass))) = costs.pop() else { break };
            balanced[pass].push(sample);
            costs.push(Reverse(((f64::from_bits(cost) + self.costs[sample]).to_bits(), pass)));
        }
        balanced
    }

    /// Gives each pass at least `least` samples, from passes that have more. There must be enough.
    fn fill(&self, passes: &mut [Vec<usize>], least: usize) {
        let mut donors: Vec<usize> = (0..passes.len()).filter(|&pass| passes[pass].len() > least).collect();
        donors.sort_by(|&a, &b| self.cost(&passes[a]).total_cmp(&self.cost(&passes[b])));
        for pass in 0..passes.len() {
            while passes[pass].len() < least {
                let Some(&donor) = donors.last() else { return };
                if passes[donor].len() <= least {
                    donors.pop();
                } else if let Some(sample) = passes[donor].pop() {
                    passes[pass].push(sample);
                }
            }
        }
    }

    /// Cuts samples of descending length into passes of which the largest, padded, is as small as possible.
    fn grouped(&self, samples: &[usize], passes: usize, least: usize) -> Option<Vec<Vec<usize>>> {
        let longest = self.lengths[*samples.first()?];
        let most = self.max_tokens.min(longest.saturating_mul(samples.len() as u64));
        self.groups(samples, passes, least, most)?;
        // Whether a limit suffices is monotone in the limit.
        let (mut too_small, mut enough) = (longest * least as u64, most);
        while too_small < enough {
            let limit = too_small + (enough - too_small) / 2;
            if self.groups(samples, passes, least, limit).is_some() {
                enough = limit;
            } else {
                too_small = limit + 1;
            }
        }
        let ends = self.groups(samples, passes, least, enough)?;
        let begins = [0].into_iter().chain(ends.iter().copied());
        Some(begins.zip(&ends).map(|(begin, &end)| samples[begin..end].to_vec()).collect())
    }

    /// Returns the ends of the groups under a limit of tokens. Each group takes as many samples as it can, but leaves
    /// `least` for each later one.
    fn groups(&self, samples: &[usize], passes: usize, least: usize, limit: u64) -> Option<Vec<usize>> {
        let mut end = 0_usize;
        let ends: Vec<usize> = (1..=passes)
            .map(|pass| {
                let reserved = samples.len() - (passes - pass) * least;
                end = end.saturating_add(self.fitting(samples[end], limit)).min(reserved);
                end
            })
            .collect();
        (end == samples.len()).then_some(ends)
    }
}
