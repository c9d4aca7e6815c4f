//! Backups that are made and restored under load.

use std::env;
use std::path::Path;
use std::process::{Command, Stdio};

use evenstep_tests::predictor::without_settings;
use evenstep_tests::wait::until;
use evenstep_tests::{Client, Database, Predictor, Store, binaries};

use crate::audit;
use crate::ledger::JOBS;
use crate::load::Load;
use crate::service::Service;

/// Overrides the number of backups, [`BACKUPS`].
const BACKUPS_VARIABLE: &str = "EVENSTEP_TESTS_BACKUPS";
const BACKUPS: u64 = 2;

#[test]
fn a_backup_of_sqlite_has_all_acknowledged_data() {
    let name = "backups::a_backup_of_sqlite_has_all_acknowledged_data";
    let Some(binary) = binaries::find("evenstep-predictor", name) else { return };
    let store = Store::sqlite();
    restores(&binary, &store, &[], || {
        let restored = Store::sqlite();
        let file = restored.file().expect("a file");
        let arguments = ["store", "vacuum", "--store", &store.address(), "--into"];
        succeeds(without_settings(&mut Command::new(&binary)).args(arguments).arg(file));
        restored
    });
}

#[test]
fn a_dump_of_postgres_has_all_acknowledged_data() {
    let name = "backups::a_dump_of_postgres_has_all_acknowledged_data";
    let Some(binary) = binaries::find("evenstep-predictor", name) else { return };
    let Some(database) = Database::shared(name) else { return };
    let store = Store::Postgres(database);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/postgres");
    let programs = succeeds(Command::new(script).arg("find"));
    let program = |program: &str| Command::new(Path::new(programs.trim()).join(program));
    let folder = tempfile::tempdir().unwrap();
    let dump = folder.path().join("backup.dump");
    restores(&binary, &store, &["--lease-s=1"], || {
        let restored = Database::shared(name).expect("the server that the store is on");
        succeeds(program("pg_dump").arg("--format=custom").arg("--file").arg(&dump).arg(store.address()));
        succeeds(program("pg_restore").args(["--no-owner", "--dbname"]).arg(restored.url()).arg(&dump));
        Store::Postgres(restored)
    });
}

/// Makes backups under load and serves them. Each has everything that was acknowledged before it began.
fn restores(binary: &Path, store: &Store, flags: &[&str], backup: impl Fn() -> Store) {
    let backups = env::var(BACKUPS_VARIABLE).map_or(BACKUPS, |number| number.parse().expect("a number"));
    let service = Service::start(binary, &store.address(), flags);
    let load = Load::default();
    let mut answers = 0;
    load.run(&service.predictor.url, &service.ledger, 5, || {
        for _ in 0..backups {
            load.goes_on(100);
            let expected = service.ledger.copy();
            let restored = backup();
            expected.may_include(&service.ledger);
            let check = ["store", "check", "--store", &restored.address()];
            succeeds(without_settings(&mut Command::new(binary)).args(check));
            let predictor = Predictor::start_over(binary, &restored.address(), flags);
            // A dump contains the lease of the running predictor.
            until("the lease in the backup has expired", || {
                let owned = predictor.client().get(&format!("/v1/jobs/{}", JOBS[0]));
                (owned.status == 200).then_some(())
            });
            audit::all(&Client::patient(&predictor.url), &expected);
            answers += expected.told().answers.len();
        }
    });
    eprintln!("{backups} backups: {answers} answers, all restored");
    audit::all(&service.client(), &service.ledger);
    service.end(store);
}

/// Runs a command and returns its output.
fn succeeds(command: &mut Command) -> String {
    let ran = command.stdin(Stdio::null()).output().unwrap();
    assert!(ran.status.success(), "{command:?}: {ran:?}");
    String::from_utf8(ran.stdout).unwrap()
}
