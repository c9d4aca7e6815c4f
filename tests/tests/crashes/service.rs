//! A predictor whose store fails for a while and comes back: writes are refused meanwhile, `/readyz` says what is wrong, all
//! goes on by itself, and nothing that was answered or acknowledged is lost.

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

/// How often each fault comes and goes.
const FAULTS: u64 = 3;
/// Nobody but the service and the database is to know it.
pub const PASSWORD: &str = "open-sesame";

/// A store with clients at work, and what they were told.
pub struct Service {
    pub predictor: Predictor,
    pub ledger: Ledger,
}

impl Service {
    pub fn start(binary: &Path, address: &str, flags: &[&str]) -> Self {
        let predictor = Predictor::start_over(binary, address, flags);
        let ledger = Ledger::default();
        load::begin(&predictor.client(), &ledger);
        Self { predictor, ledger }
    }

    /// Brings a fault and mends it, again and again under load.
    pub fn outlives(&self, fault: impl Fn(), says: &str, mend: impl Fn()) {
        let client = self.predictor.client();
        let load = Load::default();
        load.run(&self.predictor.url, &self.ledger, 1, || {
            for _ in 0..FAULTS {
                load.goes_on(100);
                let refused = load.refusals.load(Ordering::SeqCst);
                fault();
                until("writes are refused", || {
                    (load.refusals.load(Ordering::SeqCst) > refused + 10).then_some(())
                });
                until("/readyz says why", || not_ready(&client).detail.contains(says).then_some(()));
                assert_eq!(client.get("/healthz").status, 200, "the process itself is well");
                mend();
                until("ready again", || (client.get("/readyz").status == 200).then_some(()));
                load.goes_on(100);
            }
        });
        audit::all(&client, &self.ledger);
    }

    /// Stops, and looks into the store.
    pub fn end(mut self, store: &Store) {
        self.predictor.process.terminate();
        assert!(self.predictor.process.wait().success(), "{}", self.predictor.process.said());
        audit::store(store, &self.ledger);
        assert!(!self.predictor.process.said().contains(PASSWORD), "{}", self.predictor.process.said());
    }
}

/// What `/readyz` says while it is not.
pub fn not_ready(client: &Client) -> Problem {
    let reply = until("/readyz says no", || Some(client.get("/readyz")).filter(|reply| reply.status != 200));
    assert!(!reply.body.contains(PASSWORD) && !reply.body.contains("/tmp"), "{reply:?}");
    reply.problem(503, "store-failed")
}

/// Must end by itself and say what it could not use.
pub fn refuses_to_start(binary: &Path, store: &str, named: &str) {
    let mut command = Command::new(binary);
    without_settings(&mut command).args(["serve", "--listen=127.0.0.1:0", "--store", store]);
    let mut process = Process::start(&mut command);
    assert!(!process.wait().success());
    let said = process.said();
    assert!(said.contains(named) && !said.contains("panicked") && !said.contains(PASSWORD), "{said}");
}
