//! Simulations of recorded workers and of described clusters.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde_json::Value;

use crate::support::{Folder, own_trace};

/// Two workers of five rows.
fn two() -> Folder {
    let folder = Folder::to_simulate();
    folder.write("a.csv", "speed\n10\n10\n10\n20\n");
    folder.write("b.csv", "speed\n10\n10\n20\n10\n99\n");
    folder
}

fn policy<'a>(json: &'a Value, name: &str) -> &'a Value {
    let policies = json["policies"].as_array().unwrap();
    policies.iter().find(|policy| policy["policy"] == name).unwrap_or_else(|| panic!("no {name}: {json}"))
}

fn is(policy: &Value, key: &str, expected: f64) {
    let ours = policy[key].as_f64().unwrap_or_else(|| panic!("no {key}: {policy}"));
    assert!((ours - expected).abs() < 1e-9, "{key}: {ours} {expected}");
}

/// By hand: 30 samples; speeds 10 and 10 twice, the warm-up, then 10 and 20, then 20 and 10. The last value
/// splits 15 / 15, then 10 / 20. The moving average, with factor 0.3, splits 13 / 17 the second time.
#[test]
fn the_numbers_are_those_of_the_formulas() {
    let json = two().json("--trace a.csv b.csv --global-batch 30 --warmup 0.5");
    let golden = [
        ("even", 1.5, 1.5, 0.375, 0),
        ("static_proportional", 1.5, 1.5, 0.375, 0),
        ("last_value", 1.75, 2.0, 0.5625, 1),
        ("ema", 1.6, 1.7, 0.45, 1),
        ("oracle", 1.0, 1.0, 0.0, 2),
    ];
    for (name, mean_s, p95_s, wait_s, changes) in golden {
        let policy = policy(&json, name);
        is(policy, "mean_step_time_s", mean_s);
        is(policy, "p95_step_time_s", p95_s);
        is(policy, "gain", 1.5 / mean_s);
        is(policy, "regret", mean_s - 1.0);
        is(policy, "barrier_wait_s", wait_s);
        assert_eq!(policy["changes"], changes);
    }
    assert_eq!((&json["workers"], &json["iterations"], &json["warmup"]), (&2.into(), &4.into(), &2.into()));
    let names: Vec<&str> = json["policies"]
        .as_array()
        .unwrap()
        .iter()
        .map(|policy| policy["policy"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["even", "static_proportional", "last_value", "ema", "base", "evenstep", "oracle"]);
}

/// One table of several workers is equivalent to one table per worker, in any order of rows between workers.
#[test]
fn a_long_table_is_as_good_as_many() {
    let folder = two();
    folder.write("long.csv", "who,speed\na,10\na,10\nb,10\nb,10\na,10\nb,20\nb,10\na,20\n");
    let of =
        |words: &str| folder.json(&format!("{words} --global-batch 30 --warmup 0.5"))["policies"].clone();
    assert_eq!(of("--trace long.csv --id who"), of("--trace a.csv b.csv"));
    // Speeds are batches over times.
    folder.write("c.csv", "batch,s\n1,0.1\n2,0.2\n4,0.4\n2,0.1\n");
    folder.write("d.csv", "batch,s\n1,0.1\n2,0.2\n4,0.2\n2,0.2\n");
    assert_eq!(of("--trace c.csv d.csv --target-time s"), of("--trace a.csv b.csv"));
}

/// The service's models, including drivers and networks. The results do not depend on the run or the number
/// of threads.
#[test]
fn the_same_seed_gives_the_same_numbers() {
    let folder = Folder::to_simulate();
    folder.write("a.csv", &own_trace(300, 1));
    folder.write("b.csv", &own_trace(280, 2));
    let words = "--trace a.csv b.csv --workers 5 --seed 3 --json";
    let first = folder.prints(words);
    assert_eq!(folder.prints(words), first);
    let mut alone = folder.command(words);
    let alone = alone.env("RAYON_NUM_THREADS", "1").output().unwrap();
    assert_eq!(String::from_utf8(alone.stdout).unwrap(), first);
    assert_ne!(folder.prints("--trace a.csv b.csv --workers 5 --seed 4 --json"), first);
    let json: Value = serde_json::from_str(&first).unwrap();
    assert_eq!(
        (&json["workers"], &json["iterations"], &json["global_batch"]),
        (&5.into(), &280.into(), &320.into())
    );
    assert_eq!(json["networks"], true);
}

const CLUSTER: &str = r#"
[[group]]
name = "new"
count = 3
speed = 2000.0
fixed_s = 0.002
noise = 0.05

[[group]]
name = "old"
count = 1
speed = 500.0
saturation = 8
noise = 0.05
[group.slow_downs]
share = 0.2
factor = 1.5
mean_iterations = 20.0
"#;

#[test]
fn a_described_cluster_is_worth_it() {
    let folder = Folder::to_simulate();
    folder.write("c.toml", CLUSTER);
    let words = "--cluster c.toml --iterations 400 --global-batch 700";
    let json = folder.json(words);
    let advice = &json["advice"];
    let ways = advice["ways"].as_array().unwrap();
    assert_eq!((&advice["best"], &ways[3]["without"]), (&"use_evenstep".into(), &"old/0".into()));
    let step_s = |way: usize| ways[way]["mean_step_time_s"].as_f64().unwrap();
    assert!(step_s(1) < step_s(3) && step_s(3) < step_s(0), "{advice}");
    for (way, name) in [(0, "even"), (1, "base"), (2, "evenstep")] {
        assert_eq!(policy(&json, name)["mean_step_time_s"], ways[way]["mean_step_time_s"]);
        is(&ways[way]["gain"], "ratio", policy(&json, name)["gain"].as_f64().unwrap());
    }
    let printed = folder.prints(words);
    assert!(printed.lines().last().unwrap().starts_with("Use evenstep (job.loader): "), "{printed}");
    assert!(printed.contains(advice["text"].as_str().unwrap()), "{printed}");
    // The selection of policies does not change their results; without evenstep there is no advice.
    let fewer = folder.json(&format!("{words} --policies oracle,even"));
    assert_eq!(fewer["policies"][0], *policy(&json, "oracle"));
    assert_eq!((fewer["policies"].as_array().unwrap().len(), &fewer["advice"]), (2, &Value::Null));
}

/// With equal workers the advice is an even split. A worker that slows the others down, and cannot get fewer
/// samples, should be removed.
#[test]
fn advice_names_leave_alone_or_drop_slowest() {
    let folder = Folder::to_simulate();
    folder.write("fast.csv", &format!("speed\n{}", "40\n".repeat(60)));
    folder.write("also.csv", &format!("speed\n{}", "40\n".repeat(60)));
    folder.write("slow.csv", &format!("speed\n{}", "10\n".repeat(60)));
    let advice = |words: &str| folder.json(words)["advice"].clone();
    let alike = advice("--trace fast.csv also.csv");
    assert_eq!((&alike["best"], &alike["ways"][3]), (&"leave_alone".into(), &Value::Null));
    let stuck = advice("--trace fast.csv also.csv slow.csv --quantum 64");
    assert_eq!((&stuck["best"], &stuck["ways"][3]["without"]), (&"drop_slowest".into(), &"slow".into()));
    assert_eq!(advice("--trace fast.csv also.csv slow.csv")["best"], "use_evenstep");
    // If half of the time of 64 samples were fixed: of 128, the slow worker takes at least 1, in (32 + 0.5) / (32 + 32) of the even step.
    let most = advice("--trace fast.csv slow.csv")["most_if_half_fixed"].as_f64().unwrap();
    assert!((most - 64.0 / 32.5).abs() < 1e-9, "{most}");
    assert_eq!(advice("--trace fast.csv slow.csv --fixed-share 0.5")["most_if_half_fixed"], Value::Null);
    // A batch whose time does not depend on its size cannot be shortened.
    let fixed = advice("--trace fast.csv slow.csv --fixed-share 0.999");
    assert_eq!(fixed["best"], "drop_slowest");
}

#[test]
fn the_page_stands_alone() {
    let folder = Folder::to_simulate();
    folder.write("c.toml", CLUSTER);
    folder.prints("--cluster c.toml --iterations 100 --report page.html --json out.json");
    let page = folder.read("page.html");
    for named in [
        "Command and definitions",
        "Step time by policy",
        "Cumulative time",
        "Shares under evenstep",
        "Time lost waiting",
        "old/0",
    ] {
        assert!(page.contains(named), "{named}");
    }
    assert!(page.contains("default-src 'none'") && !page.contains(" src="));
    assert_eq!(
        page.matches(" href=").count(),
        page.matches(" href=\"#part-").count(),
        "links of the contents only"
    );
    let json: Value = serde_json::from_str(&folder.read("out.json")).unwrap();
    assert!(page.contains(json["advice"]["text"].as_str().unwrap()));
}

#[test]
fn faults_are_reported() {
    let folder = two();
    folder.write("c.toml", CLUSTER);
    folder.write("bad.toml", "[[group]]\nname = \"g\"\ncount = 1\nspeed = -3.0\n");
    folder.write("typo.toml", "[[group]]\nname = \"g\"\ncount = 1\nspede = 3.0\n");
    folder.write("empty.toml", "");
    folder.write("zero.csv", "speed\n10\n0\n");
    folder.write("none.csv", "speed\n");
    let refuses = |status, words: &str, named: &str| folder.refuses(status, words, named);
    refuses(2, "", "--trace");
    refuses(2, "--trace a.csv --cluster c.toml", "--cluster");
    refuses(2, "--cluster c.toml --workers 4", "--workers");
    refuses(2, "--cluster c.toml --fixed-share 0.5", "--fixed-share");
    refuses(2, "--trace a.csv a.csv", "given twice");
    refuses(2, "--trace a.csv --policies even,evne", "no policy \"evne\"");
    refuses(2, "--trace a.csv --policies even,even", "twice");
    refuses(2, "--trace a.csv --warmup 1", "between 0 and 1");
    refuses(2, "--trace a.csv --fixed-share 1", "less than 1");
    refuses(2, "--trace a.csv --global-batch 0", "--global-batch");
    refuses(2, "--trace a.csv --report a.csv", "overwrite");
    refuses(2, "--cluster c.toml --json c.toml", "overwrite");
    refuses(2, "--trace a.csv --drivers truth_x", "truth_x");
    refuses(
        1,
        "--trace a.csv b.csv --global-batch 1",
        "too small for 2 workers with at least 1 samples \
        each",
    );
    refuses(1, "--trace a.csv b.csv --global-batch 7 --quantum 2", "multiple of the quantum 2");
    refuses(1, "--trace a.csv b.csv --workers 1", "at least as many workers as traces");
    refuses(1, "--trace a.csv --iterations 5", "only 4 iterations have a row of every worker");
    refuses(1, "--trace a.csv --warmup 0.1", "of which 0 are warm-up");
    refuses(1, "--trace a.csv --workers 10000000", "exceeds the maximum");
    refuses(1, "--trace missing.csv", "missing.csv");
    refuses(1, "--trace zero.csv", "not positive");
    refuses(1, "--trace none.csv", "no rows");
    refuses(1, "--trace a.csv --id who", "no column \"who\"");
    refuses(1, "--trace a.csv --json nowhere/x.json", "the folder does not exist");
    refuses(1, "--cluster missing.toml", "missing.toml");
    refuses(1, "--cluster bad.toml", "g: speed -3");
    refuses(1, "--cluster typo.toml", "spede");
    refuses(1, "--cluster empty.toml", "group");
}

/// Workers that are only members for a while get samples only then.
#[test]
fn workers_join_and_leave() {
    let folder = Folder::to_simulate();
    let mut cluster = String::from(CLUSTER);
    write!(cluster, "\n[[group]]\nname = \"guest\"\ncount = 2\nspeed = 2000.0\njoins = 150\nleaves = 250\n")
        .unwrap();
    folder.write("c.toml", &cluster);
    let json = folder.json("--cluster c.toml --iterations 300");
    let changed: BTreeSet<u64> = json["policies"]
        .as_array()
        .unwrap()
        .iter()
        .map(|policy| policy["changes"].as_u64().unwrap())
        .collect();
    // An even split changes when they join and when they leave.
    assert_eq!(policy(&json, "even")["changes"], 2);
    assert!(changed.len() > 2);
    folder.write("alone.toml", "[[group]]\nname = \"g\"\ncount = 1\nspeed = 3.0\njoins = 5\n");
    folder.refuses(1, "--cluster alone.toml --iterations 50", "iteration 0: no worker is a member");
}
