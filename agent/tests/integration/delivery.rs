//! Delivery tests of the real agent against a receiver with failures: acknowledged samples are neither lost
//! nor stored twice.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use crate::support::agent::Agent;
use crate::support::receiver::{Receiver, Store, reject, take};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use evenstep_agent::spool::SPOOL_BYTES_MIN;

fn waiting(status: &serde_json::Value) -> u64 {
    status["spool"]["waiting"].as_u64().unwrap()
}

fn assert_without_gaps(sequences: &BTreeSet<u64>, from: u64) {
    let expected: BTreeSet<u64> = (from..from + sequences.len() as u64).collect();
    assert_eq!(sequences, &expected);
}

/// Returns the size of all files below a directory, in bytes.
fn directory_size(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).unwrap().flatten();
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => directory_size(&entry.path()),
        Ok(metadata) => metadata.len(),
        // Removed between listing and reading.
        Err(_) => 0,
    };
    entries.map(size).sum()
}

#[test]
fn every_sample_arrives_once_although_the_receiver_restarts() {
    let spool = tempfile::tempdir().unwrap();
    let mut receiver = Receiver::away();
    let agent = Agent::start(&receiver.url(), spool.path(), &[]);
    agent.wait_until("samples wait", |status| waiting(status) >= 10);
    receiver.run(take);
    receiver.wait_until("the backlog arrives", |store| store.count() >= 20);
    receiver.shut_down();
    let before = receiver.look(|store| store.count() as u64);
    agent.wait_until("samples wait again", |status| waiting(status) >= 10);
    receiver.run(take);
    receiver.wait_until("the second backlog arrives", |store| store.count() as u64 >= before + 10);
    let taken = agent.status()["samples_taken"].as_u64().unwrap();
    let boot_id = agent.boot_id.clone();
    assert!(agent.terminate().success());
    receiver.look(|store| {
        assert_without_gaps(&store.sequences[&boot_id], 0);
        // Includes samples taken after the query, because a final attempt is made at shutdown.
        assert!(store.count() as u64 >= taken);
    });
}

#[test]
fn a_lost_response_is_retried_and_stored_once() {
    let spool = tempfile::tempdir().unwrap();
    let receiver = Receiver::here(|batch, store| {
        if store.batches.len() > 2 {
            return None;
        }
        store.keep(batch);
        reject(500)
    });
    let agent = Agent::start(&receiver.url(), spool.path(), &[]);
    receiver.wait_until("later samples arrive", |store| store.count() >= 20 && store.batches.len() > 3);
    let status = agent.wait_until("acknowledged", |status| status["uplink"]["samples_acknowledged"] != 0);
    assert!(status["uplink"]["duplicates"].as_u64().unwrap() > 0);
    let boot_id = agent.boot_id.clone();
    assert!(agent.terminate().success());
    receiver.look(|store| {
        assert!(store.duplicates > 0);
        assert_without_gaps(&store.sequences[&boot_id], 0);
    });
}

#[test]
fn after_a_kill_spooled_samples_are_sent_with_their_old_id() {
    let spool = tempfile::tempdir().unwrap();
    let mut receiver = Receiver::here(take);
    let agent = Agent::start(&receiver.url(), spool.path(), &[]);
    receiver.wait_until("some arrive", |store| store.count() >= 10);
    receiver.shut_down();
    let status = agent.wait_until("samples wait", |status| waiting(status) >= 10);
    let first = agent.boot_id.clone();
    agent.kill();

    let agent = Agent::start(&receiver.url(), spool.path(), &[]);
    let second = agent.boot_id.clone();
    assert_ne!(first, second);
    receiver.run(take);
    receiver.wait_until("samples of the second run arrive", |store| {
        store.sequences.get(&second).is_some_and(|sequences| sequences.len() >= 10)
    });
    assert!(agent.terminate().success());
    receiver.look(|store| {
        assert_without_gaps(&store.sequences[&first], 0);
        assert_without_gaps(&store.sequences[&second], 0);
        assert!(store.sequences[&first].len() as u64 >= status["samples_taken"].as_u64().unwrap());
    });
}

#[test]
fn a_full_spool_stays_within_its_limit_and_reports_dropped_samples() {
    let spool = tempfile::tempdir().unwrap();
    let mut receiver = Receiver::away();
    let room = SPOOL_BYTES_MIN.to_string();
    let agent = Agent::start(&receiver.url(), spool.path(), &["--spool-max-bytes", &room]);
    agent.wait_until("the spool is full", |status| {
        // The lock, the cursor and its temporary file are not part of the limit.
        assert!(directory_size(spool.path()) <= SPOOL_BYTES_MIN + 200);
        status["spool"]["dropped_full"].as_u64().unwrap() > 10
    });
    receiver.run(take);
    receiver.wait_until("the rest arrives", |store| store.count() >= 20);
    let status = agent.wait_until("nothing waits", |status| waiting(status) == 0);
    let dropped = status["spool"]["dropped_full"].as_u64().unwrap();
    let boot_id = agent.boot_id.clone();
    assert!(agent.terminate().success());
    receiver.look(|store| {
        let sequences = &store.sequences[&boot_id];
        // A batch in flight may have been counted as dropped and then have arrived.
        let first = *sequences.first().unwrap();
        assert!(first <= dropped, "{first} {dropped}");
        assert_without_gaps(sequences, first);
    });
}

#[test]
fn batches_that_are_too_large_are_halved_until_they_fit() {
    let spool = tempfile::tempdir().unwrap();
    let mut receiver = Receiver::away();
    let agent = Agent::start(&receiver.url(), spool.path(), &[]);
    agent.wait_until("more samples wait than fit in a batch", |status| waiting(status) >= 12);
    receiver.run(|batch, _| if batch.samples.len() > 3 { reject(413) } else { None });
    receiver.wait_until("they arrive in pieces", |store| store.count() >= 12);
    let boot_id = agent.boot_id.clone();
    assert_eq!(agent.status()["spool"]["rejected_samples"], 0);
    assert!(agent.terminate().success());
    receiver.look(|store| assert_without_gaps(&store.sequences[&boot_id], 0));
}

#[test]
fn a_poison_batch_is_set_aside_and_later_batches_are_sent() {
    let spool = tempfile::tempdir().unwrap();
    let receiver = Receiver::here(|batch, _| {
        let has_the_fifth = (batch.sequence..batch.sequence + batch.samples.len() as u64).contains(&5);
        if has_the_fifth { reject(422) } else { None }
    });
    let agent = Agent::start(&receiver.url(), spool.path(), &[]);
    receiver.wait_until("later samples arrive", |store| store.count() >= 20);
    let status = agent.wait_until("counted", |status| status["spool"]["rejected_batches"] == 1);
    let rejected = status["spool"]["rejected_samples"].as_u64().unwrap();
    let boot_id = agent.boot_id.clone();
    assert!(agent.terminate().success());
    let kept = std::fs::read_dir(spool.path().join("rejected")).unwrap().next().unwrap().unwrap();
    let kept: serde_json::Value = serde_json::from_slice(&std::fs::read(kept.path()).unwrap()).unwrap();
    assert_eq!(kept["batch"]["samples"].as_array().unwrap().len() as u64, rejected);
    receiver.look(|store| {
        let sequences = &store.sequences[&boot_id];
        assert!(!sequences.contains(&5));
        assert_eq!(sequences.last().unwrap() + 1, sequences.len() as u64 + rejected);
    });
}

#[test]
fn a_spool_that_another_program_removes_is_created_again_and_its_samples_are_counted() {
    let parent = tempfile::tempdir().unwrap();
    let spool = parent.path().join("spool");
    let mut receiver = Receiver::away();
    let mut command = Agent::command(&receiver.url(), &spool);
    let agent = Agent::run(command.stderr(Stdio::piped()));
    agent.wait_until("samples wait", |status| waiting(status) >= 10);
    while std::fs::remove_dir_all(&spool).is_err() {}
    receiver.run(take);
    receiver.wait_until("later samples arrive", |store| store.count() >= 10);
    let status = agent.wait_until("counted", |status| status["spool"]["dropped_removed"] != 0);
    let removed = status["spool"]["dropped_removed"].as_u64().unwrap();
    let series = "evenstep_agent_samples_dropped_total{node=\"node-a\",reason=\"removed\"}";
    assert_eq!(agent.metrics()[series], removed as f64);
    let boot_id = agent.boot_id.clone();
    let (status, said) = agent.terminate_and_read();
    assert!(status.success() && said.contains(".segment"), "{said}");
    receiver.look(|store| {
        let sequences = &store.sequences[&boot_id];
        // A batch in flight may have been counted as removed and then have arrived.
        assert!(*sequences.last().unwrap() < sequences.len() as u64 + removed, "{sequences:?}");
    });
}

#[test]
fn a_server_with_retry_after_is_not_contacted_before() {
    let spool = tempfile::tempdir().unwrap();
    let receiver = Receiver::here(|_, store| {
        let busy = || (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "2")]).into_response();
        (store.batches.len() == 1).then(busy)
    });
    let agent = Agent::start(&receiver.url(), spool.path(), &[]);
    receiver.wait_until("a second batch arrives", |store| store.batches.len() >= 2);
    receiver.look(|store| {
        let waited = store.batches[1].0.duration_since(store.batches[0].0);
        assert!(waited >= Duration::from_secs(2), "{waited:?}");
    });
    assert!(agent.terminate().success());
}

#[test]
fn one_responding_server_of_several_gets_all_samples_in_order() {
    let spool = tempfile::tempdir().unwrap();
    let (mut first, mut second) = (Receiver::here(take), Receiver::away());
    let servers = format!("{},{}", first.url(), second.url());
    let agent = Agent::start(&servers, spool.path(), &[]);
    first.wait_until("the first server receives samples", |store| store.count() >= 10);
    first.shut_down();
    second.run(take);
    second.wait_until("the second server receives samples", |store| store.count() >= 10);
    agent.wait_until("it names the second server", |status| status["uplink"]["server"] == second.url());
    // The first server runs again, but gets no requests as long as the second one responds.
    first.run(take);
    let before = second.look(Store::count);
    second.wait_until("the second server receives more samples", |store| store.count() >= before + 10);
    // A draining server is abandoned at once, whatever pause it requests.
    second.shut_down();
    second
        .run(|_, _| Some((StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "300")]).into_response()));
    let before = first.look(Store::count);
    first.wait_until("the first server receives more samples", |store| store.count() >= before + 10);
    let boot_id = agent.boot_id.clone();
    assert!(agent.terminate().success());
    let taken = |receiver: &Receiver| receiver.look(|store| store.sequences[&boot_id].clone());
    let (first, second) = (taken(&first), taken(&second));
    assert_without_gaps(&first.union(&second).copied().collect(), 0);
    assert!(second.first() > first.first() && second.last() < first.last(), "{first:?} {second:?}");
}

#[test]
fn a_redirect_to_another_server_is_followed() {
    let spool = tempfile::tempdir().unwrap();
    let owner = Receiver::here(take);
    let location = format!("{}/v1/telemetry", owner.url());
    let pointing = Receiver::here(move |_, _| {
        Some((StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, location.clone())]).into_response())
    });
    let agent = Agent::start(&pointing.url(), spool.path(), &[]);
    owner.wait_until("they arrive", |store| store.count() >= 10);
    let status = agent.wait_until("acknowledged", |status| status["uplink"]["samples_acknowledged"] != 0);
    assert_eq!(status["uplink"]["server"], owner.url());
    assert_eq!(status["uplink"]["failed_attempts"], 0);
    assert!(agent.terminate().success());
    pointing.look(|store| assert_eq!(store.batches.len(), 1, "the redirect is remembered"));
}
