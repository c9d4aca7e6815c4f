//! Two predictors on one PostgreSQL are restarted one after the other during a training run, as in a rolling
//! update.

use evenstep_tests::postgres::Database;
use evenstep_tests::training::Training;
use evenstep_tests::{Gate, Predictor, binaries};

/// Number of restarts of each predictor.
const ROUNDS: usize = 3;

/// Waits until five further iterations have followed their own allocation. Another iteration may begin before its allocation
/// arrives.
fn follows(training: &Training) {
    let followed = || {
        let lines = training.iterations_so_far("evenstep");
        lines.iter().filter(|line| line["decision"].is_object()).count()
    };
    let begun = followed();
    training.until("training follows allocations", || followed() >= begun + 5);
}

#[test]
fn a_rolling_restart_loses_no_allocation() {
    let name = "rolling::a_rolling_restart_loses_no_allocation";
    let Some(trainer) = binaries::find("evenstep-trainer", name) else { return };
    let Some(binary) = binaries::find("evenstep-predictor", name) else { return };
    let Some(database) = Database::shared(name) else { return };
    let folder = tempfile::tempdir().unwrap();
    // The address of each predictor stays the same across restarts.
    let gates = [Gate::shut(), Gate::shut()];
    let mut predictors = gates.each_ref().map(|gate| {
        let url = format!("--url={}", gate.url());
        // A busy machine delays renewals and responses; neither may end a lease or a request here.
        let predictor = Predictor::start_over(&binary, &database.url(), &[&url, "--lease-s=60"]);
        gate.open(&predictor.url);
        predictor
    });
    let mut training = Training::start(
        &trainer,
        folder.path(),
        &[
            "--workers=2",
            "--pace=1,3",
            "--pace-unit-ms=4",
            "--job=job",
            "--worker-id=w",
            "--global-batch=50",
            "--steps=1000000",
            &format!("--server={},{}", gates[0].url(), gates[1].url()),
        ],
    );
    follows(&training);
    for _ in 0..ROUNDS {
        for (predictor, gate) in predictors.iter_mut().zip(&gates) {
            predictor.process.terminate();
            assert!(predictor.process.wait().success(), "{}", predictor.process.output());
            follows(&training);
            predictor.restart();
            gate.open(&predictor.url);
            follows(&training);
        }
    }
    training.process.terminate();
    training.process.wait();
    let said = training.process.output();
    assert!(!said.contains("stays in force"), "a request had no response:\n{said}");
}
