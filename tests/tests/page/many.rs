//! Many workers, many jobs, and the past: what matters is visible without scrolling far.

use evenstep_protocol::JobSpec;
use serde_json::{Value, json};

use crate::scene::{JOB, Scene, worker};

/// The window of the tests in pixels.
const WINDOW_HEIGHT: f64 = 1000.0;

#[test]
fn many_workers_take_two_screens() {
    let Some(mut scene) = Scene::with_job("many::many_workers_take_two_screens", 64, 12) else { return };
    scene.open_job();
    // The step events are live only while iterations are reported.
    scene.step();
    scene.step();
    let browser = &scene.browser;
    // Bars are drawn when they are in view.
    browser.run("document.querySelector('.finish').scrollIntoView()");
    browser.until("bands of workers", "document.querySelectorAll('.finish-rows > .band').length >= 4");
    let rows = browser.run("return document.querySelectorAll('.finish-rows > li').length").as_u64().unwrap();
    assert!(rows <= 16, "{rows} bars");
    let named = "return [...document.querySelectorAll('.finish-rows > .band')].reduce((sum, row) => sum + parseInt(row.innerText), 0)
        + document.querySelectorAll('.finish-rows > li:not(.band)').length";
    assert_eq!(browser.run(named), 64, "every worker is in one bar");
    let height = browser.run("return document.documentElement.scrollHeight").as_f64().unwrap();
    assert!(height <= 2.0 * WINDOW_HEIGHT, "{height} pixels");
    // The table lists a few workers; the others are found by name.
    let listed = "document.querySelectorAll('.tall tbody tr').length";
    assert_eq!(browser.run(&format!("return {listed}")), 6);
    let wanted = worker(37);
    browser.fill(".tools [type=search]", wanted.as_str());
    browser.until("one worker is found", &format!("{listed} === 1"));
    assert!(browser.text(".tall tbody").contains(wanted.as_str()));
    scene.no_complaints();
}

#[test]
fn a_view_has_an_address() {
    let Some(mut scene) = Scene::with_job("many::a_view_has_an_address", 4, 30) else { return };
    scene.open_job();
    let pressed = |scene: &Scene| scene.browser.text(".ranges [aria-pressed=true]");
    assert_eq!(pressed(&scene), "15 min");
    scene.browser.run("document.querySelectorAll('.ranges button')[1].click()");
    assert_eq!(pressed(&scene), "5 min");
    let address = scene.browser.run("return location.hash");
    assert!(address.as_str().unwrap().ends_with("?last=5m"), "{address}");
    // Dragging over a chart selects a part of it, which stays while new iterations arrive.
    scene.browser.until("a chart is drawn", "document.querySelector('.u-over')");
    let edge = |side: &str| {
        let script = format!("return document.querySelector('.u-over').getBoundingClientRect().{side}");
        scene.browser.run(&script).as_f64().unwrap()
    };
    let (left, width, top) = (edge("left"), edge("width"), edge("top"));
    let mouse = |kind: &str, share: f64, buttons: u64| {
        let (x, y) = (left + width * share, top + 60.0);
        let button = if kind == "mouseMoved" { "none" } else { "left" };
        let event =
            json!({ "type": kind, "x": x, "y": y, "button": button, "buttons": buttons, "clickCount": 1 });
        scene.browser.devtools("Input.dispatchMouseEvent", &event);
    };
    mouse("mouseMoved", 0.2, 0);
    mouse("mousePressed", 0.2, 1);
    mouse("mouseMoved", 0.4, 1);
    mouse("mouseMoved", 0.6, 1);
    mouse("mouseReleased", 0.6, 0);
    scene
        .browser
        .until("a range is selected", "location.hash.includes('from=') && location.hash.includes('until=')");
    let selected = scene.browser.run("return location.hash");
    assert_eq!(pressed(&scene), "");
    scene.step();
    scene.browser.open(&scene.at(selected.as_str().unwrap()));
    scene.browser.until("the page is live", "document.querySelector('#light')?.dataset.state === 'live'");
    scene.browser.says("h1", JOB);
    assert_eq!(scene.browser.run("return location.hash"), selected);
    let point = "const done = arguments[arguments.length - 1]; setTimeout(() => done(document.querySelector('.ranges .soft').innerText))";
    let said = scene.browser.run_until_called(point);
    assert!(said.as_str().unwrap().contains(" to "), "{said}");
    scene.no_complaints();
}

/// The list is sorted and filtered, and a restart of the predictor changes nothing about jobs that ended before.
#[test]
fn jobs_that_ended_are_listed_as_such_after_a_restart() {
    let name = "many::jobs_that_ended_are_listed_as_such_after_a_restart";
    let Some(mut scene) = Scene::with_job(name, 2, 40) else { return };
    for other in 0..30 {
        scene.client().put_job(&format!("other-{other:02}"), &JobSpec::new(8));
    }
    for place in 0..2 {
        let worker = worker(place).as_str().replace('/', "%2F");
        assert_eq!(scene.client().delete(&format!("/v1/jobs/{JOB}/workers/{worker}")).status, 200);
    }
    scene.predictor.process.kill();
    scene.predictor.restart();
    scene.gate.open(&scene.predictor.url);
    let browser = &scene.browser;
    browser.open(&scene.at("#/?state=finished"));
    browser.says(".job", JOB);
    browser.says(".job .pill", "finished");
    // Statistics are read from the history.
    browser.until(
        "the gain is known",
        "/^[0-9.]+x$/.test(document.querySelector('.job').children[6].innerText)",
    );
    assert_eq!(browser.run("return document.querySelectorAll('tr.job').length"), 1);
    browser.run("document.querySelector('.ranges button').click()");
    browser.until("the first of all jobs", "document.querySelectorAll('tr.job').length === 20");
    browser.fill(".controls [type=search]", "other-07");
    browser.until("one job is found", "document.querySelectorAll('tr.job').length === 1");
    browser.says(".job", "other-07");
    browser.says(".job .pill", "starting");
    browser.open(&scene.at(&format!("#/jobs/{JOB}")));
    browser.says(".lead", "All 2 workers left");
    browser.until("the charts show the past", "document.querySelectorAll('canvas').length >= 2");
    scene.no_complaints();
}

/// Bins keep every value between their minimum and maximum, and pauses are gaps.
#[test]
fn bins_of_a_chart() {
    let Some(scene) = Scene::empty("many::bins_of_a_chart") else { return };
    scene.browser.open(&scene.at(""));
    let script = "const done = arguments[arguments.length - 1];
        import(new URL('ui/job/bins.js', document.baseURI)).then(({ binsOf }) => {
            const at = Array.from({ length: 1000 }, (_, index) => 100 + index + (index >= 500 ? 400 : 0));
            const values = at.map((_, index) => (index % 7 === 0 ? null : Math.sin(index) * index));
            const bins = binsOf(at, 100);
            const { low, middle, high } = bins.of(values);
            const inside = values.every((value, index) => value == null || bins.ranges.some(([first, last], bin) =>
                first <= index && index <= last && low[bin] <= value && value <= high[bin] && low[bin] <= middle[bin] && middle[bin] <= high[bin]));
            const few = binsOf(at.slice(0, 50), 100);
            // Slow iterations after fast ones have no gaps between them.
            const slow = binsOf([...Array(50).keys(), 80, 110, 140], 100).at.length;
            done([bins.ranges.length, inside, low.filter((value) => value == null).length, bins.isBinned, few.isBinned, few.at.length, slow]);
        }, (error) => done(String(error)));";
    let found = scene.browser.run_until_called(script);
    let [count, inside, gaps, binned, few_binned, few, slow] =
        <[Value; 7]>::try_from(found.as_array().unwrap_or_else(|| panic!("{found}")).clone()).unwrap();
    assert!(count.as_u64().unwrap() <= 102, "{found}");
    assert_eq!((inside, gaps, binned), (true.into(), 1.into(), true.into()), "{found}");
    assert_eq!((few_binned, few, slow), (false.into(), 50.into(), 53.into()), "{found}");
}

#[test]
fn batches_and_speeds_have_the_unit_of_the_job() {
    let name = "many::batches_and_speeds_have_the_unit_of_the_job";
    let Some(scene) = Scene::empty(name) else { return };
    let client = scene.client();
    client.put_job("packed", &JobSpec { unit: "tokens".into(), ..JobSpec::new(4096) });
    client.post("/v1/jobs/packed/workers", &evenstep_protocol::JoinRequest::new(worker(0)));
    scene.browser.open(&scene.at("#/jobs/packed"));
    scene.browser.says(".lead", "4,096 tokens");
    scene.browser.says(".figures", "tokens per second");
    scene.browser.says(".summary .pill", "starting");
    scene.no_complaints();
}
