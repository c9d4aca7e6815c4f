//! Tables as CSV: all rows, readable by other programs, and never an incomplete file.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use evenstep_tests::predictor::without_settings;
use evenstep_tests::store::Store;

use super::{BINARY, ITERATIONS, SAMPLES, fill, filled, prints, refuses, rows, serve, stores};
use crate::support::Folder;

/// The lines of an exported table.
fn table(folder: &Path, name: &str) -> (Vec<String>, Vec<csv::StringRecord>) {
    let mut reader = csv::Reader::from_path(folder.join(format!("{name}.csv"))).unwrap();
    let header = reader.headers().unwrap().iter().map(str::to_owned).collect();
    (header, reader.records().map(Result::unwrap).collect())
}

#[test]
fn every_table_is_a_readable_csv_file() {
    let folder = Folder::for_store();
    for (number, store) in stores("store::export::every_table_is_a_readable_csv_file").into_iter().enumerate()
    {
        let predictor = serve(&store);
        fill(&predictor.client());
        let to = folder.0.path().join(format!("out-{number}"));
        let said = prints(&folder, &["export", "--store", &store.address(), "--to", to.to_str().unwrap()]);
        assert!(said.contains(&format!("node_sample.csv: {SAMPLES} rows")), "{said}");
        let (header, samples) = table(&to, "node_sample");
        assert_eq!(header, ["node", "boot_id", "sequence", "at_unix_ms", "at", "sample"]);
        let first = &samples[0];
        assert_eq!((&first[3], &first[4]), ("1763758403000", "2025-11-21T20:53:23.000Z"));
        let sample: evenstep_protocol::NodeSample = serde_json::from_str(&first[5]).unwrap();
        assert_eq!(sample.missing["gpu"], "a \"driver\"\tis\\missing\n");
        let (header, answers) = table(&to, "allocation");
        assert_eq!(answers.len() as u64, 2 * ITERATIONS);
        let answer = header.iter().position(|name| name == "answer").unwrap();
        let stored = store.rows("SELECT answer FROM allocation ORDER BY job_id, iteration, generation");
        let exported: Vec<&str> = answers.iter().map(|row| &row[answer]).collect();
        assert_eq!(
            exported,
            stored.iter().map(|row| row[0].as_deref().unwrap()).collect::<Vec<_>>(),
            "byte for byte"
        );
        // The tables of predictors and migrations are not part of the history.
        assert!(!to.join("predictor.csv").exists() && !to.join("_sqlx_migrations.csv").exists());
        let files: Vec<_> = std::fs::read_dir(&to).unwrap().map(|file| file.unwrap().path()).collect();
        assert_eq!(files.len(), said.lines().count(), "no incomplete file is left");
        for path in files.iter().chain([&to]) {
            let mode = std::fs::metadata(path).unwrap().permissions().mode();
            assert_eq!(mode & 0o077, 0, "only its owner can read {}", path.display());
        }
    }
}

#[test]
fn one_job_is_exported_and_its_reports_are_a_trace_for_backtests() {
    let folder = Folder::for_store();
    let store = Store::sqlite();
    filled(&store);
    let said = prints(&folder, &["export", "--store", &store.address(), "--to", "out", "--job", "job-a"]);
    assert!(!said.contains("node_sample") && said.contains("job.csv: 1 row\n"), "{said}");
    let (_, reports) = table(&folder.0.path().join("out"), "report");
    assert_eq!(reports.len() as u64, 3 * (ITERATIONS - 1));
    assert!(reports.iter().all(|row| &row[0] == "job-a"));
    let output = without_settings(&mut Command::new(BINARY))
        .current_dir(folder.0.path())
        .args("backtest --trace out/report.csv --models last,ma_2".split(' '))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("node/2"), "{output:?}");
}

#[test]
fn existing_files_are_replaced_only_with_force() {
    let folder = Folder::for_store();
    let store = Store::sqlite();
    filled(&store);
    let words = ["export", "--store", &store.address(), "--to", "out"];
    prints(&folder, &words);
    let before = folder.read("out/job.csv");
    store.rows("DELETE FROM job WHERE job_id = 'job-b'");
    refuses(&folder, 1, &words, &["out/", ".csv: file exists", "--force"]);
    assert_eq!(folder.read("out/job.csv"), before);
    prints(&folder, &[&words as &[&str], &["--force"]].concat());
    assert_eq!((folder.read("out/job.csv").lines().count(), rows(&store, "SELECT 1 FROM job")), (2, 1));
    refuses(
        &folder,
        1,
        &["export", "--store", &store.address(), "--to", "no/such/folder"],
        &["no/such/folder"],
    );
    folder.write("a-file", "");
    refuses(&folder, 1, &["export", "--store", &store.address(), "--to", "a-file"], &["a-file"]);
    refuses(&folder, 2, &["export", "--store", &store.address()], &["--to"]);
    refuses(&folder, 2, &["export", "--store", &store.address(), "--to", "x", "--job", "a b"], &["a b"]);
    refuses(
        &folder,
        1,
        &["export", "--store", &store.address(), "--to", "x", "--job", "job-b"],
        &["no job job-b"],
    );
    assert!(!folder.0.path().join("x").exists(), "nothing is written");
}
