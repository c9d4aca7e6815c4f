//! The distribution of the samples over ranks at each layer, and the moves between two distributions.
//!
//! A rank keeps the first of its samples. Its surplus samples move, in rank order, to the ranks that have too
//! few. A rank therefore sends or receives only the difference of its shares, which is the number of bytes
//! that plans count.

use evenstep_rules::gate::Kind;

/// The samples of each rank, as positions in the iteration's batch, in the order in which the rank stores
/// them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout(Vec<Vec<i64>>);

/// Samples that one rank sends to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// The sending rank.
    pub from: usize,
    /// The receiving rank.
    pub to: usize,
    /// Number of samples.
    pub samples: i64,
}

/// The moves between two layouts.
///
/// Each rank only sends, only receives, or does neither. Executing the moves one after another in this order
/// therefore cannot deadlock.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Redistribution {
    /// Number of samples that each rank keeps, by rank: the first of its samples.
    pub kept: Vec<i64>,
    /// Moves in order. They take a rank's samples after the kept ones, and append received samples there.
    pub moves: Vec<Move>,
}

impl Layout {
    /// Returns the layout that assigns these shares to consecutive ranks. `world_size` must be at least
    /// the number of shares.
    pub fn first(shares: &[u64], world_size: usize) -> Self {
        let mut next = 0;
        let mut ranks: Vec<Vec<i64>> = shares
            .iter()
            .map(|&share| {
                let begin = next;
                next += share as i64;
                (begin..next).collect()
            })
            .collect();
        ranks.resize(world_size, Vec::new());
        Self(ranks)
    }

    /// Returns the layout with these shares that needs the fewest moved samples, and the moves.
    pub fn next(&self, shares: &[u64]) -> (Self, Redistribution) {
        let has = |rank: usize| shares.get(rank).map_or(0, |&share| share as usize);
        let mut ranks = self.0.clone();
        let mut spare = Vec::new();
        let mut kept = Vec::new();
        for (rank, samples) in ranks.iter_mut().enumerate() {
            kept.push(samples.len().min(has(rank)) as i64);
            spare.extend(samples.drain(samples.len().min(has(rank))..).map(|sample| (rank, sample)));
        }
        let mut spare = spare.into_iter();
        let mut moves: Vec<Move> = Vec::new();
        for (to, samples) in ranks.iter_mut().enumerate() {
            let missing = has(to).saturating_sub(samples.len());
            for (from, sample) in spare.by_ref().take(missing) {
                samples.push(sample);
                match moves.last_mut() {
                    Some(last) if (last.from, last.to) == (from, to) => last.samples += 1,
                    _ => moves.push(Move { from, to, samples: 1 }),
                }
            }
        }
        (Self(ranks), Redistribution { kept, moves })
    }

    /// Returns the samples of a rank.
    pub fn of(&self, rank: usize) -> &[i64] {
        self.0.get(rank).map_or(&[], Vec::as_slice)
    }
}

impl Redistribution {
    /// Returns the reverse moves: each sent sample is received.
    #[must_use]
    pub fn back(&self) -> Self {
        let back = |&Move { from, to, samples }: &Move| Move { from: to, to: from, samples };
        Self { kept: self.kept.clone(), moves: self.moves.iter().map(back).collect() }
    }

    /// Returns the kind of tasklet that the moves are for a rank: a rank that receives waits for others.
    pub fn kind(&self, rank: usize) -> Kind {
        if self.moves.iter().any(|step| step.to == rank) { Kind::Receive } else { Kind::Compute }
    }

    /// Returns whether this rank sends or receives samples.
    pub fn involves(&self, rank: usize) -> bool {
        self.moves.iter().any(|step| step.from == rank || step.to == rank)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn local_activations_are_not_moved() {
        let one = Layout::first(&[8], 4);
        let (two, first) = one.next(&[4, 4]);
        assert_eq!((two.of(0), two.of(1)), (&[0, 1, 2, 3][..], &[4, 5, 6, 7][..]));
        assert_eq!(first.moves, [Move { from: 0, to: 1, samples: 4 }]);
        let (four, second) = two.next(&[2; 4]);
        assert_eq!(second.moves, [Move { from: 0, to: 2, samples: 2 }, Move { from: 1, to: 3, samples: 2 }]);
        assert_eq!((four.of(2), four.of(3), &*second.kept), (&[2, 3][..], &[6, 7][..], &[2, 2, 0, 0][..]));
        let (back, third) = four.next(&[8]);
        assert_eq!((back.of(0), third.kept), (&[0, 1, 4, 5, 2, 3, 6, 7][..], vec![2, 0, 0, 0]));
        assert_eq!(third.moves.len(), 3);
    }

    fn shares(world_size: usize, samples: u64) -> impl Strategy<Value = Vec<u64>> {
        prop::collection::vec(0..=samples, 0..world_size).prop_map(move |mut cuts| {
            cuts.sort_unstable();
            let ends = cuts.iter().copied().chain([samples]);
            ends.scan(0, |begin, end| Some(end - std::mem::replace(begin, end))).collect()
        })
    }

    proptest! {
        #[test]
        fn each_sample_is_held_once_and_each_rank_moves_the_difference_of_its_shares(
            steps in (1_usize..6, 1_u64..40).prop_flat_map(|(world_size, samples)| {
                (Just(world_size), prop::collection::vec(shares(world_size, samples), 2..6))
            })
        ) {
            let (world_size, steps) = steps;
            let mut layout = Layout::first(&steps[0], world_size);
            for shares in &steps[1..] {
                let (next, crossing) = layout.next(shares);
                let mut all: Vec<i64> = (0..world_size).flat_map(|rank| next.of(rank).to_vec()).collect();
                all.sort_unstable();
                prop_assert_eq!(all, (0..shares.iter().sum::<u64>() as i64).collect::<Vec<_>>());
                for rank in 0..world_size {
                    let (had, has) = (layout.of(rank), next.of(rank));
                    prop_assert_eq!(has.len(), shares.get(rank).map_or(0, |share| *share as usize));
                    let sum = |moves: &dyn Fn(&Move) -> usize| -> i64 {
                        crossing.moves.iter().filter(|step| moves(step) == rank).map(|step| step.samples).sum()
                    };
                    let (sent, received) = (sum(&|step| step.from), sum(&|step| step.to));
                    prop_assert_eq!(sent, had.len().saturating_sub(has.len()) as i64);
                    prop_assert_eq!(received, has.len().saturating_sub(had.len()) as i64);
                    // The moves lead from the first layout to the second.
                    let kept = crossing.kept[rank] as usize;
                    let mut held = had[..kept].to_vec();
                    for (at, step) in crossing.moves.iter().enumerate().filter(|(_, step)| step.to == rank) {
                        let before: i64 = crossing.moves[..at].iter()
                            .filter(|other| other.from == step.from).map(|other| other.samples).sum();
                        let begin = (crossing.kept[step.from] + before) as usize;
                        held.extend(&layout.of(step.from)[begin..begin + step.samples as usize]);
                    }
                    prop_assert_eq!(&held, has);
                }
                layout = next;
            }
        }
    }
}
