//! A moved store is equal to its source, or nothing was moved.

use std::time::Duration;

use evenstep_tests::postgres::Database;
use evenstep_tests::store::Store;
use serde_json::Value;

use super::{BINARY, ITERATIONS, fill, filled, prints, refuses, rows, serve, stores};
use crate::support::Folder;

const TABLES: [&str; 9] =
    ["job", "worker", "report", "allocation", "event", "model_state", "device_model", "node", "node_sample"];

/// All rows of an SQLite store, each value as SQLite prints it. JSON that PostgreSQL may reformat is compared
/// by its value.
fn all(store: &Store) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    for table in TABLES {
        let columns = store.rows(&format!("SELECT name FROM pragma_table_info('{table}')"));
        let columns: Vec<&str> = columns.iter().map(|row| row[0].as_deref().unwrap()).collect();
        let quoted: Vec<String> = columns.iter().map(|column| format!("quote({column})")).collect();
        let order: Vec<String> = (1..=columns.len()).map(|column| column.to_string()).collect();
        let query = format!("SELECT {} FROM {table} ORDER BY {}", quoted.join(", "), order.join(", "));
        for row in store.rows(&query) {
            let values = row.into_iter().zip(&columns).map(|(value, column)| {
                let value = value.unwrap();
                if !matches!(*column, "drivers" | "sample") {
                    return value;
                }
                let json = value.trim_matches('\'').replace("''", "'");
                serde_json::from_str::<Value>(&json).unwrap().to_string()
            });
            all.push(std::iter::once(table.to_owned()).chain(values).collect());
        }
    }
    all
}

fn moved(folder: &Folder, from: &Store, to: &Store) {
    let said = prints(folder, &["import", "--from", &from.address(), "--store", &to.address()]);
    assert!(said.contains(&format!("allocation: {} rows", 2 * ITERATIONS)), "{said}");
}

#[test]
fn export_and_import_round_trip_every_row() {
    let folder = Folder::for_store();
    let source = Store::sqlite();
    filled(&source);
    let before = all(&source);
    assert!(TABLES.iter().all(|table| before.iter().any(|row| row[0] == *table)), "every table has rows");
    let copy = Store::sqlite();
    moved(&folder, &source, &copy);
    assert!(all(&copy) == before);

    let name = "store::import::export_and_import_round_trip_every_row";
    let Some(database) = Database::shared(name) else { return };
    let postgres = Store::Postgres(database);
    moved(&folder, &source, &postgres);
    assert!(prints(&folder, &["check", "--store", &postgres.address()]).ends_with("no faults\n"));
    let other = Store::Postgres(Database::shared(name).unwrap());
    moved(&folder, &postgres, &other);
    let back = Store::sqlite();
    moved(&folder, &other, &back);
    let after = all(&back);
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before, after);
    }
    assert_eq!(before.len(), after.len());

    // The service continues from the moved store: allocations are the same, models are known, and events are
    // numbered further.
    let answers = source.rows("SELECT answer FROM allocation WHERE job_id = 'job-a' ORDER BY iteration");
    let mut predictor = serve(&other);
    let client = predictor.client();
    // While workers are live, departures void earlier allocations. After a run, all of its allocations are readable.
    for worker in ["node/0", "node/1", "node/2"] {
        client.leave("job-a", worker);
    }
    for (iteration, answer) in (0..).zip(&answers) {
        assert_eq!(Some(client.allocated("job-a", iteration).body), answer[0]);
    }
    client.join("job-a", "node/9");
    predictor.process.terminate();
    assert!(predictor.process.wait().success());
    assert_eq!(rows(&other, "SELECT 1 FROM event"), rows(&source, "SELECT 1 FROM event") + 3 + 1);
}

#[test]
fn import_requires_an_empty_target_and_an_unserved_source() {
    let folder = Folder::for_store();
    let name = "store::import::import_requires_an_empty_target_and_an_unserved_source";
    for (store, empty) in stores(name).into_iter().zip(stores(name)) {
        let (from, to) = (store.address(), empty.address());
        let predictor = serve(&store);
        fill(&predictor.client());
        let named = if store.file().is_some() {
            "held by another"
        } else {
            "the store is served by http://127.0.0.1:"
        };
        refuses(&folder, 1, &["import", "--from", &from, "--store", &to], &[named, "store "]);
        let elsewhere = Store::sqlite();
        filled(&elsewhere);
        refuses(&folder, 1, &["import", "--from", &elsewhere.address(), "--store", &from], &[named]);
        drop(predictor);
        if store.file().is_none() {
            // After a kill, its lease remains for a while.
            evenstep_tests::wait::until("its lease expired", || {
                (rows(&store, "SELECT 1 FROM predictor WHERE lease_until > now()") == 0).then_some(())
            });
        }
        refuses(
            &folder,
            1,
            &["import", "--from", &elsewhere.address(), "--store", &from],
            &["the target must be empty", "job (2)", "node_sample (300)"],
        );
        refuses(&folder, 2, &["import", "--from", &from, "--store", &from], &["moved into itself"]);
        moved(&folder, &store, &empty);
        refuses(&folder, 1, &["import", "--from", &from, "--store", &to], &["the target must be empty"]);
    }
    refuses(
        &folder,
        1,
        &["import", "--from", "sqlite://none.db", "--store", "sqlite://new.db"],
        &["none.db"],
    );
    assert!(!folder.0.path().join("new.db").exists() && !folder.0.path().join("none.db.lock").exists());
    refuses(&folder, 2, &["import", "--store", "sqlite://new.db"], &["--from"]);
}

/// A row that the target database rejects undoes the whole move. The error names its table.
#[test]
fn a_failed_move_moves_nothing() {
    let name = "store::import::a_failed_move_moves_nothing";
    let Some(database) = Database::shared(name) else { return };
    let folder = Folder::for_store();
    let (source, target) = (Store::sqlite(), Store::Postgres(database));
    filled(&source);
    // PostgreSQL text cannot contain NUL.
    source.rows(
        "UPDATE node_sample SET sample = json_set(sample, '$.missing.gpu', char(0)) WHERE sequence = 250",
    );
    let words = ["import", "--from", &source.address(), "--store", &target.address()];
    refuses(&folder, 1, &words, &["node_sample"]);
    for table in TABLES {
        assert_eq!(rows(&target, &format!("SELECT 1 FROM {table}")), 0, "{table}");
    }
    source.rows("UPDATE node_sample SET sample = json_remove(sample, '$.missing.gpu') WHERE sequence = 250");
    moved(&folder, &source, &target);
}

/// A move killed at any of several moments has moved nothing or everything, and can be repeated until it
/// succeeds.
#[test]
#[expect(clippy::disallowed_methods, reason = "a fixed delay: each kill is at another moment")]
fn a_killed_import_moves_nothing() {
    let folder = Folder::for_store();
    let source = Store::sqlite();
    filled(&source);
    // Enough rows that moving them takes a while.
    source.rows(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)
         INSERT INTO node_sample SELECT node, 'other', i, at_unix_ms, sample FROM n, node_sample WHERE sequence = 0 AND boot_id = 'boot'",
    );
    source.rows("UPDATE node SET samples = 99999");
    for target in stores("store::import::a_killed_import_moves_nothing") {
        let all_of_it = rows(&source, "SELECT 1 FROM node_sample");
        let mut wait = Duration::from_millis(50);
        let mut killed = 0;
        loop {
            let mut command = std::process::Command::new(BINARY);
            evenstep_tests::predictor::without_settings(&mut command);
            command.args(["store", "import", "--from", &source.address(), "--store", &target.address()]);
            command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped());
            let mut child = command.spawn().unwrap();
            std::thread::sleep(wait);
            child.kill().unwrap();
            let output = child.wait_with_output().unwrap();
            if output.status.success() {
                break;
            }
            assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
            killed += 1;
            wait *= 2;
            let there = if exists(&target) { rows(&target, "SELECT 1 FROM node_sample") } else { 0 };
            assert!(there == 0 || there == all_of_it, "{there} of {all_of_it} after {wait:?}");
            if there == all_of_it {
                // Killed between the commit and the end of the process.
                break;
            }
        }
        assert!(killed > 0, "it was never interrupted");
        assert_eq!(rows(&target, "SELECT 1 FROM node_sample"), all_of_it);
        assert!(prints(&folder, &["check", "--store", &target.address()]).ends_with("no faults\n"));
    }
}

/// Whether the tables exist.
fn exists(store: &Store) -> bool {
    if store.file().is_some() {
        store.file().is_some_and(|file| file.exists())
            && !store.rows("SELECT name FROM sqlite_schema WHERE name = 'node_sample'").is_empty()
    } else {
        store.rows("SELECT to_regclass('node_sample')::text")[0][0].is_some()
    }
}
