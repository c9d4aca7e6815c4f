//! The map of workers over time, the page of a worker, sorting, and what runs on a node.

use std::collections::BTreeSet;

use evenstep_tests::browser::axe;
use evenstep_tests::wait::until;
use serde_json::json;

use crate::accessible::{SCHEMES, serious_faults};
use crate::scene::{JOB, Scene, worker};

const DOWN: char = '\u{e015}';
const ENTER: char = '\u{e007}';
/// Rank of the slow worker.
const SLOW: usize = 37;

/// From the map, a worker opens; from the worker, its node; and back.
#[test]
fn the_slowest_worker_is_the_first_row() {
    let name = "map::the_slowest_worker_is_the_first_row";
    let Some(mut scene) = Scene::with_job(name, 64, 30) else { return };
    scene.slow_down(SLOW as u64);
    let slow = worker(SLOW);
    scene.measure(slow.node());
    scene.open_job();
    let browser = &scene.browser;
    let painted = "(() => { const canvas = document.querySelector('.heat canvas');
        return canvas?.width > 300 && new Set(new Uint32Array(canvas.getContext('2d').getImageData(0, 0, canvas.width, 40).data.buffer)).size > 8; })()";
    browser.until("the map is painted", painted);
    browser.picture("map");
    if let Some(axe) = axe(name) {
        let faults = serious_faults(browser, &axe, SCHEMES[0].1, "map");
        assert!(faults.is_empty(), "{faults:#?}");
    }
    browser.run("document.querySelector('.heat').focus()");
    browser.press(&[DOWN]);
    browser.says(".figure [role=status]", &format!("{slow}, latest: "));
    browser.says(".figure [role=status]", " %");
    browser.press(&[ENTER]);
    browser.says("h1", slow.as_str());
    browser.says(".lead", "of its usual speed since iteration");
    browser.until("speed and readings are drawn", "document.querySelectorAll('.u-wrap').length >= 3");
    // All charts have one time axis.
    let edges = "new Set([...document.querySelectorAll('.u-over')].map((plot) => { const { left, width } = plot.getBoundingClientRect(); return `${left} ${width}`; })).size";
    assert_eq!(browser.run(&format!("return {edges}")), 1);
    browser.picture("worker");
    browser.click(&format!("main a[href='#/nodes/{}']", slow.node()));
    browser.says("h1", slow.node());
    let back = format!("main a[href='#/jobs/{JOB}/workers/{}']", slow.as_str().replace('/', "%2F"));
    browser.until("the node names its workers", &format!("document.querySelector(\"{back}\")"));
    browser.click(&back);
    browser.says("h1", slow.as_str());
    browser.says(".crumbs", JOB);
    scene.no_complaints();
}

/// The row under the pointer stays there, and a click opens its worker.
#[test]
fn the_map_does_not_move_under_the_pointer() {
    let name = "map::the_map_does_not_move_under_the_pointer";
    let Some(mut scene) = Scene::with_job(name, 64, 30) else { return };
    scene.slow_down(SLOW as u64);
    for width in [1280, 1440] {
        scene.browser.resize((width, 900));
        scene.open_job();
        let map = "document.querySelector('.heat')";
        scene.browser.until("the map is painted", &format!("{map}?.querySelector('canvas').width > 300"));
        let place = || {
            let script = format!(
                "const {{ left, top }} = {map}.getBoundingClientRect(); return [left, top + scrollY]"
            );
            serde_json::from_value::<[f64; 2]>(scene.browser.run(&script)).unwrap()
        };
        let [left, top] = place();
        let mouse = |kind: &str| {
            let event =
                json!({ "type": kind, "x": left + 300.0, "y": top + 5.0, "button": "left", "clickCount": 1 });
            scene.browser.devtools("Input.dispatchMouseEvent", &event);
        };
        mouse("mouseMoved");
        scene.browser.says(".figure [role=status]", worker(SLOW).as_str());
        assert_eq!(place(), [left, top], "at {width} pixels");
        mouse("mousePressed");
        mouse("mouseReleased");
        scene.browser.says("h1", worker(SLOW).as_str());
    }
    scene.no_complaints();
}

/// A worker that becomes slow while the page is open is shown individually.
#[test]
fn a_worker_that_becomes_slow_is_shown() {
    /// Neither the slowest nor the fastest, with its full and with half of its speed.
    const MIDDLE: usize = 36;
    let name = "map::a_worker_that_becomes_slow_is_shown";
    let Some(mut scene) = Scene::with_job(name, 64, 30) else { return };
    scene.open_job();
    scene.browser.until("workers are proposed", "document.querySelectorAll('.chip').length === 4");
    assert!(!scene.browser.text(".chips").contains(worker(MIDDLE).as_str()));
    scene.slow_down(MIDDLE as u64);
    until("the slow worker is shown", || {
        scene.step();
        scene.browser.text(".chips").contains(worker(MIDDLE).as_str()).then_some(())
    });
    scene.no_complaints();
}

/// The page of a worker that left has its last values, after iterations without it.
#[test]
fn a_worker_that_left_keeps_its_last_values() {
    let name = "map::a_worker_that_left_keeps_its_last_values";
    let Some(mut scene) = Scene::with_job(name, 4, 20) else { return };
    let gone = worker(3);
    scene.leave(&gone);
    (0..8).for_each(|_| scene.step());
    let page = format!("#/jobs/{JOB}/workers/{}", gone.as_str().replace('/', "%2F"));
    scene.browser.open(&scene.at(&page));
    scene.browser.says("main .pill", "left");
    let said = "document.querySelector('.aside').innerText";
    scene.browser.until(
        "its last values",
        &format!("/Last seen .+ speed [0-9,.]+.s of expected [0-9,.]+.s/.test({said})"),
    );
    scene.step();
    scene.open_job();
    scene.browser.run("document.querySelector('.tools [type=checkbox]').click()");
    let row = "[...document.querySelectorAll('.departed')].map((row) => row.innerText).join()";
    scene.browser.run("document.querySelector('.tall').scrollIntoView()");
    scene.browser.until("its row has them", &format!("/left, [0-9:]+/.test({row}) && /[0-9].s/.test({row})"));
    scene.no_complaints();
}

#[test]
fn an_unknown_worker_is_said() {
    let Some(scene) = Scene::with_job("map::an_unknown_worker_is_said", 2, 3) else { return };
    scene.browser.open(&scene.at(&format!("#/jobs/{JOB}/workers/node-z%2F0")));
    scene.browser.says(".lead", "This job has no such worker.");
    scene.browser.says("main", "No agent has sent readings of node-z.");
    let waits = "document.querySelector('main .waiting')?.checkVisibility()";
    assert_eq!(scene.browser.run(&format!("return {waits} ?? false")), false);
    scene.browser.open(&scene.at("#/jobs/none/workers/node-z%2F0"));
    scene.browser.says(".trouble", "none");
    scene.browser.until("no chart waits", &format!("!{waits}"));
}

/// Small charts: one for each worker, with its own name.
#[test]
fn each_shown_worker_has_a_chart() {
    let Some(scene) = Scene::with_job("map::each_shown_worker_has_a_chart", 4, 20) else { return };
    scene.open_job();
    let charts = "[...document.querySelectorAll('.multiples > figure:not([hidden]) h3 a')].map((link) => link.innerText).sort().join()";
    let all: Vec<_> = (0..4).map(|place| worker(place).to_string()).collect();
    scene.browser.until("a chart for each worker", &format!("{charts} === '{}'", all.join(",")));
    scene.browser.until("they are drawn", "document.querySelectorAll('.multiples canvas').length === 4");
    // The words that are drawn on each canvas, when the colours change.
    scene.browser.run("window.drawn = new Map(); const { fillText } = CanvasRenderingContext2D.prototype;
        CanvasRenderingContext2D.prototype.fillText = function (words, ...more) { window.drawn.set(this.canvas, [...(window.drawn.get(this.canvas) ?? []), words]); return fillText.call(this, words, ...more); };
        document.querySelector('.multiples').scrollIntoView(); document.querySelector('#theme').click();");
    let labels = "[...window.drawn].filter(([canvas]) => canvas.isConnected && canvas.closest('.multiples')).map(([, words]) => words)";
    scene.browser.until("they are drawn again", &format!("{labels}.length === 4"));
    let found: Vec<Vec<String>> =
        serde_json::from_value(scene.browser.run(&format!("return {labels}"))).unwrap();
    let speeds = |words: &[String]| -> BTreeSet<String> {
        words.iter().filter(|word| word.ends_with("/s")).cloned().collect()
    };
    for words in &found {
        let times: BTreeSet<_> = words.iter().filter(|word| word.contains(':')).collect();
        assert!(times.len() >= 2, "{words:?}");
        let scale = speeds(words);
        assert!(scale.len() >= 2 && scale.contains("0/s"), "{words:?}");
        assert_eq!(scale, speeds(&found[0]), "all charts have one scale");
    }
    let heights =
        "Math.min(...[...document.querySelectorAll('.multiples .uplot')].map((plot) => plot.clientHeight))";
    assert!(scene.browser.run(&format!("return {heights}")).as_f64() >= Some(200.0));
    scene.browser.until("legends have the latest values", "[...document.querySelectorAll('.multiples > figure:not([hidden]) .legend')].every((legend) => legend.innerText.match(/[0-9].s/g)?.length === 2)");
    scene.no_complaints();
}

#[test]
fn tables_sort_by_a_column() {
    let Some(mut scene) = Scene::with_job("map::tables_sort_by_a_column", 4, 40) else { return };
    scene.open_job();
    let browser = &scene.browser;
    browser.run("document.querySelector('.tall').scrollIntoView()");
    let batches =
        "[...document.querySelectorAll('.tall tbody tr')].map((row) => Number(row.cells[2].innerText))";
    browser.until("the batches are shown", &format!("{batches}.every((batch) => batch > 0)"));
    let head = "document.querySelectorAll('.tall th')[2]";
    let sorted = |sign: &str| {
        browser.until(
            "the rows are sorted",
            &format!(
                "{batches}.every((batch, index, all) => !index || {sign} * (batch - all[index - 1]) >= 0)"
            ),
        );
        browser.run(&format!("return {head}.ariaSort"))
    };
    browser.run(&format!("{head}.firstElementChild.click()"));
    assert_eq!(sorted("-1"), "descending");
    browser.run(&format!("{head}.firstElementChild.click()"));
    assert_eq!(sorted("1"), "ascending");
    browser.run(&format!("{head}.firstElementChild.click()"));
    assert_eq!(browser.run(&format!("return {head}.ariaSort")), serde_json::Value::Null);
    // A job with a slow worker is the first, although the other one is newer.
    scene.slow_down(0);
    scene.client().put_job("a-newer-job", &evenstep_protocol::JobSpec::new(8));
    let browser = &scene.browser;
    browser.open(&scene.at(""));
    let first = "document.querySelector('.job a')?.innerText";
    browser.until(
        "the job with a problem is the first",
        &format!("{first} === '{JOB}' && document.querySelector('.job').innerText.includes('slow')"),
    );
    browser.run("document.querySelector('.sort').click()");
    browser.until("the jobs are sorted by name", &format!("{first} === 'a-newer-job'"));
    scene.no_complaints();
}

/// A node on which tasks wait is not shown as healthy, is the first, and names its jobs.
#[test]
fn a_node_under_pressure_is_marked() {
    let Some(scene) = Scene::with_job("map::a_node_under_pressure_is_marked", 4, 2) else { return };
    scene.measure("node-a");
    scene.measure_under("node-c", 1.0, 0);
    // Its agent is silent, so that its pressure is not known now.
    scene.measure_under("node-b", 1.0, 120);
    scene.browser.open(&scene.at("#/nodes"));
    scene.browser.says(".node .pill[data-state=hot]", "100 % of the time waiting for a processor");
    let order = "return [...document.querySelectorAll('.node h2')].map((name) => name.innerText).join()";
    assert_eq!(scene.browser.run(order), "node-c,node-a,node-b");
    let silent = scene.browser.text(".node:last-child");
    assert!(silent.contains("silent") && !silent.contains("Waiting for a processor"), "{silent}");
    scene.browser.says(".node .why", &format!("Runs {JOB} (1 worker)."));
    scene.browser.open(&scene.at("#/nodes/node-c"));
    scene.browser.says(".hot", "waiting for a processor");
    scene.browser.open(&scene.at("#/nodes/node-b"));
    scene.browser.says(".lead", "The agent is silent, last sample 2 min ago.");
    assert_eq!(scene.browser.text(".hot"), "");
    scene.no_complaints();
}

/// A job that ends has neither a throughput nor a worker that others wait for.
#[test]
fn a_finished_job_has_no_bottleneck() {
    let Some(mut scene) = Scene::with_job("map::a_finished_job_has_no_bottleneck", 2, 12) else { return };
    scene.open_job();
    (0..2).for_each(|_| scene.step());
    scene.browser.says(".figures", "bottleneck now");
    scene.browser.says(".verdict", "even shares");
    for place in 0..2 {
        let worker = worker(place).as_str().replace('/', "%2F");
        assert_eq!(scene.client().delete(&format!("/v1/jobs/{JOB}/workers/{worker}")).status, 200);
    }
    scene.browser.says(".summary .pill", "finished");
    scene.browser.says(".figures", "no iterations now");
    assert!(!scene.browser.text(".figures").contains("bottleneck"), "{}", scene.browser.text(".figures"));
    scene.browser.says(".verdict", "Finished");
}
