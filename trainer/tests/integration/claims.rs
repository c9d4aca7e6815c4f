//! Claims over a real store: several workers, pools and policies, and many iterations. Every sample is
//! computed exactly once.

use std::collections::BTreeMap;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use evenstep_c10d::Store;
use evenstep_client::Requested;
use evenstep_protocol::{AllocateResponse, WorkerId};
use evenstep_trainer::claims::{ClaimSummary, Claims};
use evenstep_trainer::collective::{HostPort, RankReport};
use evenstep_trainer::model::Computed;
use evenstep_trainer::plan::{Plan, Policy, Share};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(20);
const WORKERS: usize = 5;
/// Ranks 0 to 2 claim from pool 0, the others from pool 1.
const POOLS: [usize; WORKERS] = [0, 0, 0, 1, 1];
const ITERATIONS: u64 = 60;

fn worker(rank: usize) -> WorkerId {
    WorkerId::new(format!("node/{rank}")).unwrap()
}

/// Returns an iteration's plan and its samples: bases and chunks of any size, in one or two pools, as the
/// predictor could return it.
fn plan(iteration: u64) -> (Plan, u64) {
    let mut random = ChaCha8Rng::seed_from_u64(iteration);
    let bases = [0; WORKERS].map(|_| random.random_range(0..6_u64));
    let mut chunks: Vec<u64> = Vec::new();
    let mut pools: Vec<usize> = (0..random.random_range(1..3)).map(|_| random.random_range(1..15)).collect();
    chunks.extend((0..pools.iter().sum()).map(|_| random.random_range(1..9_u64)));
    let mut offset = 0;
    let mut allocations: Vec<Value> = Vec::new();
    for (rank, base) in bases.into_iter().enumerate() {
        allocations.push(json!({
            "worker": worker(rank), "rank": rank, "local_batch": base, "offset": offset, "gradient_weight": 0.0,
            "pool": POOLS[rank].min(pools.len() - 1), "predicted_speed_samples_per_s": 1e3,
        }));
        offset += base;
    }
    let samples = offset + chunks.iter().sum::<u64>();
    if pools.len() == 1 {
        // An allocation with a single pool omits the pools.
        pools.clear();
    }
    let answer: AllocateResponse = serde_json::from_value(json!({
        "job_id": "job", "generation": 1, "iteration": iteration, "global_batch": samples, "allocations": allocations,
        "tail": { "offset": offset, "chunks": chunks, "pools": pools },
        "optimizer": { "rule": "none", "lr_multiplier": 1.0, "momentum_buffer_scale": 1.0 },
        "decision": { "kind": "rebalanced", "reason": "" },
    }))
    .unwrap();
    let workers: Vec<WorkerId> = (0..WORKERS).map(worker).collect();
    let requested = Requested {
        workers: &workers,
        global_batch: samples,
        generation: 1,
        follows_workers: false,
        quantum: 1,
        caps: &[],
    };
    (Plan::from_response(&answer, &requested).unwrap(), samples)
}

/// Computes a rank's part of an iteration. A `slow` rank is far slower than the others' forecasts.
fn iterate(
    claims: &mut Claims,
    policy: Policy,
    plan: &Plan,
    rank: usize,
    slow: bool,
) -> (Vec<Share>, ClaimSummary, Computed) {
    let pool = plan.pool(rank);
    let mut turn = claims.turn(policy, pool.as_ref(), Instant::now()).unwrap();
    let (mut shares, mut computed) = (Vec::new(), Computed::default());
    let mut part = Some(plan.share(rank));
    while let Some(share) = part {
        turn.request_ahead(&computed, share.local_batch).unwrap();
        computed.samples += share.local_batch;
        computed.compute_time_s += share.local_batch as f64 * if slow { 0.1 } else { 1e-6 };
        shares.push(share);
        part = turn.next(&computed).unwrap();
    }
    (shares, turn.end(&computed), computed)
}

/// Reports of all ranks in an iteration, and the number of times that each sample was computed.
#[derive(Default)]
struct Seen {
    reports: Vec<RankReport>,
    times: BTreeMap<u64, u32>,
}

/// Runs a rank through all iterations, in two rounds. `ends` synchronizes all ranks, as an all-reduce does.
fn play(rank: usize, port: u16, seen: &[Mutex<Seen>], ends: &Barrier) {
    let at = HostPort { host: "127.0.0.1".into(), port };
    let mut claims = Claims::new(at, TIMEOUT);
    for iteration in 0..ITERATIONS {
        if iteration == ITERATIONS / 2 {
            claims.begin_round(1);
        }
        let policy = if iteration % 3 == 0 { Policy::Even } else { Policy::Evenstep };
        let slow = ChaCha8Rng::seed_from_u64(iteration * 8 + rank as u64).random_bool(0.8);
        let (plan, _) = plan(iteration);
        let (shares, ClaimSummary { tail, additions }, computed) =
            iterate(&mut claims, policy, &plan, rank, slow);
        {
            let mut seen = seen[iteration as usize].lock().unwrap();
            seen.reports[rank] = RankReport { tail, additions, ..RankReport::default() };
            for sample in shares.iter().flat_map(|share| share.offset..share.offset + share.local_batch) {
                *seen.times.entry(sample).or_insert(0) += 1;
            }
            assert_eq!(tail.chunks as usize, shares.len() - 1);
            assert_eq!(tail.samples, shares[1..].iter().map(|share| share.local_batch).sum::<u64>());
        }
        ends.wait();
        claims.settle(policy, &plan, &seen[iteration as usize].lock().unwrap().reports, &computed);
        // A fast rank can start the next iteration and claim in it before a slow rank has settled this one.
    }
}

#[test]
fn every_sample_comes_exactly_once() {
    let server = Store::host("127.0.0.1", 0, TIMEOUT).unwrap();
    let fresh = || Mutex::new(Seen { reports: vec![RankReport::default(); WORKERS], times: BTreeMap::new() });
    let seen: Arc<Vec<Mutex<Seen>>> = Arc::new((0..ITERATIONS).map(|_| fresh()).collect());
    let ends = Arc::new(Barrier::new(WORKERS));
    let ranks: Vec<_> = (0..WORKERS)
        .map(|rank| {
            let (seen, ends, port) = (Arc::clone(&seen), Arc::clone(&ends), server.port());
            thread::spawn(move || play(rank, port, &seen, &ends))
        })
        .collect();
    ranks.into_iter().for_each(|rank| rank.join().unwrap());
    let (mut left, mut chunks) = (0, 0);
    for (iteration, seen) in seen.iter().enumerate() {
        let seen = seen.lock().unwrap();
        let (_, samples) = plan(iteration as u64);
        let once: BTreeMap<u64, u32> = (0..samples).map(|sample| (sample, 1)).collect();
        assert_eq!(seen.times, once, "iteration {iteration}");
        // A rank that was not the last to leave its pool stops claiming, and each of its claims returned
        // a chunk.
        let did = |report: &&RankReport| report.additions.claims == report.tail.chunks;
        left += seen.reports.iter().filter(|report| report.additions.leaves == 1).filter(did).count();
        chunks += seen.reports.iter().map(|report| report.tail.chunks).sum::<u64>();
    }
    println!("{left} left, {chunks} chunks were claimed");
    assert!(left as u64 > 2 * ITERATIONS && chunks > ITERATIONS, "{left} left, {chunks} chunks were claimed");
}
