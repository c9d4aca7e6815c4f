use proptest::prelude::*;

use super::world::{RecordedForm, Worker};
use super::*;
use crate::backtest::{Job, Row, Series};
use evenstep_core::forecast::nonlinear::{FittedExpert, Training};

fn no_networks(due: &[Training]) -> Vec<Option<FittedExpert>> {
    due.iter().map(|_| None).collect()
}

fn settings(global_batch: u64, warmup: usize) -> Settings {
    Settings { global_batch, quantum: 1, warmup, networks: false }
}

/// Workers with these recorded speeds and batches of one sample.
fn recorded(speeds: &[&[f64]]) -> World {
    let rows = |speeds: &[f64]| {
        let row = |(at, speed): (usize, &f64)| Row {
            tick: at as u64,
            batch: 1,
            speed: *speed,
            drivers: vec![Some(1.0 / speed), Some(at as f64)],
        };
        speeds.iter().enumerate().map(row).collect()
    };
    let one = |(at, speeds): (usize, &&[f64])| Series { id: at.to_string(), rows: rows(speeds) };
    let drivers = ["load", "barrier_wait_s"].map(String::from).to_vec();
    let job = Job { trace: "t".into(), drivers, series: speeds.iter().enumerate().map(one).collect() };
    World::recorded(&job, RecordedForm::default()).unwrap()
}

fn run(world: &World, policy: PolicyName, settings: &Settings) -> Run {
    walk(world, policy, settings, &no_networks).unwrap()
}

fn near(ours: f64, golden: f64) -> bool {
    (ours - golden).abs() < 1e-12
}

/// By hand: 30 samples. Speeds are 10 and 10 in the warm-up, then 10 and 20, then 20 and 10.
#[test]
fn golden_two_workers() {
    let world = recorded(&[&[10.0, 10.0, 10.0, 20.0], &[10.0, 10.0, 20.0, 10.0]]);
    assert_eq!(world.drivers, ["load"]);
    let settings = settings(30, 2);
    let golden = [
        // 15 / 15 twice.
        (PolicyName::Even, [1.5, 1.5], [0.375, 0.375], 0),
        (PolicyName::StaticProportional, [1.5, 1.5], [0.375, 0.375], 0),
        // 15 / 15, then 10 / 20, which is the wrong order.
        (PolicyName::LastValue, [1.5, 2.0], [0.375, 0.75], 1),
        // 15 / 15, then 13 / 17 for speeds 10 and 13.
        (PolicyName::Ema, [1.5, 1.7], [0.375, 0.525], 1),
        (PolicyName::Oracle, [1.0, 1.0], [0.0, 0.0], 2),
    ];
    let runs = golden.map(|(policy, ..)| run(&world, policy, &settings));
    for ((policy, step_time_s, wait_s, changes), run) in golden.into_iter().zip(&runs) {
        for at in 0..2 {
            assert!(
                near(run.step_time_s[at], step_time_s[at]) && near(run.wait_s[at], wait_s[at]),
                "{run:?}"
            );
        }
        assert_eq!((run.changes, run.policy), (changes, policy));
    }
    let summary = Summary::of(&runs[3], &runs[0], &runs[4]);
    assert!(near(summary.mean_step_time_s, 1.6) && near(summary.p95_step_time_s, 1.7), "{summary:?}");
    assert!(near(summary.gain, 1.5 / 1.6) && near(summary.regret, 0.6), "{summary:?}");
    assert!(near(summary.barrier_wait_s, 0.45), "{summary:?}");
    assert_eq!(slowest(&world, &settings), None);
}

/// Half of the time at the median batch of 8 is fixed.
#[test]
fn recorded_workers_may_have_a_curve() {
    let row = |tick, batch: u64, speed| Row { tick, batch, speed, drivers: Vec::new() };
    let rows = vec![row(0, 8, 4.0), row(1, 8, 8.0), row(2, 16, 8.0)];
    let job = Job { trace: "t".into(), drivers: Vec::new(), series: vec![Series { id: "w".into(), rows }] };
    let world = World::recorded(&job, RecordedForm { fixed_share: 0.5, usual_batch: None }).unwrap();
    let worker = &world.workers[0];
    let time_s = |iteration: usize, batch| worker.form.curve(worker.slowdown[iteration]).time(batch);
    // The recorded time is reproduced: 8 samples at 4 per second.
    assert!(near(time_s(0, 8), 2.0) && near(time_s(1, 8), 1.0) && near(time_s(2, 16), 2.0));
    // Of 2 s, 1 s is fixed; a sample takes 1/8 s.
    assert!(near(time_s(0, 16), 3.0) && near(time_s(0, 4), 1.5) && near(time_s(0, 1), 1.125));
}

#[test]
fn copies_are_shifted_around() {
    let world = recorded(&[&[1.0, 2.0, 3.0, 4.0], &[5.0, 6.0, 7.0, 8.0]]);
    let four = world.clone().with_workers(4, 7).unwrap();
    assert_eq!(four.workers[..2], world.workers[..]);
    for copy in 2..4 {
        let (ours, theirs) = (&four.workers[copy], &world.workers[copy - 2]);
        let shift: usize = ours.id.rsplit(' ').next().unwrap().parse().unwrap();
        assert!((1..4).contains(&shift));
        for at in 0..4 {
            assert_eq!(ours.slowdown[at], theirs.slowdown[(at + shift) % 4]);
            assert_eq!(ours.drivers[at], theirs.drivers[(at + shift) % 4]);
        }
    }
    assert_eq!(world.clone().with_workers(4, 7), Ok(four));
    assert!(world.clone().with_workers(1, 7).unwrap_err().to_string().contains("at least as many"));
    assert_eq!(world.clone().cut(2).workers[0].slowdown, world.workers[0].slowdown[..2]);
}

fn verdict(world: &World, settings: &Settings) -> Verdict {
    let policies = [PolicyName::Even, PolicyName::Base, PolicyName::Evenstep, PolicyName::WithoutSlowest];
    let runs = policies.map(|policy| run(world, policy, settings));
    let without = slowest(world, settings).map(|slowest| world.workers[slowest].id.clone());
    let way = |run| WayRun { run, without: None };
    let mut ways: Vec<WayRun<'_>> = runs[..3].iter().map(way).collect();
    ways.extend(without.map(|id| WayRun { without: Some(id), ..way(&runs[3]) }));
    Verdict::of(&ways, None).unwrap()
}

/// An even split without the slowest takes 15 / 2 s. Split by speed, 30 samples at 1 + 4 per second take 6 s.
#[test]
fn the_verdict_names_the_simplest_that_is_good() {
    let slow: &[f64] = &[1.0; 60];
    let fast: &[f64] = &[4.0; 60];
    let verdict = |speeds: &[&[f64]], settings: &Settings| verdict(&recorded(speeds), settings);
    let steps = |verdict: &Verdict| verdict.ways.iter().map(|way| way.mean_step_time_s).collect::<Vec<_>>();
    let worth = verdict(&[fast, slow], &settings(30, 20));
    assert_eq!((worth.best, steps(&worth)), (Advice::UseEvenstep, vec![15.0, 6.0, 6.0, 7.5]));
    assert_eq!(worth.text, "Use evenstep (job.loader): gain 2.50x (2.50x to 2.50x) over an even split");
    assert_eq!(worth.ways[3].without, Some("1".into()));
    let equal = verdict(&[fast, fast], &settings(30, 20));
    assert_eq!((equal.best, equal.ways.len()), (Advice::LeaveAlone, 3));
    // If each worker takes ten samples at once, only removing the slow one helps.
    let drop = verdict(&[fast, fast, slow], &Settings { quantum: 10, ..settings(30, 20) });
    assert_eq!((drop.best, steps(&drop)[3]), (Advice::DropSlowest, 5.0));
    assert!(
        drop.text.starts_with("Remove 2: gain 2.00x (2.00x to 2.00x) with an even split over the others"),
        "{}",
        drop.text
    );
    let few = verdict(&[fast, slow], &settings(30, 53));
    assert_eq!((few.best, few.ways[1].gain), (Advice::LeaveAlone, None));
    assert!(few.text.contains("7 iterations are too few"), "{}", few.text);
}

/// Two equal workers with independent noise cannot be forecast, so shares that are fixed before the iteration gain nothing. Only
/// hedged steps do, and the recommendation names them. Their interval contains the ratio over all seeds in at least 15 of 20 runs.
#[test]
fn a_recommendation_promises_only_what_its_way_gives() {
    let noise = r#"{"group":[{"name":"n","count":2,"speed":640.0,"noise":0.15}]}"#;
    let verdict = |seed| verdict(&cluster(noise).world(160, seed).unwrap(), &settings(128, 40));
    let verdicts: Vec<Verdict> = (0..20).map(verdict).collect();
    for verdict in &verdicts {
        assert_ne!(verdict.best, Advice::UseEvenstep);
        assert!(
            !verdict.text.starts_with("Use") || verdict.text.contains("hedged steps"),
            "{}",
            verdict.text
        );
    }
    let sum = |way: usize| verdicts.iter().map(|verdict| verdict.ways[way].mean_step_time_s).sum::<f64>();
    let truth = sum(0) / sum(2);
    let contains = |gain: Gain| (gain.lower..=gain.upper).contains(&truth);
    let inside = verdicts.iter().filter(|verdict| verdict.ways[2].gain.is_some_and(contains)).count();
    assert!(inside >= 15, "{inside} of 20");
}

fn cluster(text: &str) -> ClusterSpec {
    serde_json::from_str(text).unwrap()
}

/// A worker that is not a member gets no samples. A worker that joins late gets samples from then on.
#[test]
fn absent_workers_get_nothing() {
    let spec = cluster(
        r#"{"group":[{"name":"stays","count":1,"speed":10.0},{"name":"comes","count":2,"speed":10.0,"joins":20,"leaves":40}]}"#,
    );
    let world = spec.world(60, 1).unwrap();
    for policy in PolicyName::ALL.into_iter().chain([PolicyName::WithoutSlowest]) {
        let run = run(&world, policy, &settings(30, 10));
        for (at, shares) in run.shares.iter().enumerate() {
            assert_eq!(shares.iter().sum::<u64>(), 30, "{policy}");
            let here = (20..40).contains(&(at + 10));
            assert_eq!(shares[1..].iter().all(|share| *share > 0), here, "{policy} {at} {shares:?}");
        }
    }
    let gone = cluster(r#"{"group":[{"name":"g","count":1,"speed":1.0,"leaves":5}]}"#).world(9, 1).unwrap();
    let said = walk(&gone, PolicyName::Even, &settings(30, 2), &no_networks).unwrap_err().to_string();
    assert_eq!(said, "iteration 5: no worker is a member");
}

/// Slow-downs have the described share and duration, and do not depend on the other workers.
#[test]
fn slow_downs_are_as_described() {
    const ITERATIONS: usize = 40_000;
    let group = r#"{"name":"g","count":1,"speed":10.0,"slow_downs":{"share":0.2,"factor":3.0,"mean_iterations":10.0}}"#;
    let world = cluster(&format!(r#"{{"group":[{group}]}}"#)).world(ITERATIONS, 5).unwrap();
    let slow: Vec<bool> = world.workers[0].slowdown.iter().map(|slowdown| *slowdown > 2.0).collect();
    let share = slow.iter().filter(|slow| **slow).count() as f64 / ITERATIONS as f64;
    assert!((share - 0.2).abs() < 0.02, "{share}");
    let begun = slow.windows(2).filter(|pair| !pair[0] && pair[1]).count() as f64;
    let length = share * ITERATIONS as f64 / begun;
    assert!((length - 10.0).abs() < 0.7, "{length}");
    let noise = r#"{"name":"n","count":2,"speed":10.0,"noise":0.1}"#;
    let more = cluster(&format!(r#"{{"group":[{group},{noise}]}}"#)).world(ITERATIONS, 5).unwrap();
    assert_eq!(more.workers[0], world.workers[0]);
    let logs: Vec<f64> = more.workers[1].slowdown.iter().map(|slowdown| slowdown.ln()).collect();
    let deviation = (logs.iter().map(|log| log * log).sum::<f64>() / ITERATIONS as f64).sqrt();
    assert!((deviation - 0.1).abs() < 0.003, "{deviation}");
    assert_ne!(more.workers[1].slowdown, more.workers[2].slowdown);
}

#[test]
fn impossible_plans_are_named() {
    let said = |text: &str| cluster(text).world(10, 1).unwrap_err().to_string();
    let group = |rest: &str| format!(r#"{{"group":[{{"name":"g","count":2,"speed":10.0{rest}}}]}}"#);
    assert_eq!(said(&group(r#","noise":3.0"#)), "g: noise 3: must be 0 to 2");
    assert!(said(&group(r#","fixed_s":-1.0"#)).contains("g: fixed_s -1"));
    assert!(said(&group(r#","joins":5,"leaves":5"#)).contains("g: leaves 5: must be greater"));
    let slow = |share, factor, mean| {
        group(&format!(r#","slow_downs":{{"share":{share},"factor":{factor},"mean_iterations":{mean}}}"#))
    };
    assert!(said(&slow("1.5", "2.0", "10.0")).contains("slow_downs.share 1.5"));
    assert!(said(&slow("0.5", "0.0", "10.0")).contains("slow_downs.factor 0"));
    assert!(said(&slow("0.9", "2.0", "2.0")).contains("long enough"));
    assert!(said(r#"{"group":[{"name":"g","count":9000000,"speed":1.0}]}"#).contains("exceeds the maximum"));
    assert!(serde_json::from_str::<ClusterSpec>(&group(r#","nois":1.0"#)).is_err());

    let world = recorded(&[&[1.0; 10], &[1.0; 10]]);
    let said =
        |settings: Settings| walk(&world, PolicyName::Even, &settings, &no_networks).unwrap_err().to_string();
    assert_eq!(
        said(settings(1, 4)),
        "global batch 1: too small for 2 workers with at least 1 samples \
        each; raise --global-batch"
    );
    assert!(said(settings(30, 0)).contains("10 iterations, of which 0 are warm-up"));
    assert!(said(settings(30, 10)).contains("of which 10 are warm-up"));
    assert!(said(Settings { quantum: 7, ..settings(30, 4) }).contains("multiple of the quantum 7"));
}

/// The networks of the service are fitted when due, and change later iterations.
#[test]
fn networks_take_part() {
    let speeds = |seed: u32| -> Vec<f64> {
        (0..420)
            .map(|k: u32| 5.0 + f64::from((k * 7919 + seed * 31) % 13) * f64::from(1 + (k / 7) % 2))
            .collect()
    };
    let world = recorded(&[&speeds(1), &speeds(2)]);
    let networks = Settings { networks: true, ..settings(300, 100) };
    let fit = |due: &[Training]| due.iter().map(fit_one).collect();
    let with = walk(&world, PolicyName::Evenstep, &networks, &fit).unwrap();
    let without = run(&world, PolicyName::Evenstep, &settings(300, 100));
    assert_eq!(with.shares[..90], without.shares[..90]);
    assert_ne!(with.shares, without.shares);
    assert_eq!(walk(&world, PolicyName::Evenstep, &networks, &fit).unwrap(), with);
}

/// A first iteration compiles and warms caches. The service does not learn from it, however long it takes.
#[test]
fn a_slow_first_iteration_is_forgotten() {
    let speeds =
        |seed: u32| -> Vec<f64> { (0..40).map(|k: u32| f64::from(5 + (k * 7919 + seed) % 13)).collect() };
    let world = recorded(&[&speeds(1), &speeds(2)]);
    let mut other = world.clone();
    other.workers[0].slowdown[0] *= 100.0;
    let of = |world: &World, policy| run(world, policy, &settings(300, 2)).shares;
    assert_eq!(of(&world, PolicyName::Evenstep), of(&other, PolicyName::Evenstep));
    assert_ne!(of(&world, PolicyName::Ema), of(&other, PolicyName::Ema));
}

/// Speeds of noise, and of a slow-down that moves from worker to worker, faster than forecasts.
#[test]
fn plans_that_lose_are_not_used() {
    let noise = cluster(r#"{"group":[{"name":"n","count":4,"speed":100.0,"noise":0.3}]}"#);
    let noise = (0..4).map(|seed| noise.world(200, seed).unwrap());
    let speed = |worker: usize| (0..200).map(move |at| if at % 3 == worker { 30.0 } else { 100.0 }).collect();
    let rotating: Vec<Vec<f64>> = (0..3).map(speed).collect();
    for world in noise.chain([world_of(&rotating)]) {
        let settings = settings(300, 1);
        let sum_s = |policy| run(&world, policy, &settings).step_time_s.iter().sum::<f64>();
        let ratio = sum_s(PolicyName::Base) / sum_s(PolicyName::Even);
        assert!(ratio < 1.01, "{ratio}");
    }
}

fn speeds() -> impl Strategy<Value = Vec<Vec<f64>>> {
    (2usize..5, 12usize..24).prop_flat_map(|(workers, rows)| {
        prop::collection::vec(prop::collection::vec(1.0f64..50.0, rows), workers)
    })
}

fn world_of(speeds: &[Vec<f64>]) -> World {
    recorded(&speeds.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// No step is shorter than the oracle's, whatever the curve. No sample is lost, and the slowest worker
    /// does not wait.
    #[test]
    fn no_policy_beats_the_oracle(
        speeds in speeds(), more in 0u64..100, fixed_s in 0.0f64..2.0, saturation in 0u64..20, quantum in 1u64..4
    ) {
        let mut world = world_of(&speeds);
        for worker in &mut world.workers {
            worker.form = Form { fixed_s, saturation, ..worker.form };
        }
        let settings = Settings { quantum, ..settings(quantum * (speeds.len() as u64 + more), 5) };
        let oracle = run(&world, PolicyName::Oracle, &settings);
        for policy in PolicyName::ALL {
            let run = run(&world, policy, &settings);
            for (at, step_time_s) in run.step_time_s.iter().enumerate() {
                prop_assert!(*step_time_s >= oracle.step_time_s[at] * (1.0 - 1e-12), "{}", policy);
                prop_assert_eq!(run.shares[at].iter().sum::<u64>(), settings.global_batch);
                prop_assert!(run.shares[at].iter().all(|share| share % quantum == 0 && *share > 0));
                // A shared tail costs claims, and one pass per chunk.
                if run.chunks[at] > 0 {
                    continue;
                }
                let time_s = |(worker, share): (&Worker, &u64)| {
                    worker.form.curve(worker.slowdown[at + 5]).time(*share)
                };
                let times_s: Vec<f64> = world.workers.iter().zip(&run.shares[at]).map(time_s).collect();
                prop_assert!(near(*step_time_s, times_s.iter().copied().fold(0.0, f64::max)));
                let waited_s = step_time_s - times_s.iter().sum::<f64>() / times_s.len() as f64;
                prop_assert!((run.wait_s[at] - waited_s).abs() < 1e-9 * step_time_s.max(1.0));
            }
        }
    }

    /// With workers that are always equal, every policy takes the same time and never changes its shares.
    #[test]
    fn equal_workers_are_all_the_same(speeds in prop::collection::vec(1.0f64..50.0, 20..60), workers in 1usize..6) {
        let world = world_of(&vec![speeds; workers]);
        let settings = settings(12 * workers as u64, 6);
        let even = run(&world, PolicyName::Even, &settings);
        for policy in PolicyName::ALL {
            let run = run(&world, policy, &settings);
            prop_assert_eq!((&run.step_time_s, run.changes), (&even.step_time_s, 0), "{}", policy);
        }
    }

    /// The order of the workers does not matter, except for evenstep's plans: their search under uncertainty
    /// depends on ranks.
    #[test]
    fn permuted_workers_get_permuted_shares(speeds in speeds(), by in 1usize..4) {
        let settings = settings(12 * speeds.len() as u64, 6);
        let mut turned = speeds.clone();
        let by = by % speeds.len();
        turned.rotate_left(by);
        let ours = [PolicyName::Base, PolicyName::Evenstep];
        for policy in PolicyName::ALL.into_iter().filter(|policy| !ours.contains(policy)) {
            let ours = run(&world_of(&speeds), policy, &settings);
            let theirs = run(&world_of(&turned), policy, &settings);
            for (ours, theirs) in ours.shares.iter().zip(&theirs.shares) {
                let mut ours = ours.clone();
                ours.rotate_left(by);
                prop_assert_eq!(&ours, theirs, "{}", policy);
            }
        }
    }

    /// No policy except the oracle depends on the future.
    #[test]
    fn later_values_do_not_change_earlier_forecasts(speeds in speeds(), changed in 7usize..12) {
        let settings = settings(60, 6);
        let world = world_of(&speeds);
        let mut other = world.clone();
        for worker in &mut other.workers {
            worker.slowdown[changed..].iter_mut().for_each(|slowdown| *slowdown *= 3.0);
            worker.drivers[changed + 1..].iter_mut().for_each(|drivers| drivers[0] = None);
        }
        other.workers[0].slowdown[changed] *= 2.0;
        let known = changed - 5;
        for policy in PolicyName::ALL.into_iter().filter(|policy| *policy != PolicyName::Oracle) {
            let (ours, theirs) = (run(&world, policy, &settings), run(&other, policy, &settings));
            let known = known.min(ours.given.len());
            prop_assert_eq!(&ours.given[..known], &theirs.given[..known], "{}", policy);
        }
    }
}
