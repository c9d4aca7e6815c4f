//! Cut and slow links between clients and predictor, and a predictor that is stopped for a while.

use std::env;
use std::time::Duration;

use evenstep_tests::{Gate, Store, binaries};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::audit;
use crate::load::Load;
use crate::service::Service;

/// Overrides the number of cuts, slow periods and stops, [`TIMES`].
const TIMES_VARIABLE: &str = "EVENSTEP_TESTS_LINKS";
const TIMES: u64 = 6;
/// Overrides the duration of a stop, [`STOP_S`].
const STOP_VARIABLE: &str = "EVENSTEP_TESTS_STOP_S";
const STOP_S: u64 = 1;
/// Time that 1 KiB takes on a slow link, in milliseconds.
const SLOW_MS: u64 = 20;

fn number(variable: &str, default: u64) -> u64 {
    env::var(variable).map_or(default, |number| number.parse().expect("a number"))
}

#[test]
fn cut_and_slow_links_lose_nothing() {
    let name = "links::cut_and_slow_links_lose_nothing";
    let Some(binary) = binaries::find("evenstep-predictor", name) else { return };
    let store = Store::fresh();
    let service = Service::start(&binary, &store.address(), &[]);
    // Clients use the other link when one is cut.
    let gates = [Gate::to(&service.predictor.url), Gate::to(&service.predictor.url)];
    let mut random = ChaCha8Rng::seed_from_u64(10);
    let load = Load::default();
    let urls = gates.each_ref().map(Gate::url);
    load.run_on(&urls.each_ref().map(String::as_str), &service.ledger, 6, || {
        for gate in gates.iter().cycle().take(number(TIMES_VARIABLE, TIMES) as usize) {
            load.goes_on(random.random_range(1..60));
            gate.cut();
            load.goes_on(20);
            gate.open(&service.predictor.url);
            gates.iter().for_each(|gate| gate.slow(Duration::from_millis(SLOW_MS)));
            load.goes_on(10);
            gates.iter().for_each(|gate| gate.slow(Duration::ZERO));
        }
    });
    audit::all(&service.client(), &service.ledger);
    service.end(&store);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the duration of the stop is the fault")]
fn a_stopped_predictor_loses_nothing() {
    let name = "links::a_stopped_predictor_loses_nothing";
    let Some(binary) = binaries::find("evenstep-predictor", name) else { return };
    let store = Store::fresh();
    let service = Service::start(&binary, &store.address(), &[]);
    let load = Load::default();
    let stop = Duration::from_secs(number(STOP_VARIABLE, STOP_S));
    // With two addresses, clients continue after a timeout.
    let url = service.predictor.url.as_str();
    load.run_on(&[url, url], &service.ledger, 7, || {
        load.goes_on(50);
        service.predictor.process.stop();
        std::thread::sleep(stop);
        service.predictor.process.go_on();
        load.goes_on(50);
    });
    audit::all(&service.client(), &service.ledger);
    service.end(&store);
}
