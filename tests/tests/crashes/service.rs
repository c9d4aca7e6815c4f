//! A predictor whose store fails for a while. Meanwhile it rejects writes and `/readyz` reports the cause.
//! Afterwards it continues without a restart, and no response and no acknowledged data are lost.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;

use evenstep_protocol::Problem;
use evenstep_tests::predictor::without_settings;
use evenstep_tests::process::Process;
use evenstep_tests::wait::until;
use evenstep_tests::{Client, Predictor, Store};

use crate::audit;
use crate::ledger::Ledger;
use crate::load::{self, Load};

/// Number of times that each fault occurs.
const FAULTS: u64 = 3;
/// Password that only the service and the database may know.
pub const PASSWORD: &str = "open-sesame";

/// A store with active clients and their ledger.
pub struct Service {
    pub predictor: Predictor,
    pub ledger: Ledger,
}

impl Service {
    pub fn start(binary: &Path, address: &str, flags: &[&str]) -> Self {
        let predictor = Predictor::start_over(binary, address, flags);
        let ledger = Ledger::default();
        let service = Self { predictor, ledger };
        load::begin(&service.client(), &service.ledger);
        service
    }

    /// Returns a client that repeats requests while the predictor is unavailable: on a busy machine its lease may expire.
    pub fn client(&self) -> Client {
        Client::patient(&self.predictor.url)
    }

    /// Injects a fault and repairs it, again and again under load.
    pub fn survives_fault(&self, fault: impl Fn(), says: &str, mend: impl Fn()) {
        let client = self.predictor.client();
        let load = Load::default();
        load.run(&self.predictor.url, &self.ledger, 1, || {
            for _ in 0..FAULTS {
                load.goes_on(100);
                let refused = load.refusals.load(Ordering::SeqCst);
                fault();
                until("writes are rejected", || {
                    (load.refusals.load(Ordering::SeqCst) > refused + 10).then_some(())
                });
                until("/readyz reports the cause", || not_ready(&client).detail.contains(says).then_some(()));
                for _ in 0..50 {
                    assert_eq!(client.get("/readyz").status, 503, "not ready while the fault lasts");
                }
                assert_eq!(client.get("/healthz").status, 200, "the process itself is healthy");
                mend();
                until("ready again", || (client.get("/readyz").status == 200).then_some(()));
                load.goes_on(100);
            }
        });
        audit::all(&self.client(), &self.ledger);
    }

    /// Stops the service and checks the store.
    pub fn end(mut self, store: &Store) {
        self.predictor.process.terminate();
        assert!(self.predictor.process.wait().success(), "{}", self.predictor.process.output());
        audit::store(store, &self.ledger);
        assert!(!self.predictor.process.output().contains(PASSWORD), "{}", self.predictor.process.output());
    }
}

/// Returns the problem of `/readyz` while it is not ready.
pub fn not_ready(client: &Client) -> Problem {
    let reply =
        until("/readyz is not ready", || Some(client.get("/readyz")).filter(|reply| reply.status != 200));
    assert!(!reply.body.contains(PASSWORD) && !reply.body.contains("/tmp"), "{reply:?}");
    reply.problem(503, "store-failed")
}

/// Asserts that the predictor exits with an error that names the unusable store.
pub fn refuses_to_start(binary: &Path, store: &str, named: &str) {
    let mut command = Command::new(binary);
    without_settings(&mut command).args(["serve", "--listen=127.0.0.1:0", "--store", store]);
    let mut process = Process::start(&mut command);
    assert!(!process.wait().success());
    let said = process.output();
    assert!(said.contains(named) && !said.contains("panicked") && !said.contains(PASSWORD), "{said}");
}
