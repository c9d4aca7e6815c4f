//! Disks that are full or read-only.

use std::fs;

use evenstep_tests::store::sqlite_file;
use evenstep_tests::{Predictor, Store, binaries};

use crate::disk::Disk;
use crate::service::{Service, refuses_to_start};

#[test]
fn a_full_disk_under_sqlite() {
    let name = "disks::a_full_disk_under_sqlite";
    let Some(binary) = binaries::find("evenstep-predictor", name) else { return };
    let Some(disk) = Disk::mount(name, 48) else { return };
    let store = Store::In(disk.path().to_owned());
    let service = Service::start(&binary, &store.address(), &[]);
    service.survives_fault(|| disk.fill(), "the disk of the store is full", || disk.free());
    service.end(&store);
}

#[test]
fn a_read_only_folder_under_sqlite() {
    let name = "disks::a_read_only_folder_under_sqlite";
    let Some(binary) = binaries::find("evenstep-predictor", name) else { return };
    let Some(disk) = Disk::mount(name, 48) else { return };
    let store = Store::In(disk.path().to_owned());
    disk.lock();
    // The store does not exist, and cannot be created.
    refuses_to_start(&binary, &store.address(), &disk.path().display().to_string());
    disk.unlock();
    let service = Service::start(&binary, &store.address(), &[]);
    service.end(&store);
    let before = fs::read(sqlite_file(disk.path())).unwrap();
    disk.lock();
    refuses_to_start(&binary, &store.address(), &disk.path().display().to_string());
    disk.unlock();
    assert!(fs::read(sqlite_file(disk.path())).unwrap() == before, "the file is unchanged");
    let predictor = Predictor::start_over(&binary, &store.address(), &[]);
    assert_eq!(predictor.client().get("/readyz").status, 200);
}
