//! Smoothness of the page with many workers: frame times while steps arrive, measured and printed.

use std::time::Duration;

use evenstep_tests::wait::until;
use serde_json::Value;

use crate::scene::Scene;

const WORKERS: usize = 64;
/// Number of points that the page requests for one hour.
const STEPS: u64 = 620;
/// Number of steps during the measurement.
const LIVE_STEPS: usize = 100;

/// Script that measures the time between frames, and the duration of long tasks of the page.
const COUNT: &str = "window.frames_ms = []; window.tasks_ms = []; let before = performance.now();
    const next = (now) => { window.frames_ms.push(now - before); before = now; requestAnimationFrame(next); };
    requestAnimationFrame(next);
    new PerformanceObserver((list) => list.getEntries().forEach((entry) => window.tasks_ms.push(entry.duration))).observe({ entryTypes: ['longtask'] });";

#[test]
#[ignore = "measures: 64 workers, 620 iterations, then 100 live ones; frame times are printed"]
fn sixty_four_workers_stay_smooth() {
    let Some(mut scene) = Scene::with_job("frames::sixty_four_workers_stay_smooth", WORKERS, STEPS) else {
        return;
    };
    scene.open_job();
    scene.browser.until(
        "all workers are shown",
        &format!("document.querySelectorAll('.finish-rows > li').length === {WORKERS}"),
    );
    scene.browser.picture("job-64-workers");
    for place in ["0", "document.querySelector('.controls').offsetTop - 60", "document.body.scrollHeight"] {
        scene.browser.run(&format!("scrollTo(0, {place})"));
        scene.browser.run(COUNT);
        for _ in 0..LIVE_STEPS {
            scene.step();
        }
        let latest = (scene.reported() - 1).to_string();
        let figure =
            "return document.querySelector('.figures > div:last-child > dd').innerText.replaceAll(',', '')";
        until("the latest is shown", || (scene.browser.run(figure) == latest.as_str()).then_some(()));
        let frames = sorted(&scene.browser.run("return window.frames_ms"));
        let tasks = sorted(&scene.browser.run("return window.tasks_ms"));
        let at = |share: f64| frames[((frames.len() - 1) as f64 * share) as usize];
        println!(
            "scrolled to {place}: {} frames; from one to the next p50 {:.1} ms, p95 {:.1} ms, p99 {:.1} ms, longest {:.1} ms; {} tasks over 50 ms, longest {:.0} ms",
            frames.len(),
            at(0.5),
            at(0.95),
            at(0.99),
            at(1.0),
            tasks.len(),
            tasks.last().unwrap_or(&0.0),
        );
        assert!(at(1.0) < Duration::from_secs(5).as_secs_f64() * 1000.0, "frozen");
    }
}

fn sorted(values: &Value) -> Vec<f64> {
    let mut values: Vec<f64> =
        values.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect();
    values.sort_by(f64::total_cmp);
    values
}
