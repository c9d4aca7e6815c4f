//! The page during a real training run.

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
            "--job=real",
            "--global-batch=48",
            "--steps=1000000",
            &format!("--server={}", scene.gate.url()),
        ],
    );
    // The job appears without a reload.
    browser.says("main", "real");
    browser.click(".job a");
    let figure =
        "Number(document.querySelector('.figures > div:last-child > dd').innerText.replaceAll(',', ''))";
    browser.until("iterations advance", &format!("{figure} > 30"));
    let seen = browser.run(&format!("return {figure}")).as_u64().unwrap();
    browser.until("iterations advance further", &format!("{figure} > {}", seen + 30));
    browser.until("three bars", "document.querySelectorAll('.finish-rows > li').length === 3");
    browser.says(".log", "Shares changed");
    browser.picture("training");
    training.process.terminate();
    training.process.wait();
    // Workers that leave are reported as left.
    browser.says(".log", "Left");
    scene.no_complaints();
}
