//! The predictor goes away and comes back: the page says since when it is stale, and finds back to it by itself.

use crate::scene::{JOB, Scene};

#[test]
fn the_page_outlives_the_predictor() {
    let Some(mut scene) = Scene::with_job("restart::the_page_outlives_the_predictor", 3, 12) else { return };
    scene.open_job();
    scene.predictor.process.kill();
    scene.gate.cut();
    scene.browser.says("#notice", "Stale since");
    scene.browser.until("the light says so", "document.querySelector('#light').innerText === 'Stale'");
    // What was known stays to be seen.
    scene.browser.says("h1", JOB);
    scene.browser.picture("job-stale");
    scene.predictor.restart();
    scene.gate.open(&scene.predictor.url);
    scene
        .browser
        .until("the page is live again", "document.querySelector('#light').dataset.state === 'live'");
    scene.browser.until("nothing is said to be stale", "document.querySelector('#notice').innerText === ''");
    scene.step();
    scene.step();
    let latest = scene.reported() - 1;
    let figure = "[...document.querySelectorAll('.figures dd')].at(-1).innerText";
    scene.browser.until("what comes after is shown", &format!("{figure} === '{latest}'"));
    // The browser itself reports requests that nobody answered; there is nothing else.
    let others: Vec<String> =
        scene.browser.complaints().into_iter().filter(|line| !line.contains("net::ERR_")).collect();
    assert!(others.is_empty(), "{others:#?}");
}

/// The list of jobs as well.
#[test]
fn the_list_of_jobs_finds_back_too() {
    let Some(mut scene) = Scene::with_job("restart::the_list_of_jobs_finds_back_too", 2, 3) else { return };
    scene.browser.open(&scene.at(""));
    scene.browser.says(".job h2", JOB);
    scene.predictor.process.kill();
    scene.gate.cut();
    scene.browser.says("#notice", "Stale since");
    scene.predictor.restart();
    scene.gate.open(&scene.predictor.url);
    scene.client().put_job("another", &evenstep_protocol::JobSpec::new(8));
    scene.browser.says("main", "another");
}
