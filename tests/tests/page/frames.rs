//! Smoothness of the page with many workers: frame times and CPU time while steps arrive, measured and printed.

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

/// Script that returns the duration of the tasks over 50 ms so far, in milliseconds.
const TASKS_SO_FAR: &str = "const done = arguments[arguments.length - 1];
    let longest = [];
    new PerformanceObserver((list) => { longest = list.getEntries().map((entry) => entry.duration); done(longest); }).observe({ type: 'longtask', buffered: true });
    setTimeout(() => done(longest), 1000);";

#[test]
#[ignore = "measures: 64 workers, 620 iterations, then 100 live ones; frame times are printed"]
fn sixty_four_workers_stay_smooth() {
    let Some(mut scene) = Scene::with_job("frames::sixty_four_workers_stay_smooth", WORKERS, STEPS) else {
        return;
    };
    scene.open_job();
    scene.browser.until("the map is painted", "document.querySelector('.heat canvas')?.width > 300");
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

/// Workers and iterations of the widest job.
const MOST_WORKERS: usize = 1024;
const MOST_STEPS: u64 = 40;
/// Number of live steps during the measurement, one each second.
const SECONDS: u32 = 20;

#[test]
#[ignore = "measures: 1,024 workers, 40 iterations, then one live iteration each second; the page's CPU time is printed"]
#[expect(clippy::disallowed_methods, reason = "one live iteration each second")]
fn a_thousand_workers_stay_light() {
    let name = "frames::a_thousand_workers_stay_light";
    let Some(mut scene) = Scene::with_job(name, MOST_WORKERS, MOST_STEPS) else { return };
    scene.open_job();
    scene.step();
    scene.step();
    scene.browser.until("the map is painted", "document.querySelector('.heat canvas')?.width > 300");
    let opening = sorted(&scene.browser.run_until_called(TASKS_SO_FAR));
    scene.browser.devtools("Performance.enable", &serde_json::json!({ "timeDomain": "threadTicks" }));
    let busy_s = |scene: &Scene| {
        let metrics = scene.browser.devtools("Performance.getMetrics", &serde_json::json!({}));
        let of =
            metrics["metrics"].as_array().unwrap().iter().find(|metric| metric["name"] == "TaskDuration");
        of.unwrap()["value"].as_f64().unwrap()
    };
    scene.browser.run(COUNT);
    let (begun, before_s) = (std::time::Instant::now(), busy_s(&scene));
    for second in 1..=SECONDS {
        scene.step();
        std::thread::sleep(Duration::from_secs(second.into()).saturating_sub(begun.elapsed()));
    }
    let took_s = begun.elapsed().as_secs_f64();
    let (share, tasks) =
        ((busy_s(&scene) - before_s) / took_s, sorted(&scene.browser.run("return window.tasks_ms")));
    let loaded =
        "const all = performance.getEntriesByType('resource').filter((entry) => entry.name.includes('/ui/'));
        return all.reduce((sum, entry) => sum + entry.encodedBodySize, 0)";
    println!(
        "{MOST_WORKERS} workers: {SECONDS} iterations in {took_s:.0} s; CPU time of the page's thread {:.1} % of a core; {} tasks over 50 ms, longest {:.0} ms, and {} while it opened, longest {:.0} ms; files of the page {} bytes; page {} pixels high",
        100.0 * share,
        tasks.len(),
        tasks.last().unwrap_or(&0.0),
        opening.len(),
        opening.last().unwrap_or(&0.0),
        scene.browser.run(loaded),
        scene.browser.run("return document.documentElement.scrollHeight"),
    );
}

fn sorted(values: &Value) -> Vec<f64> {
    let mut values: Vec<f64> =
        values.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect();
    values.sort_by(f64::total_cmp);
    values
}
