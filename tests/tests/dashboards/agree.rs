//! The values of a job at one moment have the same names and forms on every surface: the page, the dashboards over Prometheus,
//! `top`, `report`, and the last lines of a run.

use std::process::Command;

use evenstep_protocol::{AllocateRequest, JobId, JobSpec, JobSummary, LiveView, WorkerId, WorkerReport};
use evenstep_tests::events::Events;
use evenstep_tests::predictor::without_settings;
use evenstep_tests::prometheus::program;
use evenstep_tests::wait::until;
use evenstep_tests::{Browser, Client, Predictor, Prometheus, Store, binaries};

use crate::grafana::{Selection, View};
use crate::shipped::dashboard;
use crate::world::now_s;

const JOB: &str = "agreed";
const WORKERS: usize = 4;
const BATCH: u64 = 256;

/// The requested iterations: fewer than the means of the API are over. Fast jobs request and report only some.
fn iterations() -> impl Iterator<Item = u64> {
    (0..40).chain((40..=80).step_by(2))
}

/// A run whose reports are made up: workers of speeds 1, 2, 2 and 3 that sway, and even shares for the first iterations.
fn run(client: &Client, generation: u64) {
    let mut before = None;
    for iteration in iterations() {
        let mut request = AllocateRequest::new(JobId::new(JOB).expect("an id"), generation, iteration);
        if let Some(before) = before.replace(iteration) {
            let speed = |rank: usize| {
                [50.0, 100.0, 100.0, 150.0][rank]
                    * (1.0 + 0.03 * (((before + 3 * rank as u64) % 5) as f64 - 2.0))
            };
            let batch = |rank: usize| if before < 20 { BATCH / 4 } else { [32, 64, 64, 96][rank] };
            let compute_s = |rank: usize| batch(rank) as f64 / speed(rank);
            let longest_s = (0..WORKERS).map(compute_s).fold(0.0, f64::max);
            let report = |rank: usize| WorkerReport {
                barrier_wait_s: Some(longest_s - compute_s(rank)),
                loader_wait_s: Some(0.01),
                ..WorkerReport::new(worker(rank), before, batch(rank), compute_s(rank))
            };
            request.reports = (0..WORKERS).map(report).collect();
        }
        assert_eq!(client.allocate(&request).status, 200);
    }
}

fn worker(rank: usize) -> WorkerId {
    WorkerId::new(format!("node/{rank}")).expect("an id")
}

fn view(begun_s: f64) -> View {
    let one = |value: &str| Selection::One(value.to_owned());
    let selections =
        [("job_id", one(JOB)), ("worker", Selection::All), ("focus", one("node/0")), ("unit", one("tokens"))];
    View {
        selections: selections.into_iter().map(|(name, selection)| (name.to_owned(), selection)).collect(),
        range_s: (begun_s, now_s()),
        scrape_interval_s: 1.0,
    }
}

/// Returns the only value of a panel of the overview or of the job's dashboard.
fn scraped(prometheus: &Prometheus, board: &str, panel: &str, view: &View) -> f64 {
    let mut questions = dashboard(board).panel_queries();
    questions.retain(|question| question.part["title"] == panel);
    assert_eq!(questions.len(), 1, "{panel}");
    let text = view.promql(&questions[0].text).expect("variables");
    let series = prometheus.instant(&text, Some(view.range_s.1)).expect("PromQL");
    assert_eq!(series.len(), 1, "{panel}: {series:?}");
    series[0].points[0].1
}

/// Returns the value of a column of the overview's table of jobs.
fn column(prometheus: &Prometheus, name: &str, view: &View) -> f64 {
    let overview = dashboard("overview");
    let mut questions = overview.panel_queries();
    questions.retain(|question| question.part["title"] == "Jobs");
    let names =
        questions[0].part["transformations"][1]["options"]["renameByName"].as_object().expect("names");
    let (value, _) = names.iter().find(|(_, title)| **title == name).expect("the column");
    let place = format!("query {}", value.trim_start_matches("Value #"));
    let question = questions.iter().find(|question| question.place.ends_with(&place)).expect("the query");
    let series = prometheus
        .instant(&view.promql(&question.text).expect("variables"), Some(view.range_s.1))
        .expect("PromQL");
    assert_eq!(series.len(), 1, "{name}: {series:?}");
    series[0].points[0].1
}

fn summary(client: &Client) -> JobSummary {
    let live: LiveView =
        Events::open(&format!("{}/v1/live", client.url())).next_of(&["jobs"]).expect("an event").json();
    live.jobs.into_iter().find(|job| job.job_id.as_str() == JOB).expect("the job")
}

#[test]
fn the_figures_of_one_moment_agree() {
    let name = "dashboards::agree::the_figures_of_one_moment_agree";
    let Some(binary) = program("prometheus", name) else { return };
    let Some(predictor_binary) = binaries::find("evenstep-predictor", name) else { return };
    let store = Store::sqlite();
    let begun_s = now_s();
    let predictor = Predictor::start_over(&predictor_binary, &store.address(), &["--refit-interval-s=86400"]);
    let client = predictor.client();
    let host = predictor.url.trim_start_matches("http://");
    let prometheus = Prometheus::start(
        &binary,
        &format!(
            "global: {{scrape_interval: 1s}}\nscrape_configs: [{{job_name: predictor, static_configs: [{{targets: [\"{host}\"]}}]}}]\n"
        ),
    );
    client.put_job(JOB, &JobSpec { lease_s: 3600.0, unit: "tokens".to_owned(), ..JobSpec::new(BATCH) });
    let generation = (0..WORKERS).fold(0, |_, rank| client.join(JOB, worker(rank).as_str()).generation);
    let total = |metric: &str| -> Option<f64> {
        let series = prometheus.instant(&format!("sum({metric}{{job_id=\"{JOB}\"}})"), None).expect("PromQL");
        Some(series.first()?.points[0].1)
    };
    until("the first values are scraped", || total("evenstep_worker_forecasts_total"));
    run(&client, generation);
    // The last one is not reported.
    let last = (iterations().count() - 1) as f64;
    until("all iterations are scraped", || {
        total("evenstep_iteration_duration_seconds_count").filter(|count| *count == last)
    });

    let (line, view) = (summary(&client), view(begun_s));
    let gain = line.gain.expect("a gain").ratio;
    let (lost, error) = (line.waiting_share.expect("waits"), line.error_ratio.expect("forecasts"));
    let (step_s, throughput) = (line.step_time_s.expect("steps"), line.samples_per_s.expect("steps"));
    let agree = |what: &str, theirs: f64, ours: f64| {
        assert!((theirs / ours - 1.0).abs() < 5e-4, "{what}: {theirs} instead of {ours} in {line:?}");
    };
    assert!(gain > 1.1 && lost > 0.1 && error > 0.01, "values that differ from each other: {line:?}");
    for board in ["overview", "job"] {
        agree("gain", scraped(&prometheus, board, "Gain", &view), gain);
        agree("time lost waiting", scraped(&prometheus, board, "Time lost waiting", &view), lost);
        agree("forecast error", scraped(&prometheus, board, "Forecast error", &view), error);
        // The increase of a counter is extrapolated to the whole range.
        let saved =
            scraped(&prometheus, board, "Time saved", &view) / line.time_saved.expect("a gain").seconds;
        assert!((0.5..2.0).contains(&saved), "{saved}");
    }
    agree("gain by job", column(&prometheus, "Gain", &view), gain);
    agree("step time", column(&prometheus, "Step time", &view), step_s);
    agree("throughput", column(&prometheus, "Throughput", &view), throughput);
    assert_eq!(column(&prometheus, "Workers", &view), line.live_workers as f64);

    let (gain, lost) = (format!("{gain:.2}x"), format!("{:.1} %", 100.0 * lost));
    let error = format!("{:.1} %", 100.0 * error);
    let prints = |words: &[&str]| {
        let mut command = Command::new(&predictor_binary);
        without_settings(&mut command).args(words).arg(format!("--server={}", predictor.url));
        String::from_utf8(command.env("COLUMNS", "140").output().expect("output").stdout).expect("text")
    };
    let says = |text: &str, words: &[String]| {
        for said in words {
            assert!(text.contains(said), "{said:?} in\n{text}");
        }
    };
    let job = format!("--job={JOB}");
    says(
        &prints(&["top", "--once", &job]),
        &[
            "running".to_owned(),
            format!("gain {gain}"),
            format!("lost waiting {lost}"),
            format!("forecast error {error}"),
            format!("tokens/s {throughput:.1}"),
        ],
    );
    let interval = line.gain.map(|gain| format!("{:.2}x to {:.2}x", gain.lower, gain.upper)).expect("a gain");
    says(
        &prints(&["report", JOB]),
        &[format!("gain {gain} (90 % interval {interval})"), format!("workers waited {lost} of their time")],
    );
    let file = prints(&["report", JOB, "--html=-"]);
    says(&file, &[gain.clone(), interval.clone(), lost.clone()]);
    let Some(browser) = Browser::start(name) else { return };
    browser.open(&format!("{}/#/jobs/{JOB}", predictor.url));
    let value = |name: &str| {
        format!(
            "[...document.querySelectorAll('.summary .figures div')].find((one) => one.innerText.startsWith('{name}'))?.innerText ?? ''"
        )
    };
    for (name, said) in
        [("Gain", &gain), ("Gain", &interval), ("Time lost waiting", &lost), ("Forecast error", &error)]
    {
        browser.until(&format!("{name} {said}"), &format!("({}).includes('{said}')", value(name)));
    }
    browser.open(&format!("{}/#/", predictor.url));
    for (column, said) in [(6, &gain), (7, &lost), (8, &error)] {
        browser.until(
            &format!("column {column}"),
            &format!("document.querySelector('.job')?.children[{column}].innerText === '{said}'"),
        );
    }
}
