//! The page beside a real training run.

use evenstep_tests::binaries;
use evenstep_tests::training::Training;

use crate::scene::Scene;

#[test]
fn a_real_training_run_is_followed() {
    let name = "training::a_real_training_run_is_followed";
    let Some(trainer) = binaries::find("evenstep-trainer", name) else { return };
    let Some(scene) = Scene::empty(name) else { return };
    let browser = &scene.browser;
    browser.open(&scene.at(""));
    browser.says("main", "No job yet");
    let folder = tempfile::tempdir().unwrap();
    let mut training = Training::start(
        &trainer,
        folder.path(),
        &[
            "--workers=3",
            "--pace=1,2,3",
            "--pace-unit-ms=4",
            "--ask=boundary",
            "--job=real",
            "--global-batch=48",
            "--steps=1000000",
            &format!("--server={}", scene.gate.url()),
        ],
    );
    // It appears by itself, as soon as it is there.
    browser.says("main", "real");
    browser.click(".job h2 a");
    let figure = "Number([...document.querySelectorAll('.figures dd')].at(-1).innerText.replaceAll(',', ''))";
    browser.until("it goes on", &format!("{figure} > 30"));
    let seen = browser.run(&format!("return {figure}")).as_u64().unwrap();
    browser.until("and on", &format!("{figure} > {}", seen + 30));
    browser.until("three bars", "document.querySelectorAll('.finish-rows > li').length === 3");
    browser.says(".log", "Shares changed");
    browser.picture("training");
    training.process.terminate();
    training.process.wait();
    // Those who leave are said to have left.
    browser.says(".log", "Left");
    scene.no_complaints();
}
