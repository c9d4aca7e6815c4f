//! The list of jobs, a running job, and the messages of empty pages.

use crate::scene::{JOB, Scene, TOKEN, worker};

const WORKERS: usize = 4;
const STEPS: u64 = 40;

#[test]
fn an_empty_service_shows_first_steps() {
    let Some(scene) = Scene::empty("opens::an_empty_service_shows_first_steps") else { return };
    scene.browser.open(&scene.at(""));
    scene.browser.says("main", "No job yet");
    // The suggested command contains the address of this service.
    scene.browser.says(
        ".copied:nth-of-type(2) pre, .copied ~ .copied pre",
        &format!("EVENSTEP_SERVER={} torchrun", scene.gate.url()),
    );
    scene.browser.says("main", "evenstep demo");
    scene.browser.click(".copied button");
    scene.browser.says(".copied button", "Copied");
    scene.browser.picture("empty");
    scene.browser.open(&scene.at("#/nodes"));
    scene.browser.says("main", "No node yet");
    scene.browser.open(&scene.at("#/reports"));
    scene.browser.says("main", "no page (*.html) in it yet");
    scene.browser.open(&scene.at("#/nowhere"));
    scene.browser.says("main", "No such page");
    scene.no_complaints();
}

#[test]
fn the_api_page_shows_and_runs_requests() {
    let Some(scene) = Scene::empty("opens::the_api_page_shows_and_runs_requests") else { return };
    scene.browser.open(&scene.at("docs/"));
    scene.browser.says("h1", "evenstep predictor");
    let paths = scene.client().get("/openapi.json").json::<serde_json::Value>();
    let operations: usize =
        paths["paths"].as_object().unwrap().values().map(|methods| methods.as_object().unwrap().len()).sum();
    scene.browser.until(
        "every operation is listed",
        &format!("document.querySelectorAll('.operation').length === {operations}"),
    );
    // Every operation can be opened, and lists the fields of requests and responses.
    scene.browser.run("document.querySelectorAll('.operation').forEach((card) => { card.open = true; })");
    scene.browser.says("#post-allocate", "iteration");
    scene.browser.click("#get-v1-jobs button");
    scene.browser.says("#get-v1-jobs pre", "200");
    scene.browser.picture("api");
    scene.no_complaints();
}

#[test]
fn a_job_opens_and_follows_its_steps() {
    let name = "opens::a_job_opens_and_follows_its_steps";
    let Some(mut scene) = Scene::with_job(name, WORKERS, STEPS) else { return };
    scene.browser.open(&scene.at(""));
    scene.browser.says(".job a", JOB);
    scene.browser.says(".job .pill", "running");
    scene.browser.picture("jobs-light");
    scene.browser.click(".job a");
    scene.browser.says("h1", JOB);
    scene.open_job();
    // One bar per worker, with the values of the service.
    scene.browser.until(
        "a bar for each worker",
        &format!("document.querySelectorAll('.finish-rows > li').length === {WORKERS}"),
    );
    let said = scene.browser.text(".tall tbody");
    for place in 0..WORKERS {
        assert!(said.contains(worker(place).as_str()), "{said}");
    }
    scene.browser.says(".log", "Joined");
    let latest = scene.reported() - 1;
    scene.browser.until(
        "the latest reported iteration",
        &format!("document.querySelector('.figures > div:last-child > dd').innerText === '{latest}'"),
    );
    // Live updates: new reports are shown without a reload.
    for _ in 0..3 {
        scene.step();
        let latest = scene.reported() - 1;
        let figure = "document.querySelector('.figures > div:last-child > dd').innerText";
        scene.browser.until(&format!("iteration {latest} is shown"), &format!("{figure} === '{latest}'"));
    }
    // The values of the table belong to one iteration. The table is drawn when it is in view.
    scene.browser.run("document.querySelector('.tall').scrollIntoView()");
    let batches =
        "[...document.querySelectorAll('.tall tbody tr')].map((row) => Number(row.cells[2].innerText))";
    let whole = 64 * WORKERS;
    scene.browser.until(
        "the batches belong to one iteration",
        &format!("{batches}.reduce((a, b) => a + b) === {whole}"),
    );
    scene.browser.run("scrollTo(0, 0)");
    scene.browser.picture("job-light");
    scene.no_complaints();
}

/// Live iterations and the history contain the loss. Jobs that do not report it have no chart.
#[test]
fn losses_are_drawn_where_they_are_reported() {
    let name = "opens::losses_are_drawn_where_they_are_reported";
    let Some(mut scene) = Scene::with_job(name, WORKERS, 20) else { return };
    scene.open_job();
    let plot = "document.querySelector('[aria-label^=\"Loss.\"]')";
    let is_visible = format!("{plot}?.checkVisibility()");
    assert_eq!(scene.browser.run(&format!("return {plot}")), serde_json::Value::Null);
    scene.loss = Some(2.625);
    (0..2).for_each(|_| scene.step());
    scene.browser.until("a live loss is shown", &is_visible);
    scene.browser.run("location.reload()");
    scene.browser.until("the loss of the history is shown", &is_visible);
    // The newest iteration is not reported yet, so the cursor goes back from the end.
    let keys = ["End", "ArrowLeft"]
        .map(|key| format!("plot.dispatchEvent(new KeyboardEvent('keydown', {{ key: '{key}' }}));"));
    let shown = format!(
        "((plot) => {{ plot.scrollIntoView({{ block: 'center' }}); {} return plot.closest('.figure').innerText; }})({plot})",
        keys.concat()
    );
    scene.browser.until("the value is shown", &format!("{shown}.includes('2.63')"));
    scene.no_complaints();
}

/// GPUs that lower their clocks or cannot be read show on the list of nodes and on the page of the node.
#[test]
fn a_gpu_in_trouble_is_shown() {
    let Some(scene) = Scene::empty("opens::a_gpu_in_trouble_is_shown") else { return };
    scene.measure("node-a");
    for place in ["#/nodes", "#/nodes/node-a"] {
        scene.browser.open(&scene.at(place));
        scene.browser.says(".hot", "GPU 0: sw thermal slowdown, 88 °C");
        scene.browser.says(".hot", "GPU 1: lost: failed, or removed");
    }
    scene.browser.picture("node");
    scene.no_complaints();
}

/// The glossary has the words above the charts of a job.
#[test]
fn the_glossary_explains_the_figures() {
    let name = "opens::the_glossary_explains_the_figures";
    let Some(scene) = Scene::with_job(name, 2, 3) else { return };
    scene.open_job();
    let words = |css: &str| {
        let script = format!("return [...document.querySelectorAll('{css}')].map((term) => term.innerText)");
        serde_json::from_value::<Vec<String>>(scene.browser.run(&script)).unwrap()
    };
    let figures = words(".figures dt");
    scene.browser.click("nav a[href='#/glossary']");
    scene.browser.says(".glossary", "Other terms");
    let terms = words(".glossary dt");
    for figure in figures {
        let singular = figure.trim_end_matches('s');
        assert!(terms.iter().any(|term| *term == figure || *term == singular), "{figure}: {terms:?}");
    }
    scene.browser.picture("glossary");
    scene.no_complaints();
}

#[test]
fn the_deletion_of_the_open_job_is_shown() {
    let name = "opens::the_deletion_of_the_open_job_is_shown";
    let Some(scene) = Scene::with_job(name, 2, 3) else { return };
    scene.open_job();
    let operator = scene.client().with_token(TOKEN);
    assert_eq!(operator.delete(&format!("/v1/jobs/{JOB}")).status, 204);
    scene.browser.says("main", "Unknown job");
    scene.browser.click("main a");
    scene.browser.says("main", "No job yet");
}

/// Names are always shown as text, whatever they contain.
#[test]
fn a_name_is_always_escaped() {
    let Some(scene) = Scene::with_job("opens::a_name_is_always_escaped", 2, 2) else { return };
    let device = "<img src=x onerror=\"document.title='broken'\"><b>bold</b>";
    let mut request = evenstep_protocol::JoinRequest::new(worker(7));
    request.device = Some(device.into());
    scene.client().post(&format!("/v1/jobs/{JOB}/workers"), &request);
    scene.open_job();
    scene.browser.says(".tall tbody", device);
    scene.no_complaints();
}
