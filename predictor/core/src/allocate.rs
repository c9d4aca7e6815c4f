//! The exact min-max split: integers `x_i` that minimise `max_i (curve_i(x_i) + communication_i)` with
//! `sum x_i = total` exactly, floors, caps, and every `x_i` a multiple of the quantum (LB-BSP).
//!
//! A search over the finish time T: at T worker i can do at most `u_i(T)` samples, a non-decreasing step function, so
//! the smallest T with `sum u_i(T) >= total` is the optimum. T is searched over the bits of the floating-point number,
//! so the answer is the smallest representable finish time: exact, with at most 64 rounds over the workers. What T
//! allows beyond the total (workers that tie) is taken back from whoever would finish last; ties break on rank, the
//! higher rank gives first.
//!
//! Where the total is no multiple of the quantum (the ragged end of an epoch), one worker takes the remainder on top
//! of its multiples: the one that keeps the finish time smallest.

use crate::curve::Curve;

/// One worker, as the split sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share {
    /// How its time grows with its batch.
    pub curve: Curve,
    /// Time it needs beside the compute, whatever its batch, in seconds.
    pub communication_s: f64,
    /// It takes at least this many samples; rounded up to the quantum.
    pub floor: u64,
    /// It takes at most this many samples; rounded down to the quantum.
    pub cap: Option<u64>,
}

impl Share {
    /// When it finishes a batch.
    pub fn finish_s(&self, samples: u64) -> f64 {
        self.curve.time(samples) + self.communication_s
    }
}

/// The bounds cannot hold the total.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{total} samples over {workers} workers: floors take {floors}, caps hold {}", caps_in_words(*.caps))]
pub struct Infeasible {
    /// What was to be split.
    pub total: u64,
    /// Over how many workers.
    pub workers: usize,
    /// The floors together, in multiples of the quantum.
    pub floors: u64,
    /// The caps together, in multiples of the quantum; `None` where some worker has no cap.
    pub caps: Option<u64>,
}

fn caps_in_words(caps: Option<u64>) -> String {
    caps.map_or_else(|| "any number".into(), |caps| caps.to_string())
}

/// Splits `total` samples. Complexity: 64 rounds over the workers, plus the ties.
///
/// # Errors
/// [`Infeasible`] where the floors take more, or the caps hold less, than the total.
pub fn allocate(shares: &[Share], total: u64, quantum: u64) -> Result<Vec<u64>, Infeasible> {
    let problem = Problem::new(shares, total, quantum)?;
    let mut low = problem.finish_at_floors().to_bits();
    let mut high = problem.finish_at_caps().to_bits();
    // Positive floats order as their bits. `high` always holds the total; `low` is where the floors alone finish.
    while low < high {
        let middle = low + (high - low) / 2;
        if problem.holds(f64::from_bits(middle)) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    Ok(problem.fill(f64::from_bits(high)))
}

/// The even split within bounds: equal speeds, whatever they are.
///
/// # Errors
/// As [`allocate`].
pub fn even(bounds: &[(u64, Option<u64>)], total: u64, quantum: u64) -> Result<Vec<u64>, Infeasible> {
    let shares: Vec<Share> = bounds
        .iter()
        .map(|(floor, cap)| Share {
            curve: Curve::at_speed(1.0),
            communication_s: 0.0,
            floor: *floor,
            cap: *cap,
        })
        .collect();
    allocate(&shares, total, quantum)
}

/// A checked problem: floors and caps are multiples of the quantum and hold the total.
struct Problem<'a> {
    shares: &'a [Share],
    floors: Vec<u64>,
    caps: Vec<u64>,
    total: u64,
    quantum: u64,
    /// What the total has beyond a multiple of the quantum.
    remainder: u64,
}

impl<'a> Problem<'a> {
    fn new(shares: &'a [Share], total: u64, quantum: u64) -> Result<Self, Infeasible> {
        let quantum = quantum.max(1);
        let remainder = total % quantum;
        let floors: Vec<u64> =
            shares.iter().map(|share| share.floor.div_ceil(quantum).saturating_mul(quantum)).collect();
        let capped = |share: &Share| share.cap.map(|cap| cap - cap % quantum);
        let caps: Vec<u64> = shares.iter().map(|share| capped(share).unwrap_or(total)).collect();
        let sum = |values: &[u64]| values.iter().fold(0u64, |sum, value| sum.saturating_add(*value));
        let infeasible = Infeasible {
            total,
            workers: shares.len(),
            floors: sum(&floors),
            caps: shares.iter().try_fold(0u64, |sum, share| Some(sum.saturating_add(capped(share)?))),
        };
        // One worker more than full by less than a quantum would pass its cap, so the remainder needs a quantum free.
        let needed = (total - remainder).saturating_add(if remainder > 0 { quantum } else { 0 });
        let crossed = floors.iter().zip(&caps).any(|(floor, cap)| floor > cap);
        let held = infeasible.caps.is_none_or(|caps| caps >= needed);
        if shares.is_empty() || crossed || infeasible.floors > total || !held {
            return Err(infeasible);
        }
        // A cap beyond the total says nothing, and short caps keep the search short.
        let caps = caps.iter().map(|cap| (*cap).min(total.next_multiple_of(quantum))).collect();
        Ok(Self { shares, floors, caps, total, quantum, remainder })
    }

    fn finish_at_floors(&self) -> f64 {
        let finishes = self.shares.iter().zip(&self.floors).map(|(share, floor)| share.finish_s(*floor));
        finishes.fold(0.0, f64::max)
    }

    fn finish_at_caps(&self) -> f64 {
        let finishes = self.shares.iter().zip(&self.caps).map(|(share, cap)| share.finish_s(*cap));
        finishes.fold(0.0, f64::max)
    }

    /// The most that worker `i` can do by `time_s`, in samples; its floor at least.
    fn most(&self, i: usize, time_s: f64) -> u64 {
        let share = &self.shares[i];
        share.curve.batch_within(time_s - share.communication_s, self.caps[i]).max(self.floors[i])
    }

    /// Whole quanta of `samples`.
    fn whole(&self, samples: u64) -> u64 {
        samples - samples % self.quantum
    }

    /// Whether all workers together can do the total by `time_s`.
    fn holds(&self, time_s: f64) -> bool {
        let mut sum = 0u64;
        let mut room_for_remainder = self.remainder == 0;
        for i in 0..self.shares.len() {
            let most = self.most(i, time_s);
            sum = sum.saturating_add(self.whole(most));
            room_for_remainder |= most - self.whole(most) >= self.remainder;
        }
        // Without room beside the whole quanta of some worker, the remainder takes the place of one quantum.
        let taken = if room_for_remainder {
            self.total - self.remainder
        } else {
            self.whole(self.total) + self.quantum
        };
        sum >= taken
    }

    /// The split at the optimal finish time: everybody's most, less what is too much.
    fn fill(&self, time_s: f64) -> Vec<u64> {
        let most: Vec<u64> = (0..self.shares.len()).map(|i| self.most(i, time_s)).collect();
        let mut batches: Vec<u64> = most.iter().map(|most| self.whole(*most)).collect();
        let odd = self.remainder_taker(&most);
        if let Some(odd) = odd {
            if most[odd] - batches[odd] < self.remainder {
                batches[odd] -= self.quantum;
            }
            batches[odd] += self.remainder;
        }
        self.take_back(&mut batches);
        batches
    }

    /// Who takes the remainder: the first with room beside its whole quanta, else the first above its floor.
    fn remainder_taker(&self, most: &[u64]) -> Option<usize> {
        if self.remainder == 0 {
            return None;
        }
        let with_room = most.iter().position(|most| most - self.whole(*most) >= self.remainder);
        with_room
            .or_else(|| most.iter().zip(&self.floors).position(|(most, floor)| self.whole(*most) > *floor))
    }

    /// Takes quanta back, each from whoever would finish last, until the sum is the total.
    fn take_back(&self, batches: &mut [u64]) {
        let mut surplus = batches.iter().sum::<u64>() - self.total;
        let mut last_to_finish: std::collections::BinaryHeap<Finisher> =
            (0..batches.len()).filter_map(|i| self.finisher(i, batches[i])).collect();
        while surplus > 0 {
            let Some(Finisher { i, .. }) = last_to_finish.pop() else { return };
            batches[i] -= self.quantum;
            surplus -= self.quantum;
            last_to_finish.extend(self.finisher(i, batches[i]));
        }
    }

    fn finisher(&self, i: usize, batch: u64) -> Option<Finisher> {
        (batch >= self.floors[i] + self.quantum)
            .then(|| Finisher { finish_s: self.shares[i].finish_s(batch), i })
    }
}

/// A worker that can give a quantum, ordered by when it would finish, then by rank.
#[derive(PartialEq)]
struct Finisher {
    finish_s: f64,
    i: usize,
}

impl Eq for Finisher {}

impl PartialOrd for Finisher {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Finisher {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.finish_s.total_cmp(&other.finish_s).then(self.i.cmp(&other.i))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn share(fixed_s: f64, per_sample_s: f64, communication_s: f64, floor: u64, cap: Option<u64>) -> Share {
        Share { curve: Curve::linear(fixed_s, per_sample_s), communication_s, floor, cap }
    }

    fn finish(shares: &[Share], batches: &[u64]) -> f64 {
        shares.iter().zip(batches).map(|(share, batch)| share.finish_s(*batch)).fold(0.0, f64::max)
    }

    /// Every split that the bounds allow, by recursion: the independent source of truth.
    fn brute_force(shares: &[Share], total: u64, quantum: u64) -> Option<f64> {
        fn go(shares: &[Share], left: u64, quantum: u64, odd: u64, worst: f64) -> Option<f64> {
            let Some((share, rest)) = shares.split_first() else {
                return (left == 0 && odd == 0).then_some(worst);
            };
            let cap = share.cap.map_or(left, |cap| (cap - cap % quantum).min(left));
            let floor = share.floor.div_ceil(quantum) * quantum;
            (floor..=cap)
                .filter(|batch| batch % quantum == 0 || (odd > 0 && batch % quantum == odd))
                .filter_map(|batch| {
                    let odd = if batch % quantum == 0 { odd } else { 0 };
                    go(rest, left - batch, quantum, odd, worst.max(share.finish_s(batch)))
                })
                .min_by(f64::total_cmp)
        }
        go(shares, total, quantum, total % quantum, 0.0)
    }

    fn shares(workers: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Share>> {
        // Coarse values, so that ties are common.
        let one = (0u8..3, 1u8..6, 0u8..3, 0u64..5, prop::option::of(0u64..20)).prop_map(
            |(fixed, per_sample, communication, floor, cap)| {
                share(f64::from(fixed), f64::from(per_sample) * 0.5, f64::from(communication), floor, cap)
            },
        );
        prop::collection::vec(one, workers)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]
        #[test]
        fn as_good_as_brute_force(shares in shares(1..5), total in 0u64..24, quantum in 1u64..5) {
            let best = brute_force(&shares, total, quantum);
            match allocate(&shares, total, quantum) {
                Ok(batches) => {
                    prop_assert_eq!(batches.iter().sum::<u64>(), total);
                    for (share, batch) in shares.iter().zip(&batches) {
                        prop_assert!(*batch >= share.floor && share.cap.is_none_or(|cap| *batch <= cap));
                    }
                    prop_assert!(batches.iter().filter(|batch| *batch % quantum != 0).count() <= 1);
                    prop_assert_eq!(Some(finish(&shares, &batches)), best, "{:?}", batches);
                }
                Err(_) => prop_assert_eq!(best, None),
            }
        }

        #[test]
        fn equal_speeds_split_evenly(workers in 1usize..40, total in 0u64..5000, quantum in 1u64..17) {
            let total = total - total % quantum;
            let batches = even(&vec![(0, None); workers], total, quantum).unwrap();
            let (low, high) = (batches.iter().min().unwrap(), batches.iter().max().unwrap());
            prop_assert!(high - low <= quantum, "{batches:?}");
        }

        #[test]
        fn the_faster_never_gets_less(speeds in prop::collection::vec(1.0f64..1000.0, 1..40), total in 0u64..100_000) {
            let shares: Vec<Share> = speeds
                .iter()
                .map(|speed| Share { curve: Curve::at_speed(*speed), communication_s: 0.0, floor: 0, cap: None })
                .collect();
            let batches = allocate(&shares, total, 1).unwrap();
            let mut by_speed: Vec<(f64, u64)> = speeds.into_iter().zip(batches).collect();
            by_speed.sort_by(|a, b| a.0.total_cmp(&b.0));
            prop_assert!(by_speed.is_sorted_by_key(|(_, batch)| *batch));
        }

        /// Distinct speeds, so that nothing but the speed can decide.
        #[test]
        fn who_comes_first_does_not_matter(
            speeds in prop::collection::vec(1.0f64..1000.0, 1..40), total in 0u64..100_000, turn in 0usize..40
        ) {
            let share = |speed: &f64| Share { curve: Curve::at_speed(*speed), communication_s: 0.0, floor: 1, cap: None };
            let total = total + speeds.len() as u64;
            let mut shares: Vec<Share> = speeds.iter().map(share).collect();
            let mut batches = allocate(&shares, total, 1).unwrap();
            let turn = turn % shares.len();
            shares.rotate_left(turn);
            batches.rotate_left(turn);
            prop_assert_eq!(allocate(&shares, total, 1).unwrap(), batches);
        }
    }

    #[test]
    fn paces_one_two_two_four() {
        let shares = [1.0, 2.0, 2.0, 4.0].map(|speed| share(0.0, 1.0 / speed, 0.0, 1, None));
        assert_eq!(allocate(&shares, 288, 1).unwrap(), [32, 64, 64, 128]);
    }

    #[test]
    fn bounds_that_cannot_hold_the_batch_are_named() {
        let shares = [share(0.0, 1.0, 0.0, 0, Some(10)), share(0.0, 1.0, 0.0, 0, Some(7))];
        let error = allocate(&shares, 18, 1).unwrap_err();
        assert_eq!((error.total, error.caps), (18, Some(17)));
        assert_eq!(error.to_string(), "18 samples over 2 workers: floors take 0, caps hold 17");
        assert!(allocate(&shares, 17, 1).is_ok());
        assert!(allocate(&[], 17, 1).is_err());
    }

    #[test]
    fn large_problems_are_exact_too() {
        let shares: Vec<Share> =
            (0..10_000).map(|i| share(0.001, 1e-5 * (1.0 + f64::from(i % 97)), 0.0, 1, None)).collect();
        let batches = allocate(&shares, 1_000_000, 1).unwrap();
        assert_eq!(batches.iter().sum::<u64>(), 1_000_000);
        let worst = finish(&shares, &batches);
        let next = shares.iter().zip(&batches).map(|(share, batch)| share.finish_s(batch + 1));
        assert!(next.fold(f64::INFINITY, f64::min) >= worst, "nobody could have taken a sample off the last");
    }
}
