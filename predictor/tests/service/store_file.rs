//! The file of an SQLite store: foreign, damaged, shared, deleted and private files.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use evenstep_protocol::JobSpec;
use evenstep_tests::predictor::without_settings;
use evenstep_tests::process::Process;
use evenstep_tests::store::{sqlite_address, sqlite_file};
use evenstep_tests::wait::until;
use evenstep_tests::{Client, Predictor};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};
use tempfile::TempDir;

use crate::support::{BINARY, allocate_request, join_all};

/// Executes statements on a file, as another program would.
fn execute(file: &Path, sql: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let options = SqliteConnectOptions::new().filename(file).create_if_missing(true);
        let mut connection: SqliteConnection = options.connect().await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
    });
}

/// A predictor with the job `job` of two workers, and the allocation of iteration 0.
fn start(folder: &Path) -> (Predictor, Client) {
    let predictor = Predictor::start(Path::new(BINARY), folder);
    let client = predictor.client();
    client.put_job("job", &JobSpec::new(64));
    join_all(&client, "job", 2);
    assert_eq!(client.allocate(&allocate_request("job", 2, 0)).status, 200);
    (predictor, client)
}

/// A folder with a store that a predictor closed.
fn closed_store() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (mut predictor, _) = start(folder.path());
    predictor.process.terminate();
    assert!(predictor.process.wait().success());
    folder
}

/// Starts a predictor that must end, and returns its output.
fn fails_to_start(file: &Path) -> String {
    let mut command = Command::new(BINARY);
    command.args(["serve", "--listen=127.0.0.1:0", &format!("--store=sqlite://{}", file.display())]);
    let mut process = Process::start(without_settings(&mut command));
    assert!(!process.wait().success());
    process.output()
}

fn beside(file: &Path, ending: &str) -> PathBuf {
    PathBuf::from(format!("{}{ending}", file.display()))
}

#[test]
fn a_file_of_another_program_is_refused_and_not_changed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("other.db");
    let refused = |rule: &str| {
        let before = fs::read(&file).unwrap();
        let said = fails_to_start(&file);
        assert!(said.contains("not a store of evenstep-predictor") && said.contains(rule), "{said}");
        assert_eq!(fs::read(&file).unwrap(), before);
        fs::remove_file(&file).unwrap();
    };
    fs::write(&file, "a note\n").unwrap();
    refused("not an SQLite database");
    execute(&file, "CREATE TABLE bookmark (url TEXT); INSERT INTO bookmark VALUES ('http://a')");
    refused("bookmark");
    // Another program with the same migration library, whose version numbers are also known here.
    execute(
        &file,
        "CREATE TABLE _sqlx_migrations (version BIGINT PRIMARY KEY, description TEXT NOT NULL,
             installed_on TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, success BOOLEAN NOT NULL,
             checksum BLOB NOT NULL, execution_time BIGINT NOT NULL);
         INSERT INTO _sqlx_migrations VALUES (1, 'initial', '2026-01-01', true, x'00', 1);
         CREATE TABLE bookmark (url TEXT)",
    );
    refused("bookmark");
    execute(&file, "PRAGMA application_id = 7");
    refused("application id 7");
}

#[test]
fn a_damaged_or_incomplete_store_is_found_at_start() {
    let folder = closed_store();
    let file = sqlite_file(folder.path());
    let whole = fs::read(&file).unwrap();
    let mut damaged = whole.clone();
    damaged[4096..].fill(0xa5);
    fs::write(&file, damaged).unwrap();
    let said = fails_to_start(&file);
    assert!(said.contains("the file is damaged"), "{said}");
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    let said = fails_to_start(&file);
    assert!(said.contains("the file is damaged"), "{said}");
    fs::write(&file, &whole).unwrap();
    execute(&file, "PRAGMA foreign_keys = OFF; DROP TABLE allocation");
    let said = fails_to_start(&file);
    assert!(said.contains("table allocation is missing"), "{said}");
    fs::write(&file, &whole).unwrap();
    let predictor = Predictor::start(Path::new(BINARY), folder.path());
    assert_eq!(predictor.client().allocated("job", 0).status, 200);
}

#[test]
fn a_service_whose_store_is_damaged_is_not_ready() {
    let folder = closed_store();
    let predictor = Predictor::start(Path::new(BINARY), folder.path());
    let client = predictor.client();
    assert_eq!(client.get("/readyz").status, 200);
    let file = sqlite_file(folder.path());
    let mut damaged = fs::read(&file).unwrap();
    damaged[4096..].fill(0xa5);
    // In place, so that the file stays the same one.
    fs::write(&file, damaged).unwrap();
    let problem = client.get("/v1/jobs/job").problem(503, "store-failed");
    assert!(problem.detail.contains("damaged"), "{problem:?}");
    let problem = client.get("/readyz").problem(503, "store-failed");
    assert!(problem.detail.contains("damaged"), "{problem:?}");
}

#[test]
fn no_other_name_of_the_file_lets_a_second_predictor_in() {
    let folder = tempfile::tempdir().unwrap();
    let (first, client) = start(folder.path());
    let file = sqlite_file(folder.path());
    // Earlier versions locked a separate file.
    let _ = fs::remove_file(beside(&file, ".lock"));
    let (link, hard_link) = (folder.path().join("link.db"), folder.path().join("hard.db"));
    symlink(&file, &link).unwrap();
    fs::hard_link(&file, &hard_link).unwrap();
    for name in [&file, &link, &hard_link] {
        let said = fails_to_start(name);
        assert!(said.contains("is held by another evenstep-predictor"), "{said}");
    }
    assert_eq!(client.get("/readyz").status, 200);
    drop(first);
}

/// A service without its file accepts no writes that would be lost.
#[test]
fn a_file_that_is_deleted_while_it_is_served_is_noticed() {
    for ending in ["", "-wal"] {
        let folder = tempfile::tempdir().unwrap();
        let (predictor, client) = start(folder.path());
        let file = beside(&sqlite_file(folder.path()), ending);
        fs::remove_file(&file).unwrap();
        let problem = client.allocate(&allocate_request("job", 2, 1)).problem(503, "store-failed");
        assert!(problem.detail.contains("deleted"), "{problem:?}");
        let problem = client.get("/readyz").problem(503, "store-failed");
        assert!(problem.detail.contains("deleted"), "{problem:?}");
        let named = format!("{} was deleted", file.display());
        until("the log names the file", || predictor.process.output().contains(&named).then_some(()));
        assert!(!sqlite_file(folder.path()).exists() || ending == "-wal");
    }
}

#[test]
fn a_write_ahead_log_that_is_deleted_after_a_kill_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let (mut predictor, _) = start(folder.path());
    predictor.process.kill();
    let file = sqlite_file(folder.path());
    let (log, kept) = (beside(&file, "-wal"), folder.path().join("kept"));
    fs::rename(&log, &kept).unwrap();
    let said = fails_to_start(&file);
    assert!(said.contains(&format!("{} was deleted", log.display())), "{said}");
    fs::rename(&kept, &log).unwrap();
    predictor.restart();
    assert_eq!(predictor.client().allocated("job", 0).status, 200);
}

/// A disk damages synced bytes. The error names the place.
#[test]
fn a_write_ahead_log_that_is_damaged_before_durable_commits_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let (mut predictor, client) = start(folder.path());
    let file = sqlite_file(folder.path());
    let log = beside(&file, "-wal");
    let before = fs::metadata(&log).unwrap().len();
    for iteration in 1..5 {
        assert_eq!(client.allocate(&allocate_request("job", 2, iteration)).status, 200);
    }
    predictor.process.kill();
    let whole = fs::read(&log).unwrap();
    let mut damaged = whole.clone();
    // In the first page after the allocation of iteration 0.
    damaged[before as usize + 1000] ^= 4;
    fs::write(&log, damaged).unwrap();
    let named = format!("{} is damaged at byte {before}", log.display());
    for words in ["serve --listen=127.0.0.1:0", "store vacuum", "token list"] {
        let mut command = Command::new(BINARY);
        command.args(words.split(' ')).args(["--store", &sqlite_address(folder.path())]);
        let output = without_settings(&mut command).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(&named), "{said}");
    }
    // A power failure in the last transaction is no damage.
    fs::write(&log, &whole[..whole.len() - 1000]).unwrap();
    predictor.restart();
    assert_eq!(predictor.client().allocated("job", 3).status, 200);
}

#[test]
fn files_of_a_store_are_private() {
    let folder = tempfile::tempdir().unwrap();
    let (_predictor, _) = start(folder.path());
    let file = sqlite_file(folder.path());
    let backup = folder.path().join("backup.db");
    let mut command = Command::new(BINARY);
    command.args(["store", "vacuum", "--store", &sqlite_address(folder.path()), "--into"]).arg(&backup);
    assert!(without_settings(&mut command).output().unwrap().status.success());
    for file in [file.clone(), beside(&file, "-wal"), beside(&file, "-shm"), backup] {
        let mode = fs::metadata(&file).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{}", file.display());
    }
}
