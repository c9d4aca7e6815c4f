//! Compares the splits with all possible splits: they are exact for all kinds of curves and
//! bounds.

use evenstep_core::allocate::{SizesError, SplitWorker, allocate, allocate_sizes, finish_s};
use evenstep_core::curve::Curve;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Returns the best finish time over all splits into `allowed` batches within the floors and caps.
fn brute_force(shares: &[SplitWorker], total: u64, allowed: &[u64]) -> Option<f64> {
    let Some((share, rest)) = shares.split_first() else { return (total == 0).then_some(0.0) };
    let cap = share.cap.unwrap_or(total).min(total);
    let mut best: Option<f64> = None;
    for batch in allowed.iter().copied().filter(|batch| (share.floor..=cap).contains(batch)) {
        let Some(others_s) = brute_force(rest, total - batch, allowed) else { continue };
        let time_s = others_s.max(share.finish_s(batch));
        best = Some(best.map_or(time_s, |best| best.min(time_s)));
    }
    best
}

/// Returns the best finish time over all splits with a quantum. Floors are rounded up and caps down, and one
/// batch includes the remainder.
fn brute_force_quantum(shares: &[SplitWorker], total: u64, quantum: u64) -> Option<f64> {
    let rounded = |share: &SplitWorker| SplitWorker {
        floor: share.floor.next_multiple_of(quantum),
        cap: share.cap.map(|cap| cap - cap % quantum),
        ..share.clone()
    };
    let shares: Vec<SplitWorker> = shares.iter().map(rounded).collect();
    let remainder = total % quantum;
    let multiples: Vec<u64> = (0..=total / quantum).map(|count| count * quantum).collect();
    if remainder == 0 {
        return brute_force(&shares, total, &multiples);
    }
    let odd_one = |i: usize| {
        let share = &shares[i];
        let rest: Vec<SplitWorker> =
            shares.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, s)| s.clone()).collect();
        let cap = share.cap.unwrap_or(total).min(total);
        let batches = (share.floor..=cap).filter(|batch| batch % quantum == remainder);
        let with = |batch: u64| {
            let others_s = brute_force(&rest, total - batch, &multiples)?;
            Some(others_s.max(share.finish_s(batch)))
        };
        batches.filter_map(with).min_by(f64::total_cmp)
    };
    (0..shares.len()).filter_map(odd_one).min_by(f64::total_cmp)
}

/// Returns a curve with coarse values, so that ties and plateaus are common.
fn curve(random: &mut impl Rng) -> Curve {
    let unit = |random: &mut dyn Rng, most: u32| f64::from(random.random_range(0..=most)) * 0.25;
    let curve = match random.random_range(0..4) {
        0 => Curve::at_speed(f64::from(random.random_range(1..9u32))),
        1 => Curve::linear(unit(random, 8), 0.25 + unit(random, 6)),
        2 => Curve::saturating(unit(random, 8), random.random_range(0..8), 0.25 + unit(random, 4)),
        _ => {
            let count = random.random_range(1..5);
            let points: Vec<(u64, f64)> =
                (0..count).map(|_| (random.random_range(1..20), 0.25 + unit(random, 20))).collect();
            Curve::through(&points).unwrap()
        }
    };
    let curve = if random.random_bool(0.3) { curve.scaled(random.random_range(0.3..3.0)) } else { curve };
    if random.random_bool(0.25) { curve.accumulating(random.random_range(1..7)) } else { curve }
}

fn share(random: &mut impl Rng) -> SplitWorker {
    SplitWorker {
        floor: if random.random_bool(0.4) { random.random_range(0..4) } else { 0 },
        cap: random.random_bool(0.4).then(|| random.random_range(0..14)),
        ..SplitWorker::new(curve(random))
    }
}

fn within_bounds(shares: &[SplitWorker], batches: &[u64]) -> bool {
    let within = |(share, batch): (&SplitWorker, &u64)| {
        *batch >= share.floor && share.cap.is_none_or(|cap| *batch <= cap)
    };
    shares.len() == batches.len() && shares.iter().zip(batches).all(within)
}

#[test]
fn the_split_is_as_good_as_any() {
    let random = &mut ChaCha8Rng::seed_from_u64(1);
    let mut solved = 0;
    for case in 0..80_000 {
        let shares: Vec<SplitWorker> = (0..random.random_range(1..5)).map(|_| share(random)).collect();
        let (total, quantum) = (random.random_range(0..22), random.random_range(1..5));
        let best = brute_force_quantum(&shares, total, quantum);
        let Ok(batches) = allocate(&shares, total, quantum) else {
            assert_eq!(best, None, "case {case}: {shares:?}, {total} in {quantum}");
            continue;
        };
        solved += 1;
        assert_eq!(batches.iter().sum::<u64>(), total, "case {case}");
        assert!(within_bounds(&shares, &batches), "case {case}: {batches:?}");
        assert!(
            batches.iter().filter(|batch| *batch % quantum != 0).count() <= 1,
            "case {case}: {batches:?}"
        );
        assert_eq!(Some(finish_s(&shares, &batches)), best, "case {case}: {batches:?} of {shares:?}");
    }
    assert!(solved > 30_000, "only {solved} cases could be solved");
}

/// Assigns one quantum after the other to the worker that finishes it first. Ties go to the smaller batch,
/// then to the lower rank.
fn greedy(shares: &[SplitWorker], total: u64, quantum: u64) -> Option<Vec<u64>> {
    let mut batches: Vec<u64> = shares.iter().map(|share| share.floor.next_multiple_of(quantum)).collect();
    let left = total.checked_sub(batches.iter().sum())? / quantum;
    for _ in 0..left {
        let more = |i: usize| batches[i] + quantum;
        let open = (0..shares.len()).filter(|i| shares[*i].cap.is_none_or(|cap| more(*i) <= cap));
        let keyed = open.map(|i| (shares[i].finish_s(more(i)).to_bits(), more(i), i));
        let (_, _, first) = keyed.min()?;
        batches[first] += quantum;
    }
    Some(batches)
}

/// The result is exactly the split that the documented order of ties defines, even if thousands of samples
/// tie.
#[test]
fn the_split_is_that_of_the_documented_order() {
    let random = &mut ChaCha8Rng::seed_from_u64(4);
    for case in 0..2_000 {
        let like = share(random);
        let same = |random: &mut ChaCha8Rng| match random.random_bool(0.7) {
            true => SplitWorker { cap: None, ..like.clone() },
            false => SplitWorker { cap: None, ..share(random) },
        };
        let shares: Vec<SplitWorker> = (0..random.random_range(1..30)).map(|_| same(random)).collect();
        let quantum = random.random_range(1..4);
        let total = quantum * random.random_range(0..600);
        let ours = allocate(&shares, total, quantum).ok();
        assert_eq!(ours, greedy(&shares, total, quantum), "case {case}: {total} in {quantum}, {shares:?}");
    }
}

#[test]
fn allowed_sizes_are_as_good_as_any() {
    let random = &mut ChaCha8Rng::seed_from_u64(2);
    let mut solved = 0;
    for case in 0..20_000 {
        let shares: Vec<SplitWorker> = (0..random.random_range(1..5)).map(|_| share(random)).collect();
        // Sums below and above 64, the number of bits in a word.
        let most = if random.random_bool(0.5) { 12 } else { 70 };
        let sizes: Vec<u64> = (0..random.random_range(1..6)).map(|_| random.random_range(0..most)).collect();
        let any = (0..shares.len()).map(|_| sizes[random.random_range(0..sizes.len())]).sum();
        let total = if random.random_bool(0.7) { any } else { random.random_range(0..2 * most) };
        let best = brute_force(&shares, total, &sizes);
        let Ok(batches) = allocate_sizes(&shares, total, &sizes) else {
            assert_eq!(best, None, "case {case}: {shares:?}, {total} in {sizes:?}");
            continue;
        };
        solved += 1;
        assert_eq!(batches.iter().sum::<u64>(), total, "case {case}");
        assert!(within_bounds(&shares, &batches), "case {case}: {batches:?}");
        assert!(batches.iter().all(|batch| sizes.contains(batch)), "case {case}: {batches:?} of {sizes:?}");
        assert_eq!(Some(finish_s(&shares, &batches)), best, "case {case}: {batches:?} of {shares:?}");
    }
    assert!(solved > 3_000, "only {solved} cases could be solved");
}

/// Computed by hand: a sum of 100 requires a 4, which is not among 8, 16, 32 and 64. For speeds 4, 2, 1 the
/// best split of 112 is 64 + 32 + 16.
#[test]
fn powers_of_two() {
    let shares = [4.0, 2.0, 1.0].map(|speed| SplitWorker::new(Curve::at_speed(speed)));
    assert_eq!(allocate_sizes(&shares, 112, &[64, 32, 16, 8]), Ok(vec![64, 32, 16]));
    let error = allocate_sizes(&shares, 100, &[8, 16, 32, 64]).unwrap_err();
    assert!(error.to_string().contains("[8, 16, 32, 64]") && error.to_string().contains("100 samples"));
    assert!(matches!(allocate_sizes(&[], 0, &[8]), Err(SizesError::NoCombination { .. })));
    let large = vec![shares[0].clone(); 5_000];
    assert!(matches!(allocate_sizes(&large, 1_000_003, &[1, 2, 400]), Err(SizesError::TooLarge { .. })));
    assert_eq!(allocate_sizes(&large, 640_000, &[64, 128, 256]).map(|batches| batches[0]), Ok(128));
}
