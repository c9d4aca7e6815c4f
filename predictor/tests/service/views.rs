//! The cost of views of jobs, and the totals that they show after a restart.

use std::path::Path;

use evenstep_protocol::{AllocateRequest, HistoryView, JobSpec, JobSummary, LiveView, WorkerReport};
use evenstep_store::queries::{COUNTS, QUERIES, Query, SUMMARIES};
use evenstep_tests::wait::until;
use evenstep_tests::{Events, Store};

use crate::support::{Service, allocate_request, join_all, report, worker_id};

/// Iterations of the short and of the long history.
const LENGTHS: [u64; 2] = [1_000, 8_000];
const WORKERS: usize = 4;

/// Adds iterations, samples, events and summaries to a job with workers and a node.
fn extend(store: &Store, from: u64, until: u64) {
    let numbers = format!(
        "WITH RECURSIVE n(i) AS (SELECT {from} UNION ALL SELECT i + 1 FROM n WHERE i < {}) ",
        until - 1
    );
    let decision = r#"{"decision": {"kind": "held", "reason": "a test"}}"#;
    for insert in [
        "INSERT INTO report (job_id, iteration, worker, at_unix_ms, local_batch, compute_time_s, drivers)
             {n} SELECT 'job', i, worker, i * 1000, 16, 0.1, '{}' FROM n CROSS JOIN worker",
        "INSERT INTO allocation (job_id, iteration, generation, at_unix_ms, answer)
             {n} SELECT 'job', i, 1, i * 1000, '{decision}' FROM n",
        "INSERT INTO step (job_id, iteration, at_unix_ms, shown) {n} SELECT 'job', i, i * 1000, '{}' FROM n",
        "INSERT INTO event (job_id, at_unix_ms, kind, worker, generation)
             {n} SELECT 'job', i * 1000, 'override', 'node/0', 1 FROM n",
        "INSERT INTO node_sample (node, boot_id, sequence, at_unix_ms, sample)
             {n} SELECT 'node', 'boot', i, i, '{}' FROM n",
        "INSERT INTO node_summary (node, step_s, at_unix_ms, samples, readings)
             {n} SELECT 'node', 60, i * 60000, 1, '{}' FROM n",
        "INSERT INTO worker_summary
             (job_id, worker, step_s, at_unix_ms, reports, samples, compute_time_s, barrier_wait_s, loader_wait_s,
              predicted, predicted_time_s)
             {n} SELECT 'job', 'node/0', 60, i * 60000, 1, 1, 1, 0, 0, 1, 1 FROM n",
    ] {
        // SQLite takes the common table expression before the insert, PostgreSQL in both places.
        let insert = insert.replace("{decision}", decision);
        let sql = format!("{numbers}{}", insert.replace("{n}", ""));
        store.rows(&sql);
    }
}

fn literal(query: &Query) -> String {
    let numbered = query.arguments.iter().enumerate().rev();
    numbered.fold(query.sql.to_owned(), |sql, (at, value)| sql.replace(&format!("${}", at + 1), value))
}

/// Each query that reads history costs the same for a short and a long history, whatever the planner knows about the
/// tables.
#[test]
fn no_query_costs_more_because_the_history_is_longer() {
    let service = Service::start();
    service.client.put_job("job", &JobSpec::new(64));
    join_all(&service.client, "job", WORKERS);
    let store = &service.store;
    store.rows("INSERT INTO node (node, samples) VALUES ('node', 1)");
    let own = usize::from(store.file().is_none());
    let queries: Vec<&Query> = QUERIES.iter().chain([&SUMMARIES[own]]).collect();
    let costs = || queries.iter().map(|query| store.cost(&literal(query))).collect::<Vec<_>>();
    extend(store, 0, LENGTHS[0]);
    let short = costs();
    extend(store, LENGTHS[0], LENGTHS[1]);
    let long = costs();
    store.rows("ANALYZE");
    let analyzed = costs();
    for (((query, short), long), analyzed) in queries.iter().zip(&short).zip(&long).zip(&analyzed) {
        // A deeper index has some more pages; other plans of small tables cost a little more.
        let most = 2 * short + 40;
        // Without statistics, PostgreSQL sorts old rows instead of reading the first ones. It has statistics within a minute,
        // and only retention, in the background, reads old rows.
        let is_exempt = own == 1 && query.name.starts_with("old_");
        assert!(
            (*long <= most || is_exempt) && *analyzed <= most,
            "{}: {short} for {} iterations, {long} for {}, {analyzed} with statistics",
            query.name,
            LENGTHS[0],
            LENGTHS[1]
        );
    }
}

/// The sources of the store name no table of history in a query that the test above does not know.
#[test]
fn every_query_of_history_is_known() {
    let known: String =
        QUERIES.iter().chain(&COUNTS).chain(&SUMMARIES).map(|query| words(query.sql) + "\n").collect();
    let store = Path::new(env!("CARGO_MANIFEST_DIR")).join("store/src");
    let mut found = 0;
    for folder in ["read", "view"] {
        for file in std::fs::read_dir(store.join(folder)).unwrap() {
            let path = file.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            for line in text.lines().map(str::trim).filter(|line| !line.starts_with("//")) {
                // The strings of the line, or all of it within a longer string.
                let parts: Vec<&str> = match line.matches('"').count() {
                    0 => vec![line],
                    1 => vec![line.trim_matches(['"', ',', ';']).rsplit('"').next().unwrap()],
                    _ => line.split('"').skip(1).step_by(2).collect(),
                };
                for part in parts.into_iter().filter(|part| names_history(part)) {
                    found += 1;
                    let is_known = known.contains(&words(part));
                    assert!(is_known, "{}: {part}: add the query to queries.rs", path.display());
                }
            }
        }
    }
    assert!(found > 20, "{found}");
}

/// Trains iterations of a job with three workers. Node 2 leaves in the middle, and every fifth iteration is not requested:
/// the allocation before it holds.
fn train(service: &Service, generation: &mut u64, iterations: std::ops::Range<u64>) {
    for iteration in iterations {
        if iteration == 40 {
            *generation = service.client.leave("job", "node/2").generation;
        }
        let workers = if iteration > 40 { 2 } else { 3 };
        let mut request = allocate_request("job", *generation, iteration);
        for before in iteration.saturating_sub(if iteration % 5 == 1 { 2 } else { 1 })..iteration {
            request.reports.extend((0..workers).map(|worker| {
                let mut report = report(worker, before, 20 + before % 3, 100.0 * (worker + 1) as f64);
                report.loss = Some(2.0 / (before + 1) as f64);
                report
            }));
        }
        if iteration % 5 != 0 || iteration == 0 {
            assert_eq!(service.client.allocate(&request).status, 200);
        }
    }
}

/// Reports of an iteration at which each of these workers took 0.1 s.
fn equal(workers: &[usize], iteration: u64) -> Vec<WorkerReport> {
    workers.iter().map(|worker| report(*worker, iteration, 20, 200.0)).collect()
}

fn restart(service: &mut Service) {
    service.predictor.process.terminate();
    assert!(service.predictor.process.wait().success());
    service.restart();
}

fn line(service: &Service) -> JobSummary {
    let url = format!("{}/v1/live", service.predictor.url);
    Events::open(&url).next_of(&["jobs"]).unwrap().json::<LiveView>().jobs.remove(0)
}

/// Stored iterations equal those that are computed from the allocations and reports, but for the time with even shares: it is
/// estimated with what the models knew then, and only predicted otherwise.
#[test]
fn stored_iterations_are_those_of_the_allocations_and_reports() {
    let mut service = Service::start();
    service.client.put_job("job", &JobSpec { min_workers: 2, ..JobSpec::new(60) });
    let mut generation = join_all(&service.client, "job", 3);
    train(&service, &mut generation, 0..80);
    let stored = "SELECT CAST(iteration AS TEXT) FROM step ORDER BY iteration";
    until("all reported iterations in the store", || (service.store.rows(stored).len() == 79).then_some(()));
    let histories = |service: &Service| -> Vec<HistoryView> {
        let paths = ["from_unix_ms=0", "since_s=900&points=8", "from_unix_ms=0&points=33"];
        paths.iter().map(|path| service.client.get(&format!("/v1/jobs/job/history?{path}")).json()).collect()
    };
    let before = histories(&service);
    assert_eq!(before[0].iterations, (0..80).collect::<Vec<_>>());
    assert_eq!(before[0].workers.len(), 3);
    assert!(before[0].loss[78].is_some() && before[0].loss[79].is_none());
    service.predictor.process.kill();
    service.store.rows("DELETE FROM step");
    service.restart();
    let mut after = histories(&service);
    for (after, before) in after.iter_mut().zip(&before) {
        assert_ne!(after.even_step_time_s, before.even_step_time_s);
        after.even_step_time_s = before.even_step_time_s.clone();
    }
    assert_eq!(after, before);
}

/// The totals of a job continue after a restart with those in the store and the iterations since, whatever is left of the
/// iterations before.
#[test]
fn totals_continue_after_restarts() {
    let mut service = Service::start();
    service.client.put_job("job", &JobSpec { min_workers: 2, ..JobSpec::new(60) });
    let mut generation = join_all(&service.client, "job", 3);
    train(&service, &mut generation, 0..60);
    let first = until("totals", || Some(line(&service)).filter(|line| line.trained_s.is_some()));
    service.predictor.process.terminate();
    assert!(service.predictor.process.wait().success());
    // As retention does.
    for table in ["report", "allocation", "step"] {
        service.store.rows(&format!("DELETE FROM {table} WHERE iteration < 30"));
    }
    service.restart();
    let close = |one: Option<f64>, other: f64| (one.unwrap() / other - 1.0).abs() < 1e-3;
    // Without a query for the history of the job.
    let listed = line(&service);
    assert!(close(listed.trained_s, first.trained_s.unwrap()), "{listed:?}");
    assert!(close(listed.time_lost_s, first.time_lost_s.unwrap()), "{listed:?}");
    assert!(close(listed.step_time_s, first.step_time_s.unwrap()), "{listed:?}");
    assert_eq!(listed.gain, first.gain);
    // Then a crash, at which the latest iterations are in no totals.
    train(&service, &mut generation, 61..100);
    let per_iteration = |line: &JobSummary| line.trained_s.unwrap() / (line.iteration.unwrap() + 1) as f64;
    let trained = until("later totals", || {
        Some(line(&service)).filter(|line| line.iteration == Some(98) && line.trained_s > first.trained_s)
    });
    assert!((per_iteration(&trained) / per_iteration(&first) - 1.0).abs() < 0.1, "{first:?} {trained:?}");
    service.kill_and_restart();
    let restored = until("restored totals", || Some(line(&service)).filter(|line| line.trained_s.is_some()));
    assert!(close(restored.trained_s, trained.trained_s.unwrap()), "{trained:?} {restored:?}");
    assert!(close(restored.time_lost_s, trained.time_lost_s.unwrap()), "{trained:?} {restored:?}");
}

/// An iteration that some workers had reported before a restart counts once. Iterations between two reported ones count, too.
#[test]
fn a_restart_counts_each_iteration_once() {
    let mut service = Service::start();
    service.client.put_job("job", &JobSpec::new(60));
    let generation = join_all(&service.client, "job", 3);
    let all = [0, 1, 2];
    let request = |service: &Service, iteration: u64, reports: Vec<WorkerReport>| {
        let request = AllocateRequest { reports, ..allocate_request("job", generation, iteration) };
        assert_eq!(service.client.allocate(&request).status, 200);
    };
    (0..40).for_each(|iteration| {
        request(&service, iteration, if iteration == 0 { Vec::new() } else { equal(&all, iteration - 1) });
    });
    request(&service, 40, equal(&[0], 39));
    restart(&mut service);
    // A page that is open.
    service.client.job("job");
    let trained = |service: &Service, iterations: f64| {
        until(&format!("{iterations} iterations in the totals"), || {
            // A report has 0.1 s of compute time and 0.001 s of waiting.
            Some(line(service))
                .filter(|line| (line.trained_s.unwrap_or(0.0) / 0.101 - iterations).abs() < 0.01)
        })
    };
    trained(&service, 39.0);
    request(&service, 41, equal(&[1, 2], 39));
    trained(&service, 40.0);
    // From here on, every tenth iteration is reported.
    request(&service, 50, equal(&all, 49));
    trained(&service, 50.0);
    restart(&mut service);
    service.client.job("job");
    trained(&service, 50.0);
    request(&service, 60, equal(&all, 59));
    trained(&service, 60.0);
    restart(&mut service);
    trained(&service, 60.0);
}

/// Iterations that new workers compute again count, also after a restart.
#[test]
fn totals_include_iterations_that_are_computed_again() {
    let mut service = Service::start();
    service.client.put_job("job", &JobSpec::new(60));
    let mut generation = join_all(&service.client, "job", 2);
    let train = |service: &Service, generation: u64, workers: &[usize], iterations: std::ops::Range<u64>| {
        for iteration in iterations {
            let reports = equal(workers, iteration);
            let ask = |iteration, reports| AllocateRequest {
                reports,
                ..allocate_request("job", generation, iteration)
            };
            assert_eq!(service.client.allocate(&ask(iteration, Vec::new())).status, 200);
            assert_eq!(service.client.allocate(&ask(iteration + 1, reports)).status, 200);
        }
    };
    train(&service, generation, &[0, 1], 0..40);
    ["node/0", "node/1"].iter().for_each(|worker| drop(service.client.leave("job", worker)));
    for worker in [2, 3] {
        generation = service.client.join("job", worker_id(worker).as_str()).generation;
    }
    train(&service, generation, &[2, 3], 20..40);
    let trained = |service: &Service| {
        until("60 iterations in the totals", || {
            Some(line(service)).filter(|line| (line.trained_s.unwrap_or(0.0) / 0.101 - 60.0).abs() < 0.01)
        })
    };
    trained(&service);
    restart(&mut service);
    trained(&service);
}

/// A job that is created again after a deletion has no totals of the earlier one.
#[test]
fn a_recreated_job_begins_at_zero() {
    let mut service = Service::start();
    service.client.put_job("job", &JobSpec::new(60));
    let mut generation = join_all(&service.client, "job", 3);
    train(&service, &mut generation, 0..40);
    restart(&mut service);
    assert!(line(&service).trained_s.is_some(), "listed");
    assert_eq!(service.client.delete("/v1/jobs/job").status, 204);
    service.client.put_job("job", &JobSpec::new(60));
    restart(&mut service);
    until("the new job without totals", || {
        Some(line(&service)).filter(|line| line.trained_s.is_none() && line.iteration.is_none())
    });
    assert_eq!(service.store.rows("SELECT totals FROM job"), [[None::<String>]]);
}

/// Whether a part of a query reads a table of history.
fn names_history(part: &str) -> bool {
    let tables = ["report", "allocation", "step", "node_sample", "node_summary", "worker_summary"];
    let reads = |table: &str| ["FROM", "JOIN"].iter().any(|verb| part.contains(&format!("{verb} {table} ")));
    // The size of rows is estimated from some of them.
    tables.into_iter().any(reads) && !part.contains("LIMIT 500")
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
