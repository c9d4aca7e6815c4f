//! The predictor is down temporarily: the page shows the age of its data, and reconnects automatically.

use crate::scene::{JOB, Scene};

#[test]
fn the_page_survives_a_predictor_restart() {
    let Some(mut scene) = Scene::with_job("restart::the_page_survives_a_predictor_restart", 3, 12) else {
        return;
    };
    scene.open_job();
    scene.predictor.process.kill();
    scene.gate.cut();
    scene.browser.says("#notice", "Stale since");
    scene.browser.until("the light is stale", "document.querySelector('#light').innerText === 'Stale'");
    // Known data stays visible.
    scene.browser.says("h1", JOB);
    scene.browser.picture("job-stale");
    scene.predictor.restart();
    scene.gate.open(&scene.predictor.url);
    scene
        .browser
        .until("the page is live again", "document.querySelector('#light').dataset.state === 'live'");
    scene
        .browser
        .until("the stale notice has disappeared", "document.querySelector('#notice').innerText === ''");
    scene.step();
    scene.step();
    let latest = scene.reported() - 1;
    let figure = "document.querySelector('.figures > div:last-child > dd').innerText";
    scene.browser.until("later iterations are shown", &format!("{figure} === '{latest}'"));
    // The browser itself reports requests without a response; there are no other complaints.
    let others: Vec<String> =
        scene.browser.complaints().into_iter().filter(|line| !line.contains("net::ERR_")).collect();
    assert!(others.is_empty(), "{others:#?}");
}

/// The list of jobs reconnects too.
#[test]
fn the_list_of_jobs_reconnects() {
    let Some(mut scene) = Scene::with_job("restart::the_list_of_jobs_reconnects", 2, 3) else { return };
    scene.browser.open(&scene.at(""));
    scene.browser.says(".job a", JOB);
    scene.predictor.process.kill();
    scene.gate.cut();
    scene.browser.says("#notice", "Stale since");
    scene.predictor.restart();
    scene.gate.open(&scene.predictor.url);
    scene.client().put_job("another", &evenstep_protocol::JobSpec::new(8));
    scene.browser.says("main", "another");
}
