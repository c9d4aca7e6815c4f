use proptest::prelude::*;

use super::learner::Parts;
use super::*;
use crate::curve::Curve;

const COST: ClaimCost = ClaimCost { latency_s: 1e-3, busy_s: 1e-4 };

fn terms(min_chunk: u64, quantum: u64) -> Terms {
    Terms { cost: COST, min_chunk, quantum, pool_max: POOL_MAX }
}

/// Returns the cost of a worker that has computed chunks of this size without extra cost.
fn tried(chunk: u64) -> Option<ChunkCost> {
    let mut cost = ChunkCost::default();
    let tail = TailWork { samples: chunk, chunks: 1, compute_s: chunk as f64, claim_s: 1e-3 };
    cost.observe(&Parts { base: 100, base_s: 100.0, tail });
    Some(cost)
}

/// Residuals of forecasts with errors up to `width` in both directions, in a repeating order.
fn residuals(workers: usize, width: f64) -> Vec<Vec<f64>> {
    let error =
        |worker: usize, k: usize| width * ((7 * worker + 5 * k) as f64 * 0.618).fract().mul_add(2.0, -1.0);
    (0..workers).map(|worker| (0..24).map(|k| error(worker, k)).collect()).collect()
}

fn scenarios(workers: usize, width: f64) -> Scenarios {
    Scenarios::from_residuals(&residuals(workers, width))
}

#[test]
fn good_forecasts_and_dear_chunks_need_no_tail() {
    let shares = vec![SplitWorker::new(Curve::at_speed(100.0)); 4];
    let decide = |width: f64, costs: &[Option<ChunkCost>], cost: ClaimCost| {
        let terms = Terms { cost, ..terms(1, 1) };
        hedge(&[64; 4], &shares, costs, &scenarios(4, width), &terms)
    };
    let cheap = vec![tried(2); 4];
    assert!(decide(0.4, &cheap, COST).is_some());
    assert_eq!(decide(0.001, &cheap, COST), None, "a tail gains nothing");
    assert_eq!(
        decide(0.4, &cheap, ClaimCost { latency_s: 0.3, busy_s: 0.0 }),
        None,
        "claims cost more than a tail gains"
    );
    let tail = TailWork { samples: 2, chunks: 1, compute_s: 60.0, claim_s: 1e-3 };
    let mut dear = ChunkCost::default();
    (0..100).for_each(|_| dear.observe(&Parts { base: 100, base_s: 100.0, tail }));
    assert!(dear.overhead() > 50.0);
    assert_eq!(decide(0.4, &[Some(dear); 4], COST), None, "a chunk costs as much as 50 samples more");
    assert_eq!(
        decide(0.4, &[tried(2), None, None, None], COST),
        None,
        "one worker alone cannot share a tail"
    );
    let unknown = Scenarios::default();
    assert_eq!(
        hedge(&[64; 4], &shares, &cheap, &unknown, &terms(1, 1)),
        None,
        "forecast errors are not known yet"
    );
}

/// A device without measured chunks does not start with tiny chunks.
#[test]
fn chunks_shrink_as_they_are_tried() {
    let shares = vec![SplitWorker::new(Curve::at_speed(100.0)); 4];
    let smallest = |cost: Option<ChunkCost>| {
        let hedged = hedge(&[64; 4], &shares, &[cost; 4], &scenarios(4, 0.4), &terms(1, 1)).unwrap();
        *hedged.pools[0].chunks.last().unwrap()
    };
    assert_eq!(smallest(Some(ChunkCost::default())), 4);
    assert_eq!(smallest(tried(20)), 10);
    assert_eq!(smallest(tried(3)), 1);
}

#[test]
fn many_workers_claim_from_several_pools() {
    let workers = 200;
    let shares: Vec<SplitWorker> =
        (0..workers).map(|rank| SplitWorker::new(Curve::at_speed(50.0 + rank as f64))).collect();
    let batches: Vec<u64> = (0..workers as u64).map(|rank| 50 + rank).collect();
    let hedged =
        hedge(&batches, &shares, &vec![tried(4); workers], &scenarios(workers, 0.4), &terms(1, 1)).unwrap();
    let members: Vec<usize> = hedged.pools.iter().flat_map(|pool| pool.members.clone()).collect();
    assert_eq!(members, (0..workers).collect::<Vec<_>>());
    for pool in &hedged.pools {
        assert_eq!(pool.members.len(), 50);
        let planned: u64 = pool.members.iter().map(|rank| batches[*rank]).sum();
        let bases: u64 = pool.members.iter().map(|rank| hedged.bases[*rank]).sum();
        assert_eq!(bases + pool.chunks.iter().sum::<u64>(), planned);
    }
}

proptest! {
    /// For any costs, options and bounds: bases and chunks add up to the batch exactly, in whole quanta and
    /// within all bounds, and the expected step is shorter than without a tail.
    #[test]
    fn a_tail_keeps_every_rule(
        workers in prop::collection::vec(
            (1u64..60, 10.0f64..500.0, prop::option::of(0u64..400), 0u64..20, prop::bool::weighted(0.9)), 2..7,
        ),
        odd in 0u64..4, quantum in 1u64..5, least in 1u64..4, width in 0.05f64..0.7,
    ) {
        let mut batches: Vec<u64> = workers.iter().map(|(quanta, ..)| quanta * quantum).collect();
        batches[0] += odd % quantum;
        let share = |((_, speed, room, floor, _), batch): (&(_, f64, Option<u64>, u64, _), &u64)| SplitWorker {
            floor: (*floor).min(batch / quantum * quantum),
            cap: room.map(|room| batch + room),
            ..SplitWorker::new(Curve::at_speed(*speed))
        };
        let shares: Vec<SplitWorker> = workers.iter().zip(&batches).map(share).collect();
        let costs: Vec<Option<ChunkCost>> =
            workers.iter().map(|worker| worker.4.then(|| tried(2 * quantum)).flatten()).collect();
        let scenarios = scenarios(workers.len(), width);
        let terms = terms(least * quantum, quantum);
        if let Some(hedged) = hedge(&batches, &shares, &costs, &scenarios, &terms) {
            let tail: u64 = hedged.pools.iter().flat_map(|pool| &pool.chunks).sum();
            prop_assert_eq!(hedged.bases.iter().sum::<u64>() + tail, batches.iter().sum::<u64>());
            prop_assert!(hedged.step_time_s < scenarios.expected_finish(&shares, &batches));
            for pool in &hedged.pools {
                prop_assert!(pool.members.len() >= 2);
                prop_assert!(pool.chunks.iter().all(|chunk| chunk % quantum == 0 && *chunk >= terms.min_chunk.min(tail)));
            }
            for (rank, base) in hedged.bases.iter().enumerate() {
                let claims = hedged.pools.iter().any(|pool| pool.members.contains(&rank));
                prop_assert!(*base >= shares[rank].floor && *base <= batches[rank]);
                prop_assert!(rank == 0 || base % quantum == 0);
                prop_assert!(costs[rank].is_some() || !claims);
                let most = if claims { base + tail } else { *base };
                prop_assert!(shares[rank].cap.is_none_or(|cap| most <= cap), "{most} of rank {rank}");
            }
        }
    }

    /// If no base ends late and the workers' speeds are similar, the step exceeds the shortest possible one
    /// by at most the smallest chunk on the slowest worker plus the claims.
    #[test]
    fn the_excess_is_the_smallest_chunk_and_the_claims(
        paces in prop::collection::vec(0.8f64..1.25, 2..9), each in 20u64..200, smallest in 1u64..6, latency in 0.0f64..0.1,
    ) {
        let base = each * 6 / 10;
        let tail = (each - base) * paces.len() as u64;
        let chunks = chunks(tail, 2 * paces.len(), smallest, 1);
        let hands: Vec<PoolMember> = paces.iter().map(|pace| PoolMember { base, base_s: base as f64 * pace }).collect();
        let expected = vec![Peer { base_end_s: base as f64, speed: 1.0 }; paces.len()];
        let cost = ClaimCost { latency_s: latency, busy_s: 0.0 };
        let took = play(&chunks, &hands, &expected, |member, samples| paces[member] * samples as f64, cost);
        prop_assert_eq!(took.iter().map(|took| took.samples).sum::<u64>(), tail);
        let end_s = |(hand, took): (&PoolMember, &TailWork)| hand.base_s + took.compute_s + took.claim_s;
        let step_s = hands.iter().zip(&took).map(end_s).fold(0.0, f64::max);
        let speed: f64 = paces.iter().map(|pace| 1.0 / pace).sum();
        let ideal_s = (each * paces.len() as u64) as f64 / speed;
        let slowest = paces.iter().copied().fold(0.0, f64::max);
        let claims_s = took.iter().map(|took| took.claim_s).fold(0.0, f64::max) + latency;
        let bound_s = ideal_s + slowest * (smallest + 1) as f64 + claims_s;
        prop_assert!(step_s <= bound_s + 1e-9, "{} > {}, ideal {}, {:?}", step_s, bound_s, ideal_s, chunks);
        prop_assert!(step_s >= ideal_s - 1e-9);
    }
}
