//! `store check` finds and names each fault in a store, and reports no fault in a healthy one.

use std::collections::BTreeSet;
use std::io::{Seek, SeekFrom, Write};

use evenstep_protocol::{AllocateRequest, AllocateResponse, JobId};
use evenstep_tests::store::Store;
use serde_json::Value;

use super::{BINARY, ITERATIONS, SAMPLES, fill, filled, prints, refuses, rows, run, serve, stores};
use crate::support::Folder;

fn checked(folder: &Folder, store: &Store) -> Value {
    serde_json::from_str(&prints(folder, &["check", "--json", "--store", &store.address()])).unwrap()
}

/// The row of a table in the result of a check.
fn table<'a>(checked: &'a Value, table: &str) -> &'a Value {
    let tables = checked["tables"].as_array().unwrap();
    tables.iter().find(|found| found["table"] == table).unwrap_or_else(|| panic!("no {table}: {checked}"))
}

#[test]
fn a_store_is_checked_while_the_predictor_serves_it() {
    let folder = Folder::for_store();
    for store in stores("store::check::a_store_is_checked_while_the_predictor_serves_it") {
        let predictor = serve(&store);
        fill(&predictor.client());
        let found = checked(&folder, &store);
        assert_eq!(found["faults"], 0, "{found:#}");
        assert_eq!(found["schema"]["found"], found["schema"]["known"]);
        assert!(found["size_bytes"].as_u64().unwrap() > 10_000);
        assert_eq!(table(&found, "allocation")["rows"], 2 * ITERATIONS);
        assert_eq!(table(&found, "node_sample")["rows"], SAMPLES);
        assert_eq!(table(&found, "job")["rows"], 2);
        assert!(
            !found.to_string().contains("\"predictor\""),
            "the table of predictors is not history: {found}"
        );
        // A run that starts again has iterations below their positions.
        let generation = predictor.client().join("job-a", "node/0").generation;
        let again = AllocateRequest::new(JobId::new("job-a").unwrap(), generation, 2);
        assert_eq!(predictor.client().allocate(&again).json::<AllocateResponse>().attempt, 2);
        let text = prints(&folder, &["check", "--store", &store.address()]);
        assert!(text.ends_with("no faults\n") && text.contains("node_sample"), "{text}");
        assert_eq!(predictor.client().get("/readyz").status, 200);
    }
}

/// Breaks rows of a healthy store one after the other. Each fault is found under its name, and no other fault
/// is reported.
#[test]
fn faults_are_named_by_table_key_and_rule() {
    let folder = Folder::for_store();
    for store in stores("store::check::faults_are_named_by_table_key_and_rule") {
        filled(&store);
        let answer = store.rows("SELECT answer FROM allocation WHERE job_id = 'job-a' AND iteration = 3");
        let answer: Value = serde_json::from_str(answer[0][0].as_deref().unwrap()).unwrap();
        let quoted = |change: fn(&mut Value)| {
            let mut answer = answer.clone();
            change(&mut answer);
            format!("'{}'", answer.to_string().replace('\'', "''"))
        };
        let put = |answer: String| {
            format!("UPDATE allocation SET answer = {answer} WHERE job_id = 'job-a' AND iteration = 3")
        };
        let third = "job_id=job-a iteration=3 generation=3";
        let last = quoted(|answer| {
            let shares = answer["allocations"].as_array_mut().unwrap();
            let batch = shares[2]["local_batch"].as_u64().unwrap();
            shares[2]["local_batch"] = (batch + 1).into();
            answer["tail"] = Value::Null;
        });
        let first = quoted(|answer| answer["allocations"][1]["offset"] = 1.into());
        let broken = [
            (put(last), "allocation", third, "its shares and tail sum to"),
            (put(first), "allocation", third, "begins at 1, but the shares before it end at"),
            (put(quoted(|answer| answer["iteration"] = 4.into())), "allocation", third, "iteration 4 in generation 3"),
            (put("'{}'".into()), "allocation", third, "cannot be read: missing field `job_id`"),
            ("UPDATE job SET spec = '{\"global_batch\": \"x\"}' WHERE job_id = 'job-b'".into(), "job", "job_id=job-b", "its spec cannot be read"),
            ("UPDATE job SET learning_rate = '{' WHERE job_id = 'job-b'".into(), "job", "job_id=job-b", "its learning_rate"),
            ("UPDATE job SET departed_generation = 999 WHERE job_id = 'job-b'".into(), "job", "job_id=job-b", "generation 999"),
            ("UPDATE job SET generation = 2, departed_generation = 0 WHERE job_id = 'job-a'".into(), "allocation", third, "exceeds the job's generation"),
            (
                "UPDATE worker SET request = '{\"worker\": \"other\"}' WHERE job_id = 'job-a' AND worker = 'node/0'".into(),
                "worker",
                "job_id=job-a worker=node/0",
                "its request names worker other",
            ),
            (
                "UPDATE worker SET operator_override = '7' WHERE job_id = 'job-a' AND worker = 'node/1'".into(),
                "worker",
                "job_id=job-a worker=node/1",
                "its operator_override",
            ),
            ("UPDATE worker SET seat = 7 WHERE job_id = 'job-b'".into(), "worker", "job_id=job-b seat=7", "seat"),
            (
                "UPDATE report SET drivers = '{\"a\": \"b\"}' WHERE job_id = 'job-b' AND iteration = 2 AND worker = 'node/1'".into(),
                "report",
                "job_id=job-b iteration=2 worker=node/1",
                "its drivers cannot be read",
            ),
            (
                "UPDATE report SET compute_time_s = -1.5 WHERE job_id = 'job-b' AND iteration = 2 AND worker = 'node/1'".into(),
                "report",
                "job_id=job-b iteration=2 worker=node/1",
                "compute_time_s -1.5",
            ),
            (
                "UPDATE node_sample SET at_unix_ms = 5 WHERE sequence = 7".into(),
                "node_sample",
                "node=node-a boot_id=boot sequence=7",
                "stored under 5",
            ),
            ("UPDATE node SET samples = 1".into(), "node", "node=node-a", "more stored samples"),
            ("DELETE FROM node".into(), "node_sample", "node=node-a", "missing from table node"),
        ];
        for (sql, table, key, rule) in &broken {
            let name = table_of(sql);
            let columns = store.rows(&columns_of(&store, name));
            let columns: Vec<&str> = columns.iter().map(|row| row[0].as_deref().unwrap()).collect();
            store.rows(&format!("CREATE TABLE kept AS SELECT * FROM {name}"));
            store.rows(sql);
            let output = run(&folder, &["check", "--store", &store.address()]);
            assert_eq!(output.status.code(), Some(1), "{sql}: {output:?}");
            let said = String::from_utf8(output.stdout).unwrap();
            let line = format!("fault: {table} {key}: ");
            let told = said.lines().find(|told| told.starts_with(&line) && told.contains(rule));
            assert!(told.is_some(), "{sql}: {line}..{rule}: {said}");
            // Restore the previous rows.
            let set: Vec<String> = columns.iter().map(|column| format!("{column} = kept.{column}")).collect();
            let key = if name == "node" { "kept.node = node.node" } else { key_of(name) };
            if sql.starts_with("DELETE") {
                store.rows(&format!("INSERT INTO {name} ({0}) SELECT {0} FROM kept", columns.join(", ")));
            } else {
                store.rows(&format!("UPDATE {name} SET {} FROM kept WHERE {key}", set.join(", ")));
            }
            store.rows("DROP TABLE kept");
        }
        assert_eq!(checked(&folder, &store)["faults"], 0);

        // Models of another format version are learned again. Models that cannot be read are a fault.
        store.rows("UPDATE model_state SET format = format + 1 WHERE job_id = 'job-a' AND part = 0");
        let found = checked(&folder, &store);
        assert_eq!(found["notes"].as_object().unwrap().values().collect::<Vec<_>>(), [1]);
        let bytes = if store.file().is_some() { "x'ff'" } else { "'\\xff'" };
        store.rows(&format!("UPDATE model_state SET state = {bytes} WHERE job_id = 'job-b' AND part = 1"));
        let said = refuses(&folder, 1, &["check", "--store", &store.address()], &["1 fault"]);
        assert!(said.contains("fault: model_state job_id=job-b"), "{said}");
        assert!(said.contains("part=1: its models cannot be read"), "{said}");

        // Of many faults, only the number is printed.
        store.rows("UPDATE report SET compute_time_s = -1");
        let reports = rows(&store, "SELECT 1 FROM report");
        let said = refuses(
            &folder,
            1,
            &["check", "--store", &store.address()],
            &[&format!("{} faults", reports + 1)],
        );
        assert_eq!(said.matches("fault: report").count(), 20, "{said}");
        assert!(said.contains(&format!("and {} faults not listed", reports - 20)), "{said}");
    }
}

fn table_of(sql: &str) -> &str {
    sql.strip_prefix("UPDATE ")
        .or_else(|| sql.strip_prefix("DELETE FROM "))
        .unwrap()
        .split(' ')
        .next()
        .unwrap()
}

fn columns_of(store: &Store, table: &str) -> String {
    if store.file().is_some() {
        return format!("SELECT name FROM pragma_table_info('{table}')");
    }
    format!(
        "SELECT column_name::text FROM information_schema.columns WHERE table_name = '{table}' AND is_generated = 'NEVER'"
    )
}

fn key_of(table: &str) -> &'static str {
    match table {
        "job" => "kept.job_id = job.job_id",
        "worker" => "kept.job_id = worker.job_id AND kept.worker = worker.worker",
        "report" => {
            "kept.job_id = report.job_id AND kept.iteration = report.iteration AND kept.worker = report.worker"
        }
        "allocation" => {
            "kept.job_id = allocation.job_id AND kept.iteration = allocation.iteration
             AND kept.generation = allocation.generation"
        }
        "node_sample" => "kept.boot_id = node_sample.boot_id AND kept.sequence = node_sample.sequence",
        other => panic!("{other}"),
    }
}

#[test]
fn a_damaged_file_is_detected_and_its_valid_part_is_read() {
    let folder = Folder::for_store();
    let store = Store::sqlite();
    filled(&store);
    let mut file = std::fs::File::options().write(true).open(store.file().unwrap()).unwrap();
    let pages = file.metadata().unwrap().len() / 4096;
    // The first pages hold the schema: without them the file is not a store.
    for page in pages / 2..pages {
        file.seek(SeekFrom::Start(page * 4096)).unwrap();
        file.write_all(&[0x5a; 64]).unwrap();
    }
    let said = refuses(&folder, 1, &["check", "--store", &store.address()], &["fault"]);
    assert!(said.contains("fault: ") && said.contains("cannot be read"), "{said}");

    let orphans = Store::sqlite();
    filled(&orphans);
    orphans.rows("PRAGMA foreign_keys = off; DELETE FROM job WHERE job_id = 'job-b'");
    let said = refuses(&folder, 1, &["check", "--store", &orphans.address()], &["fault"]);
    assert!(said.contains("fault: report ") && said.contains("refer to a job that does not exist"), "{said}");
}

#[test]
fn a_missing_store_is_named_and_not_created() {
    let folder = Folder::for_store();
    folder.write("text.db", &"this is no database ".repeat(100));
    folder.write("empty.db", "");
    for command in
        [&["check"] as &[&str], &["export", "--to", "out"], &["vacuum"], &["vacuum", "--into", "b.db"]]
    {
        let refused = |address: &str, named: &str| {
            let words: Vec<&str> = command.iter().copied().chain(["--store", address]).collect();
            assert!(refuses(&folder, 1, &words, &[named]).is_empty());
        };
        refused("sqlite://none.db", "sqlite://none.db");
        refused("sqlite://text.db", "sqlite://text.db");
        refused("sqlite://empty.db", "no store of evenstep-predictor");
        refused("redis://host", "redis://host");
        refused("postgres://nobody@127.0.0.1:1/none", "127.0.0.1");
    }
    let left: Vec<_> =
        std::fs::read_dir(folder.0.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn a_later_schema_is_refused_by_every_command() {
    let folder = Folder::for_store();
    for store in stores("store::check::a_later_schema_is_refused_by_every_command") {
        filled(&store);
        let found = checked(&folder, &store)["schema"]["found"].clone();
        let checksum = if store.file().is_some() { "x'00'" } else { "'\\x00'" };
        let when = if store.file().is_some() { "'2030-01-01'" } else { "now()" };
        store.rows(&format!(
            "INSERT INTO _sqlx_migrations VALUES (9999, 'contract later', {when}, true, {checksum}, 0)"
        ));
        let address = store.address();
        let newer = format!("schema 9999 is newer than {found}");
        let jobs = rows(&store, "SELECT 1 FROM job");
        for words in [
            &["check", "--store", &address] as &[&str],
            &["export", "--to", "out", "--store", &address],
            &["vacuum", "--store", &address],
            &["import", "--from", &address, "--store", "sqlite://new.db"],
            &["import", "--from", "sqlite://old.db", "--store", &address],
        ] {
            // The source must be a current store.
            let old = Store::In(folder.0.path().to_owned());
            if words.contains(&"sqlite://old.db") {
                filled(&old);
                std::fs::rename(old.file().unwrap(), folder.0.path().join("old.db")).unwrap();
            }
            refuses(&folder, 1, words, &[&newer]);
        }
        std::fs::remove_file(folder.0.path().join("old.db")).unwrap();
        let output = std::process::Command::new(BINARY)
            .args(["serve", "--listen=127.0.0.1:0", "--store", &address])
            .output();
        let said = String::from_utf8(output.unwrap().stderr).unwrap();
        assert!(said.contains(&newer), "{said}");
        assert_eq!(rows(&store, "SELECT 1 FROM job"), jobs);
        assert!(!folder.0.path().join("new.db").exists());
    }
}

/// A table that a migration adds must be checked, exported and moved as well. Other tables in the database
/// must not.
#[test]
fn exactly_our_tables_are_checked() {
    let folder = Folder::for_store();
    for store in stores("store::check::exactly_our_tables_are_checked") {
        drop(serve(&store));
        let names = if store.file().is_some() {
            "SELECT name FROM sqlite_schema WHERE type = 'table'"
        } else {
            "SELECT table_name::text FROM information_schema.tables WHERE table_schema = 'public' AND table_type = 'BASE TABLE'"
        };
        let there: BTreeSet<String> =
            store.rows(names).into_iter().filter_map(|mut row| row.remove(0)).collect();
        store.rows("CREATE TABLE foreign_one (a numeric)");
        let found = checked(&folder, &store);
        let looked_at: BTreeSet<&str> =
            found["tables"].as_array().unwrap().iter().filter_map(|table| table["table"].as_str()).collect();
        let missed: Vec<&String> = there.iter().filter(|name| !looked_at.contains(name.as_str())).collect();
        assert!(!looked_at.contains("foreign_one"));
        assert!(
            missed.iter().all(|name| ["_sqlx_migrations", "predictor"].contains(&name.as_str())),
            "{missed:?}"
        );
    }
}
