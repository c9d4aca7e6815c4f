//! The queries that read tables which grow with the history of jobs and nodes. None may take longer because the history is
//! longer; tests hold each of them to that, with and without the statistics of the query planner.

use crate::read::{ages, allocations, expired, expired_iterations, job, past, reports, segments};
use crate::view::{disk, history, nodes, speeds, summaries};

/// A query, with arguments for a job `job` or a node `node` with at least 1,000 iterations or samples.
#[derive(Debug, Clone, Copy)]
pub struct Query {
    /// Its name.
    pub name: &'static str,
    /// The query.
    pub sql: &'static str,
    /// SQL for its parameters.
    pub arguments: &'static [&'static str],
}

const fn query(name: &'static str, sql: &'static str, arguments: &'static [&'static str]) -> Query {
    Query { name, sql, arguments }
}

/// The tenth iteration before the newest reported one.
const RECENT: &str = "(SELECT MAX(iteration) - 10 FROM report WHERE job_id = 'job')";

/// Arguments for the reports of a worker.
const WORKER_REPORTS: [&str; 34] = {
    let mut arguments = ["500"; 34];
    (arguments[0], arguments[1]) = ("'job'", "'node/1'");
    let mut at = 3;
    while at < 34 {
        arguments[at] = ["501", "502", "503", "504", "505", "506", "507", "508"][at % 8];
        at += 1;
    }
    arguments[33] = "508";
    arguments
};

/// The queries that are the same for both databases.
pub const QUERIES: [Query; 36] = [
    query("answers", allocations::ANSWERS, &["'job'", "500", "510"]),
    query("times", allocations::TIMES, &["'job'", RECENT]),
    query("segments", segments::SEGMENTS, &["'job'"]),
    query("last_iteration", job::LAST_ITERATION, &["'job'"]),
    query("departures", job::DEPARTURES, &["'job'", "10"]),
    query("past", past::PAST, &["'job'"]),
    query("pasts", past::PASTS, &[]),
    query("events", past::EVENTS, &["'job'", "10"]),
    query("first_reports", reports::FIRST_REPORTS, &["'job'", "10"]),
    query("worker_reports", reports::WORKER_REPORTS, &WORKER_REPORTS),
    query("recent_arrivals", reports::RECENT_ARRIVALS, &["'job'", RECENT]),
    query("reported", reports::REPORTED, &["'job'", RECENT]),
    query("recent_iterations", reports::RECENT_ITERATIONS, &["'job'", "20", "10"]),
    query("old_nodes", expired::OLD_NODES, &["1000", "10"]),
    query("old_samples", expired::OLD_SAMPLES, &["'node'", "1000", "10"]),
    query("old_node_steps", expired::OLD_NODE_STEPS, &["60", "1000000000", "10"]),
    query("old_worker_steps", expired::OLD_WORKER_STEPS, &["'job'", "60", "1000000000", "10"]),
    query("span", expired_iterations::SPAN, &["'job'"]),
    query("old_reports", expired_iterations::OLD_REPORTS, &["'job'", "10"]),
    query("old_answers", expired_iterations::OLD_ANSWERS, &["'job'", "10"]),
    query("samples_span", ages::SAMPLES_SPAN, &[]),
    query("allocations_span", ages::ALLOCATIONS_SPAN, &[]),
    query("steps", history::STEPS, &["'job'", "100", "20", "500"]),
    query("size", history::SIZE, &["'job'", "100", "20", "500"]),
    query("allocation", history::ALLOCATION, &["'job'", "500"]),
    query("measured", history::MEASURED, &["'job'", "500"]),
    query("latest_size", history::LATEST_SIZE, &["'job'", "500"]),
    query("allocated", history::ALLOCATED, &["'job'"]),
    query("time", history::TIME, &["'job'", "500"]),
    query("speeds", speeds::REPORTS, &["'job'", "500", "510"]),
    query("node_samples", nodes::NODE_SAMPLES, &["'node'", "10"]),
    query("nodes", nodes::NODES, &[]),
    query("oldest_sample", disk::OLDEST_SAMPLE, &[]),
    query("oldest_report", disk::OLDEST_REPORT, &[]),
    query("oldest_allocation", disk::OLDEST_ALLOCATION, &[]),
    query("latest_samples", nodes::LATEST_SAMPLES, &[]),
];

/// Counts of rows, which end at a million.
pub const COUNTS: [Query; 5] = [
    query("samples", disk::SAMPLES, &[]),
    query("reports", disk::REPORTS, &[]),
    query("allocations", disk::ALLOCATIONS, &[]),
    query("node_steps", disk::NODE_STEPS, &["60"]),
    query("worker_steps", disk::WORKER_STEPS, &["60"]),
];

/// The summaries of all jobs, in SQLite and in PostgreSQL.
pub const SUMMARIES: [Query; 2] = [
    query("summaries", summaries::SUMMARIES_SQLITE, &[]),
    query("summaries", summaries::SUMMARIES_POSTGRES, &[]),
];
