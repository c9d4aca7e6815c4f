//! Several predictors on one store. On PostgreSQL, each job has one owner; an SQLite file is served by one
//! process.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use evenstep_protocol::{JobSpec, JobsView, TelemetryResponse};
use evenstep_store::access::AuditEntry;
use evenstep_store::{Change, Clock, Owner, Sharing, Store, StoreError};
use evenstep_tests::postgres::Database;
use evenstep_tests::predictor::without_settings;
use evenstep_tests::process::Process;
use evenstep_tests::wait::until;
use evenstep_tests::{Client, Predictor};

use sqlx::{Connection, Executor, PgConnection};

use crate::support::{BINARY, allocate_request, job_id, join_all};

/// The lease expires soon, but not while a test prepares its job on a loaded machine.
const FLAGS: [&str; 2] = ["--refit-interval-s=86400", "--lease-s=8"];
/// The owner keeps its jobs, however slow the machine is.
const LONG_LEASE: [&str; 2] = ["--refit-interval-s=86400", "--lease-s=300"];

/// Two predictors. The first owns the job `shared` of two workers, and has allocated iteration 0.
struct Pair {
    database: Database,
    first: Predictor,
    second: Predictor,
    answer: String,
}

impl Pair {
    fn start(test: &str) -> Option<Self> {
        Self::start_with(test, &FLAGS)
    }

    fn start_with(test: &str, flags: &[&str]) -> Option<Self> {
        let database = Database::shared(test)?;
        let start = || Predictor::start_over(Path::new(BINARY), &database.url(), flags);
        let (first, second) = (start(), start());
        let client = first.client();
        client.put_job("shared", &JobSpec::new(64));
        join_all(&client, "shared", 2);
        let answer = client.allocate(&allocate_request("shared", 2, 0)).body;
        Some(Self { database, first, second, answer })
    }
}

#[test]
fn requests_are_redirected_to_the_owner() {
    let name = "sharing::requests_are_redirected_to_the_owner";
    let Some(pair) = Pair::start_with(name, &LONG_LEASE) else { return };
    let second = pair.second.client();
    let sent = second.allocate(&allocate_request("shared", 2, 1));
    sent.problem(307, "elsewhere");
    assert_eq!(sent.location, Some(format!("{}/allocate", pair.first.url)));
    let sent = second.get("/v1/jobs/shared/speeds?limit=5");
    assert_eq!(sent.location, Some(format!("{}/v1/jobs/shared/speeds?limit=5", pair.first.url)), "{sent:?}");
    let there = Client::following(&pair.second.url);
    assert_eq!(there.allocated("shared", 0).body, pair.answer);
    // Telemetry belongs to no job: every predictor accepts it, and it is stored once.
    let batch = r#"{"node":"n","boot_id":"b","sequence":0,"samples":[{"at_unix_ms":1},{"at_unix_ms":2}]}"#;
    let kept = |predictor: &Predictor| -> TelemetryResponse {
        predictor.client().post_text("/v1/telemetry", batch).json()
    };
    assert_eq!((kept(&pair.second).stored, kept(&pair.first).duplicates), (2, 2));
    let jobs: JobsView = second.get("/v1/jobs").json();
    assert_eq!(jobs.jobs[0].live_workers, 2, "listed by both predictors");
}

#[test]
fn a_stopped_predictor_does_not_serve_jobs_it_lost() {
    let Some(pair) = Pair::start("sharing::a_stopped_predictor_does_not_serve_jobs_it_lost") else { return };
    let (first, second) = (pair.first.client(), pair.second.client());
    pair.first.process.stop();
    until("the second takes over", || (second.get("/v1/jobs/shared").status == 200).then_some(()));
    assert_eq!(second.allocated("shared", 0).body, pair.answer);
    assert_eq!(second.leave("shared", "node/0").generation, 3);
    let planned_again = second.allocate(&allocate_request("shared", 3, 0)).body;
    assert_ne!(planned_again, pair.answer);
    pair.first.process.go_on();
    // The first predictor has the void allocation and its generation in memory.
    let stale = first.allocate(&allocate_request("shared", 2, 0));
    assert!(matches!(stale.status, 307 | 503), "{stale:?}");
    until("it has registered again", || (first.allocated("shared", 0).status == 307).then_some(()));
    assert_eq!(second.allocated("shared", 0).body, planned_again);
}

/// PostgreSQL ends idle transactions, but takes a session that waits for the rest of a COPY for active.
#[test]
fn a_predictor_that_stops_within_a_copy_loses_its_jobs() {
    let name = "sharing::a_predictor_that_stops_within_a_copy_loses_its_jobs";
    let Some(pair) = Pair::start(name) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    // What the writer of the first predictor does.
    let mut connection = runtime.block_on(PgConnection::connect(&pair.database.url())).unwrap();
    pair.first.process.stop();
    let lock = format!("BEGIN; SELECT 1 FROM predictor WHERE url = '{}' FOR KEY SHARE", pair.first.url);
    runtime.block_on(connection.execute(sqlx::AssertSqlSafe(lock))).unwrap();
    let into = "COPY node_sample (node, boot_id, sequence, at_unix_ms, sample) FROM STDIN";
    let copy = runtime.block_on(connection.copy_in_raw(into)).unwrap();
    let second = pair.second.client();
    until("the second takes over", || (second.get("/v1/jobs/shared").status == 200).then_some(()));
    assert_eq!(second.allocated("shared", 0).body, pair.answer);
    assert!(runtime.block_on(copy.finish()).is_err(), "the session was ended");
    pair.first.process.go_on();
}

#[test]
fn a_terminating_predictor_releases_its_jobs() {
    let name = "sharing::a_terminating_predictor_releases_its_jobs";
    let Some(mut pair) = Pair::start_with(name, &LONG_LEASE) else { return };
    pair.first.process.terminate();
    assert!(pair.first.process.wait().success());
    let second = pair.second.client();
    assert_eq!(second.allocated("shared", 0).body, pair.answer, "at once, without waiting for the lease");
}

/// The database would accept the lease if it responded: the predictor's own clock does not.
#[test]
fn a_predictor_with_an_expired_lease_serves_nothing_from_memory() {
    let Some(database) =
        Database::shared("sharing::a_predictor_with_an_expired_lease_serves_nothing_from_memory")
    else {
        return;
    };
    let predictor = Predictor::start_over(Path::new(BINARY), &database.url(), &FLAGS);
    let client = predictor.client();
    client.put_job("shared", &JobSpec::new(64));
    join_all(&client, "shared", 2);
    let answer = client.allocate(&allocate_request("shared", 2, 0)).body;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let connection = runtime.block_on(async {
        let mut connection = PgConnection::connect(&database.url()).await.unwrap();
        connection.execute("BEGIN; LOCK TABLE predictor IN ACCESS EXCLUSIVE MODE").await.unwrap();
        connection
    });
    until("it stops responding", || (client.allocated("shared", 0).status == 503).then_some(()));
    client.allocate(&allocate_request("shared", 2, 0)).problem(503, "unavailable");
    client.get("/readyz").problem(503, "unavailable");
    runtime.block_on(connection.close()).unwrap();
    until("it responds again", || (client.allocated("shared", 0).status == 200).then_some(()));
    assert_eq!(client.allocated("shared", 0).body, answer);
}

/// The predictor's own clock would accept the lease: the database does not.
#[test]
fn a_commit_of_a_removed_predictor_changes_nothing() {
    let Some(database) = Database::shared("sharing::a_commit_of_a_removed_predictor_changes_nothing") else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let (url, lease) = ("http://removed.test".into(), Duration::from_secs(300));
        let sharing = Sharing { url, lease, clock: Clock::system() };
        let address = database.url().parse().unwrap();
        let (store, _writer) = Store::open(&address, Some(sharing)).await.unwrap();
        let job_id = job_id("shared");
        let create = Change::CreateJob {
            job_id: job_id.clone(),
            spec: JobSpec::new(64).into(),
            entry: AuditEntry::anonymous("job.create", job_id.as_str()),
        };
        store.write(vec![create], 0).await.unwrap();
        let Some(Owner::Us(registration)) = store.claim(&job_id).await.unwrap() else {
            panic!("the job has no owner")
        };
        let ours = store.of_registration(registration);
        let answer = |iteration| {
            let answer = "{}".to_owned();
            vec![Change::Allocation {
                job_id: job_id.clone(),
                iteration,
                generation: 0,
                answer: answer.into(),
            }]
        };
        ours.write(answer(0), 0).await.unwrap();
        let url = database.url();
        let removed = tokio::task::spawn_blocking(move || {
            evenstep_tests::postgres::rows(&url, "DELETE FROM predictor RETURNING url")
        });
        assert_eq!(removed.await.unwrap().len(), 1);
        let refused = ours.write(answer(1), 0).await;
        assert!(matches!(refused, Err(StoreError::Fenced)), "{refused:?}");
        assert_eq!(store.answers(&job_id, 0, 10).await.unwrap().len(), 1);
        let over = store.registration();
        assert!(matches!(over, Err(StoreError::Fenced)), "{over:?}: responses from memory are also refused");
    });
}

#[test]
fn a_database_clock_set_back_does_not_delay_the_next_owner() {
    let name = "sharing::a_database_clock_set_back_does_not_delay_the_next_owner";
    let Some(mut pair) = Pair::start(name) else { return };
    // By the clock of today, rows written before the clock was set back are from tomorrow.
    let set_back = || {
        pair.database.execute("UPDATE predictor SET lease_until = lease_until + INTERVAL '1 day'");
    };
    set_back();
    assert_eq!(
        pair.first.client().allocated("shared", 0).body,
        pair.answer,
        "a live predictor keeps its jobs"
    );
    assert_eq!(pair.second.client().allocated("shared", 0).status, 307);
    pair.first.process.kill();
    set_back();
    let second = pair.second.client();
    until("the second takes over", || (second.get("/v1/jobs/shared").status == 200).then_some(()));
    assert_eq!(second.allocated("shared", 0).body, pair.answer);
}

/// During a rolling upgrade, a predictor of the earlier version may have to start again.
#[test]
fn a_newer_schema_is_served_if_it_only_adds() {
    let name = "sharing::a_newer_schema_is_served_if_it_only_adds";
    let Some(mut pair) = Pair::start(name) else { return };
    let newer = |description: &str| {
        pair.database.execute(&format!(
            "DELETE FROM _sqlx_migrations WHERE version = 9000;
             INSERT INTO _sqlx_migrations VALUES (9000, '{description}', now(), true, '\\x00', 0)"
        ));
    };
    newer("notes of jobs");
    pair.first.kill_and_restart();
    let first = Client::following(&pair.first.url);
    // The lease of its earlier process may still have to expire.
    let answer = until("the job has an owner", || {
        first.try_get("/allocate?job_id=shared&iteration=0").ok().filter(|answer| answer.status == 200)
    });
    assert_eq!(answer.body, pair.answer);
    newer("contract samples");
    pair.first.process.kill();
    let mut command = Command::new(BINARY);
    command.args(["serve", "--listen=127.0.0.1:0", "--store", &pair.database.url()]);
    let mut refused = Process::start(without_settings(&mut command));
    assert!(!refused.wait().success());
    assert!(refused.output().contains("schema 9000 is newer than"), "{}", refused.output());
    assert_eq!(pair.second.client().get("/readyz").status, 200, "a running predictor continues");
}

#[test]
fn an_sqlite_file_is_served_by_one() {
    let folder = tempfile::tempdir().unwrap();
    let first = Predictor::start_over(Path::new(BINARY), &address(folder.path()), &[]);
    let mut command = Command::new(BINARY);
    command.args(["serve", "--listen=127.0.0.1:0", &format!("--store={}", address(folder.path()))]);
    let mut second = Process::start(without_settings(&mut command));
    assert!(!second.wait().success());
    assert!(second.output().contains("is held by another evenstep-predictor"), "{}", second.output());
    assert_eq!(first.client().get("/readyz").status, 200);
}

fn address(folder: &Path) -> String {
    format!("sqlite://{}", folder.join("evenstep.db").display())
}
