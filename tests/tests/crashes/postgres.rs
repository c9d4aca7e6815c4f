//! Faults of PostgreSQL: it crashes, stops, has no space left, is read-only, or cuts connections.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};

use evenstep_tests::wait::until;
use evenstep_tests::{Database, Postgres, Predictor, Store, binaries};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::audit;
use crate::disk::Disk;
use crate::ledger::JOBS;
use crate::load::Load;
use crate::service::{PASSWORD, Service, not_ready, refuses_to_start};

/// Number of times that connections are cut.
const CUTS: u64 = 30;

/// Returns the address of a database with a password, which the server does not require.
fn with_password(database: &Database) -> String {
    database.url().replace("evenstep@", &format!("evenstep:{PASSWORD}@"))
}

#[test]
fn a_server_that_is_killed_under_load_and_restarts() {
    let name = "postgres::a_server_that_is_killed_under_load_and_restarts";
    let Some(binary) = binaries::find("evenstep-predictor", name) else { return };
    let Some(server) = Postgres::start(name) else { return };
    let store = Store::Postgres(Database::on(server.url()));
    let Store::Postgres(database) = &store else { unreachable!() };
    let service = Service::start(&binary, &with_password(database), &[]);
    service.survives_fault(|| server.crash(), "the database cannot be reached", || server.restart());
    service.end(&store);
}

#[test]
fn a_server_that_is_stopped_under_load_and_continues() {
    let name = "postgres::a_server_that_is_stopped_under_load_and_continues";
    let Some(binary) = binaries::find("evenstep-predictor", name) else { return };
    let Some(server) = Postgres::start(name) else { return };
    let store = Store::Postgres(Database::on(server.url()));
    let service = Service::start(&binary, &store.address(), &[]);
    service.survives_fault(|| server.stop(), "the database cannot be reached", || server.restart());
    service.end(&store);
}

#[test]
fn a_server_that_is_unreachable_at_startup() {
    let name = "postgres::a_server_that_is_unreachable_at_startup";
    let Some(binary) = binaries::find("evenstep-predictor", name) else { return };
    let Some(server) = Postgres::start(name) else { return };
    let database = Database::on(server.url());
    server.stop();
    refuses_to_start(&binary, &with_password(&database), "refused");
    server.restart();
    let predictor = Predictor::start_over(&binary, &database.url(), &[]);
    assert_eq!(predictor.client().get("/readyz").status, 200);
}

#[test]
fn a_full_disk_under_postgres() {
    let name = "postgres::a_full_disk_under_postgres";
    let Some(binary) = binaries::find("evenstep-predictor", name) else { return };
    let Some(server) = Postgres::start(name) else { return };
    let Some(disk) = Disk::mount(name, 48) else { return };
    // Only the tables are on the small disk. A server that cannot write its log ends, as in the tests above.
    let folder = disk.path().join("tables");
    fs::create_dir(&folder).unwrap();
    let owner = fs::metadata(server.data()).unwrap();
    chown(&folder, Some(owner.uid()), None).unwrap();
    let administrators = Database::on(server.url());
    administrators.administer(&format!("CREATE TABLESPACE small LOCATION '{}'", folder.display()));
    let store = Store::Postgres(Database::with(server.url(), "TABLESPACE small"));
    let service = Service::start(&binary, &store.address(), &[]);
    service.survives_fault(|| disk.fill(), "the disk of the store is full", || disk.free());
    service.end(&store);
}

#[test]
fn a_database_that_rejects_writes_temporarily() {
    let name = "postgres::a_database_that_rejects_writes_temporarily";
    let Some(binary) = binaries::find("evenstep-predictor", name) else { return };
    let Some(database) = Database::shared(name) else { return };
    // As if a standby replaced the server and has not been promoted yet.
    let read_only = |is: bool| {
        let database_name = database.name();
        database
            .administer(&format!("ALTER DATABASE {database_name} SET default_transaction_read_only = {is}"));
        database.cut();
    };
    let service = Service::start(&binary, &with_password(&database), &[]);
    service.survives_fault(|| read_only(true), "the store is read-only", || read_only(false));
    service.end(&Store::Postgres(database));
}

#[test]
fn a_lease_that_expires_during_the_check_hides_no_fault() {
    let name = "postgres::a_lease_that_expires_during_the_check_hides_no_fault";
    let Some(binary) = binaries::find("evenstep-predictor", name) else { return };
    let Some(database) = Database::shared(name) else { return };
    let service = Service::start(&binary, &database.url(), &["--lease-s=1"]);
    let client = service.predictor.client();
    let read_only = |is: bool| {
        let database_name = database.name();
        database
            .administer(&format!("ALTER DATABASE {database_name} SET default_transaction_read_only = {is}"));
        database.cut();
    };
    read_only(true);
    let path = format!("/v1/jobs/{}", JOBS[0]);
    until("the lease has expired", || client.get(&path).body.contains("lease has expired").then_some(()));
    // At first it may report cut connections, which is also true.
    until("/readyz reports the cause", || not_ready(&client).detail.contains("read-only").then_some(()));
    read_only(false);
    until("ready again", || (client.get("/readyz").status == 200).then_some(()));
    assert_eq!(service.client().get(&path).status, 200, "it owns its jobs again");
}

#[test]
fn connections_that_are_cut_in_mid_transaction() {
    let name = "postgres::connections_that_are_cut_in_mid_transaction";
    let Some(binary) = binaries::find("evenstep-predictor", name) else { return };
    let Some(database) = Database::shared(name) else { return };
    let service = Service::start(&binary, &database.url(), &[]);
    let mut random = ChaCha8Rng::seed_from_u64(8);
    let load = Load::default();
    let connections = load.run(&service.predictor.url, &service.ledger, 2, || {
        let cut = |_| {
            load.goes_on(random.random_range(1..20));
            database.cut()
        };
        (0..CUTS).map(cut).sum::<u64>()
    });
    assert!(connections >= CUTS, "{connections} connections were cut in {CUTS} attempts");
    audit::all(&service.client(), &service.ledger);
    service.end(&Store::Postgres(database));
}
