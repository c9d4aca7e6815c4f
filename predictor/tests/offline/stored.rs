//! Backtests of a job in the store.

use std::collections::BTreeMap;

use evenstep_protocol::columns::{COLUMNS, Number};
use evenstep_protocol::{JobId, JobSpec, WorkerId, WorkerReport};
use evenstep_store::access::AuditEntry;
use evenstep_store::{Change, Store, read_reports};

use crate::support::{Folder, number};

fn report(worker: &str, iteration: u64) -> WorkerReport {
    // The load at the end of an iteration determines the next one.
    let load = |iteration: u64| (iteration * 7919 % 13) as f64 / 13.0;
    let slowed = iteration.checked_sub(1).map_or(0.0, load);
    WorkerReport {
        drivers: BTreeMap::from([("other_cpu".to_owned(), load(iteration))]),
        ..WorkerReport::new(WorkerId::new(worker).unwrap(), iteration, 16, 0.1 * slowed.exp())
    }
}

fn stored(folder: &Folder, reports: Vec<WorkerReport>) {
    let address = format!("sqlite://{}", folder.0.path().join("s.db").display());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (store, writer) = Store::open(&address.parse().unwrap(), None).await.unwrap();
        let job_id = JobId::new("resnet").unwrap();
        let spec: Box<JobSpec> = serde_json::from_str(r#"{"global_batch":32}"#).unwrap();
        let changes = vec![
            Change::CreateJob {
                job_id: job_id.clone(),
                spec,
                entry: AuditEntry::anonymous("job.create", "resnet"),
            },
            Change::Reports { job_id, reports: reports.into() },
        ];
        store.write(changes, 0).await.unwrap();
        drop(store);
        writer.await.unwrap();
    });
}

/// The drivers of an iteration are known before the next one, which they determine.
#[test]
fn a_stored_job_is_a_trace() {
    let folder = Folder::new();
    stored(
        &folder,
        (0..100).flat_map(|iteration| [report("node/0", iteration), report("node/1", iteration)]).collect(),
    );
    let before = std::fs::read(folder.0.path().join("s.db")).unwrap();
    let json = folder.json("--job resnet --store sqlite://s.db --models last,arx_all");
    assert_eq!(std::fs::read(folder.0.path().join("s.db")).unwrap(), before, "it is only read");
    assert_eq!(
        (&json["series"][1]["trace"], &json["series"][1]["unique_id"]),
        (&"resnet".into(), &"node/1".into())
    );
    assert_eq!(json["series"][1]["rows"], 100);
    assert!(number(&json, 1, "arx_all", "rmse_rel_last") < 0.3, "{json}");
    assert_eq!(json["step_time"].as_array().unwrap().len(), 2);
}

#[test]
fn missing_files_are_named_and_not_created() {
    let folder = Folder::new();
    stored(&folder, vec![report("node/0", 0)]);
    folder.refuses(1, "--job vgg --store sqlite://s.db", "no reports of job vgg");
    folder.refuses(1, "--job resnet --store sqlite://s.db", "1 rows");
    folder.refuses(1, "--job resnet --store sqlite://none.db", "none.db");
    assert!(!folder.0.path().join("none.db").exists());
    folder.refuses(1, "--job resnet --store mysql://x", "sqlite://FILE");
}

/// Every number of a report is stored and read without changes, and so is its absence.
#[test]
fn numbers_are_kept() {
    let folder = Folder::new();
    let mut all = report("node/0", 0);
    for (value, column) in (1_u32..).zip(&COLUMNS) {
        match column.number {
            Number::Integer { set, .. } => set(&mut all, value.into()),
            Number::Real { set, .. } => set(&mut all, -0.1 * f64::from(value)),
        }
    }
    let reports = vec![all, report("node/0", 1)];
    stored(&folder, reports.clone());
    assert_eq!(read(&folder), reports);
}

/// An offline read does not change a store that an earlier version wrote.
#[test]
fn a_store_of_an_earlier_schema_is_read() {
    use sqlx::{ConnectOptions, Connection};

    let folder = Folder::new();
    let file = folder.0.path().join("s.db");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(file).create_if_missing(true);
        let mut connection = options.connect().await.unwrap();
        for statement in [
            include_str!("../../../migrations/sqlite/0001_initial.sql"),
            "INSERT INTO job (job_id, spec, generation, departed_generation, created_unix_ms)
             VALUES ('resnet', '{\"global_batch\":32}', 1, 0, 0);
             INSERT INTO report VALUES ('resnet', 3, 'node/0', 0, 16, 0.5, NULL, NULL, NULL, '{}')",
        ] {
            sqlx::raw_sql(statement).execute(&mut connection).await.unwrap();
        }
        connection.close().await.unwrap();
    });
    assert_eq!(read(&folder), [WorkerReport::new(WorkerId::new("node/0").unwrap(), 3, 16, 0.5)]);
}

fn read(folder: &Folder) -> Vec<WorkerReport> {
    let address = format!("sqlite://{}", folder.0.path().join("s.db").display());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(read_reports(&address, &JobId::new("resnet").unwrap(), 100)).unwrap().0
}
