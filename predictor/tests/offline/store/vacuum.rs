//! `store vacuum`: releases unused space, and writes self-contained backups.

use evenstep_tests::store::{Store, sqlite_rows};

use super::{SAMPLES, fill, filled, prints, refuses, rows, serve, stores};
use crate::support::Folder;

#[test]
fn a_backup_runs_while_the_predictor_serves() {
    let folder = Folder::for_store();
    let store = Store::sqlite();
    let predictor = serve(&store);
    fill(&predictor.client());
    let address = store.address();
    let said = prints(&folder, &["vacuum", "--store", &address, "--into", "backup.db"]);
    assert!(said.contains("backup.db: "), "{said}");
    assert!(prints(&folder, &["check", "--store", "sqlite://backup.db"]).ends_with("no faults\n"));
    let samples =
        sqlite_rows(&folder.0.path().join("backup.db"), "SELECT CAST(count(*) AS TEXT) FROM node_sample");
    assert_eq!(samples[0][0].as_deref(), Some(SAMPLES.to_string().as_str()));
    // The name of a backup must be new.
    let before = std::fs::read(folder.0.path().join("backup.db")).unwrap();
    refuses(
        &folder,
        1,
        &["vacuum", "--store", &address, "--into", "backup.db"],
        &["backup.db", "give the backup a new name"],
    );
    refuses(
        &folder,
        1,
        &["vacuum", "--store", &address, "--into", "no/such/folder.db"],
        &["no/such/folder.db"],
    );
    assert!(std::fs::read(folder.0.path().join("backup.db")).unwrap() == before);
    let left: Vec<_> =
        std::fs::read_dir(folder.0.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["backup.db"], "no incomplete file is left");
    // The file is served by a predictor.
    refuses(&folder, 1, &["vacuum", "--store", &address], &["held by another"]);
    assert_eq!(predictor.client().get("/readyz").status, 200);
}

#[test]
fn space_is_released() {
    let folder = Folder::for_store();
    for store in stores("store::vacuum::space_is_released") {
        filled(&store);
        store.rows("DELETE FROM node_sample");
        let size = |store: &Store| store.file().map(|file| std::fs::metadata(file).unwrap().len());
        let before = size(&store);
        let said = prints(&folder, &["vacuum", "--store", &store.address()]);
        assert!(said.contains(" before, ") && said.contains(" after\n"), "{said}");
        assert!(size(&store) < before || before.is_none(), "{said}");
        assert_eq!(rows(&store, "SELECT 1 FROM job"), 2);
        assert!(prints(&folder, &["check", "--store", &store.address()]).ends_with("no faults\n"));
        if store.file().is_none() {
            refuses(&folder, 1, &["vacuum", "--store", &store.address(), "--into", "b.db"], &["pg_dump"]);
        }
    }
}
