//! Background jobs in the gaps of burst-parallel training, with worker processes pinned to cores.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use evenstep_trainer_lab::gaps::{Configuration, RankMeasurements};
use serde_json::Value;

/// Runs `gaps` with two ranks; on a machine with one core they share it.
fn gaps(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenstep-trainer"));
    command.args(["gaps", "--timeout-s=30"]).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

#[test]
fn the_foreground_is_the_same_bit_by_bit_and_the_background_learns() {
    let folder = tempfile::tempdir().unwrap();
    let (json, page) = (folder.path().join("gaps.json"), folder.path().join("gaps.html"));
    let paths = [format!("--json={}", json.display()), format!("--html={}", page.display())];
    let small = ["--rounds=2", "--hidden=256,512,256", "--background=16"];
    let output = gaps(&[&small[..], &[&paths[0], &paths[1]]].concat()).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && words.contains("parameters unchanged"), "{words}");
    let told: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(told["figures"]["unchanged"], true);
    let ranks: Vec<RankMeasurements> = serde_json::from_value(told["ranks"].clone()).unwrap();
    assert_eq!(ranks.len(), 2);
    for rank in &ranks {
        assert_eq!(rank.turns.len(), 2 * 5);
        assert_eq!(rank.parameters[0], rank.parameters[1]);
        for turn in &rank.turns {
            let alone = turn.arm == Configuration::Background;
            assert_eq!(turn.iterations_s.len(), if alone { 0 } else { 20 });
            // The last piece that starts before the door closes may end after it.
            let closed = !alone && turn.arm != Configuration::Filled;
            assert!(!closed || turn.background_samples <= rank.background.piece_samples, "{turn:?}");
        }
        let ran = rank.background.ran;
        // On a loaded machine, a job in the idle scheduling class may run only a few steps.
        assert!(ran.loss.1 < ran.loss.0 || ran.steps < 20, "{ran:?}");
    }
    let filled = ranks.iter().flat_map(|rank| &rank.turns).filter(|turn| turn.arm == Configuration::Filled);
    assert!(
        filled.map(|turn| turn.background_samples).sum::<u64>() > 0,
        "no background work ran in the gaps"
    );
    assert_ne!(ranks[0].parameters, ranks[1].parameters, "rank 1 has fewer layers");
    assert!(fs::read_to_string(&page).unwrap().contains("burst plan + background"));
}

/// Returns the process ids of a process' children.
fn children(pid: u32) -> Vec<String> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    fs::read_to_string(path).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

#[expect(clippy::disallowed_methods, reason = "polls without taking the processor from what it waits for")]
fn until(what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        // Other load on the machine delays a thread of the idle scheduling class by a multiple.
        assert!(begun.elapsed() < Duration::from_secs(300), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Returns whether a process and all its threads have ended. The process may still be a zombie.
fn has_ended(pid: &str) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().count();
    stat.rsplit(") ").next().is_some_and(|state| state.starts_with('Z')) && threads <= 1
}

/// Returns the scheduling class of a process' background thread: field 41 of the thread's `stat`.
fn class(pid: &str) -> Option<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let named =
        |path: &Path| fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim() == "background");
    let task = tasks.flatten().map(|task| task.path()).find(|path| named(path))?;
    let stat = fs::read_to_string(task.join("stat")).ok()?;
    stat.rsplit(") ").next()?.split(' ').nth(38)?.parse().ok()
}

#[test]
fn a_killed_export_leaves_nothing() {
    const IDLE: u32 = 5;
    let mut launcher = gaps(&["--rounds=200", "--hidden=256,512,256"]).spawn().unwrap();
    until("two ranks with background jobs in the idle class", || {
        let ranks = children(launcher.id());
        ranks.len() == 2 && ranks.iter().all(|rank| class(rank) == Some(IDLE))
    });
    let ranks = children(launcher.id());
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    until("the ranks and their threads have ended", || ranks.iter().all(|rank| has_ended(rank)));
}

#[test]
fn bad_values_are_named() {
    for (arguments, words) in [
        (&["--slow-down-limit=0.5", "--background"][..], "slow-down limit 0.5 is not between 1 and 10"),
        (&["--global-batch=1"], "--global-batch 1: must be at least the number of ranks, 2"),
        (&["--workers=1"], "1 is not in 2..=1024"),
        (&["--plan=nowhere.json"], "nowhere.json"),
        (&["--background=0"], "0 is not in"),
    ] {
        let output = gaps(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(words), "{arguments:?}: {said}");
    }
}
