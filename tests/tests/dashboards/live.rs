//! Runs every shipped expression on a real Prometheus that scrapes a real run. No expression may be empty,
//! and values must match the service's.

use std::collections::{BTreeMap, BTreeSet};

use evenstep_protocol::SpeedsView;
use evenstep_tests::prometheus::Series;
use evenstep_tests::wait::{PATIENCE, until};
use evenstep_tests::{Client, Prometheus};

use crate::grafana::View;
use crate::rules::{Checked, promtool};
use crate::shipped::{Dashboard, DashboardQuery, dashboards, string};
use crate::world::{JOB, NODE, WIDE, World};

/// Queries without a result on a machine without certain hardware: beginning of the place, and the reason.
const UNAVAILABLE: [(&str, &str); 9] = [
    ("node.json, panel \"GPU state\"", "no GPU"),
    ("node.json, panel \"GPU busy\"", "no GPU"),
    ("node.json, panel \"GPU memory in use\"", "no GPU"),
    ("node.json, panel \"GPU clocks\"", "no GPU"),
    ("node.json, panel \"GPU power\"", "no GPU"),
    ("node.json, panel \"GPU temperature\"", "no GPU"),
    ("node.json, panel \"GPU throttled\"", "no GPU"),
    ("node.json, annotation \"Throttling\"", "no GPU"),
    ("node.json, panel \"Readings missing\"", "all readings are available"),
];
/// Query that has a result only after workers have left.
const AFTER_DEPARTURES: &str = "job.json, annotation \"Left\"";

/// Parts of queries that have results only for the job with many workers: quantiles, and slow workers.
const OF_WIDE: [&str; 2] = ["> 16)", "_straggler_"];

fn series(prometheus: &Prometheus, view: &View, question: &DashboardQuery) -> Result<Vec<Series>, String> {
    let asked = view.promql(&question.text)?;
    if question.instant {
        prometheus.instant(&asked, Some(view.range_s.1))
    } else {
        prometheus.range(&asked, view.range_s, view.step_s())
    }
}

/// Returns whether the query has a numeric result, and only numbers; else the fault.
fn answered(prometheus: &Prometheus, view: &View, question: &DashboardQuery) -> Result<(), String> {
    let series = series(prometheus, view, question)?;
    let mut values = series.iter().flat_map(|series| &series.points).map(|(_, value)| value).peekable();
    let asked = &question.text;
    if values.peek().is_none() {
        return Err(format!("nothing: {asked}"));
    }
    if values.all(|value| value.is_finite()) { Ok(()) } else { Err(format!("NaN or infinity: {asked}")) }
}

/// Returns the views in which a query must have a result.
fn views(question: &DashboardQuery, world: &World) -> Vec<View> {
    if OF_WIDE.iter().any(|part| question.text.contains(part)) {
        return vec![world.wide_view()];
    }
    [true, false].map(|all_workers| world.view(all_workers)).into()
}

/// With many workers, a chart has quantiles and a few workers, never a line for each.
fn few_lines(world: &World) {
    let mut charts: BTreeMap<String, usize> = BTreeMap::new();
    for question in questions().iter().filter(|question| {
        ["timeseries", "state-timeline"].contains(&string(&question.part["type"]))
            && question.place.starts_with("job.json")
    }) {
        let lines = series(&world.prometheus, &world.wide_view(), question).expect("a result").len();
        *charts.entry(string(&question.part["title"]).to_owned()).or_default() += lines;
    }
    let crowded: Vec<_> = charts.iter().filter(|(_, lines)| **lines > 16).collect();
    assert!(crowded.is_empty() && charts.len() > 10, "{crowded:?} of {charts:?}");
    assert!(charts.values().any(|lines| *lines >= 8), "quantiles and extreme workers: {charts:?}");
}

/// Returns the values that a variable offers.
fn variable_values(
    prometheus: &Prometheus,
    view: &View,
    question: &DashboardQuery,
) -> Result<Vec<String>, String> {
    let asked = view.promql(&question.text)?;
    if let Some(expr) = asked.strip_prefix("query_result(").and_then(|rest| rest.strip_suffix(')')) {
        let series = prometheus.instant(expr, Some(view.range_s.1))?;
        return Ok(series.iter().map(|series| series.points[0].1.to_string()).collect());
    }
    let inside = asked.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
    let (selector, label) =
        inside.and_then(|inside| inside.rsplit_once(',')).ok_or("not label_values(selector, label)")?;
    prometheus.label_values(selector, label.trim())
}

fn questions() -> Vec<DashboardQuery> {
    let queries =
        |dashboard: &Dashboard| [dashboard.panel_queries(), dashboard.annotation_queries()].concat();
    dashboards().iter().flat_map(queries).collect()
}

fn is_here(question: &DashboardQuery) -> bool {
    !UNAVAILABLE.iter().any(|(place, _)| question.place.starts_with(place))
}

#[test]
fn every_expression_returns_the_value_of_the_service() {
    let name = "dashboards::live::every_expression_returns_the_value_of_the_service";
    let Some(mut world) = World::start(name) else { return };
    let prometheus = &world.prometheus;
    let every = questions();
    for (place, why) in UNAVAILABLE {
        assert!(
            every.iter().any(|question| question.place.starts_with(place)),
            "{place} ({why}): no longer exists"
        );
    }

    // Repeats all queries, with all workers and with some, until each has returned a result.
    let mut left: Vec<(DashboardQuery, String)> = every
        .iter()
        .filter(|question| is_here(question))
        .map(|question| (question.clone(), String::new()))
        .collect();
    left.retain(|(question, _)| question.place != AFTER_DEPARTURES);
    assert!(left.len() > 150, "{}", left.len());
    let asked = left.len();
    world.wide_until_slow();
    world.training.until("training is running", || world.workers().len() == 3);
    let deadline = crate::world::now_s() + PATIENCE.as_secs_f64();
    while !left.is_empty() {
        world.goes_on();
        left.retain_mut(|(question, why)| {
            let answers =
                views(question, &world).into_iter().map(|view| answered(prometheus, &view, question));
            match answers.collect::<Result<Vec<()>, String>>() {
                Ok(_) => false,
                Err(wrong) => {
                    *why = wrong;
                    true
                }
            }
        });
        let why: Vec<String> =
            left.iter().map(|(question, why)| format!("{}: {why}", question.place)).collect();
        assert!(crate::world::now_s() < deadline, "no result:\n{}", why.join("\n"));
    }
    eprintln!("{asked} queries of panels and annotations returned results");
    few_lines(&world);
    variables(&world);
    pages(&world);
    speeds(prometheus, &world.predictor.client());
    departures(&mut world);
}

fn variables(world: &World) {
    let mut seen = BTreeMap::new();
    for question in dashboards().iter().flat_map(Dashboard::variable_queries) {
        let values = variable_values(&world.prometheus, &world.view(true), &question)
            .unwrap_or_else(|wrong| panic!("{}: {wrong}", question.place));
        seen.insert(question.place, values.into_iter().collect::<BTreeSet<_>>());
    }
    let expected = |place: &str, values: &[&str]| {
        let values: BTreeSet<String> = values.iter().map(|value| (*value).to_owned()).collect();
        assert_eq!(seen.get(place), Some(&values), "{seen:?}");
    };
    let workers = world.workers();
    expected("job.json, variable \"worker\"", &workers.iter().map(String::as_str).collect::<Vec<_>>());
    expected("job.json, variable \"focus\"", &workers.iter().map(String::as_str).collect::<Vec<_>>());
    expected("job.json, variable \"unit\"", &["samples"]);
    expected("job.json, variable \"job_id\"", &["asking", JOB, WIDE]);
    expected("overview.json, variable \"job_id\"", &["asking", JOB, WIDE]);
    expected("node.json, variable \"gpus\"", &["0"]);
    expected("node.json, variable \"node\"", &[NODE]);
    expected("service.json, variable \"instance\"", &[world.predictor.url.trim_start_matches("http://")]);
}

/// The scraped pages are well formed by Prometheus' rules.
fn pages(world: &World) {
    let Some(promtool) = promtool("dashboards::live (promtool check metrics)") else { return };
    for client in [&world.predictor.client(), &world.agent.client] {
        let page = client.get("/metrics").body;
        assert!(page.contains("evenstep_"), "{page}");
        if let Checked::Wrong(said) = promtool.check_metrics(&page) {
            panic!("{said}");
        }
        let broken = page.replacen("# TYPE evenstep_", "# TYPE evenstep-", 1);
        assert!(
            matches!(promtool.check_metrics(&broken), Checked::Wrong(_)),
            "a broken page was not detected"
        );
    }
}

/// Each scraped pair of speeds belongs to one iteration, to the last bit; likewise the batch and the error.
fn speeds(prometheus: &Prometheus, client: &Client) {
    let of = |metric: &str| {
        let selector = format!("evenstep_worker_{metric}{{job_id=\"{JOB}\"}}[10m]");
        let mut scraped = BTreeMap::new();
        for series in prometheus.instant(&selector, None).expect("PromQL") {
            let worker = series.labels["worker"].as_str().expect("a worker").to_owned();
            scraped
                .extend(series.points.into_iter().map(|(at, value)| ((worker.clone(), at.to_bits()), value)));
        }
        scraped
    };
    let (actual, predicted) = (of("speed_samples_per_second"), of("predicted_speed_samples_per_second"));
    let known = speeds_of_service(client);
    let mut compared = 0;
    for ((worker, at), actual) in &actual {
        let Some(predicted) = predicted.get(&(worker.clone(), *at)) else { continue };
        assert!(
            known.contains(&(worker.clone(), actual.to_bits(), predicted.to_bits())),
            "{worker}: {actual}, {predicted}: not the values of one iteration"
        );
        compared += 1;
    }
    assert!(compared >= 15, "{compared} scrapes of {}", actual.len());
    eprintln!("{compared} scraped pairs of speeds match iterations");

    // The rule and the panel have the same values, unless a scrape of that moment was stored after the rule was evaluated.
    let rule = format!("job_worker:evenstep_speed_prediction_error:ratio{{job_id=\"{JOB}\"}}[1m]");
    let panel = "abs(job_worker:evenstep_speed_prediction_error:ratio{job_id=\"seen\"} \
        - (max by (job_id, worker) (evenstep_worker_speed_samples_per_second) \
        / max by (job_id, worker) (evenstep_worker_predicted_speed_samples_per_second) - 1)) < 1e-12";
    until("the rule has the values of the panel", || {
        let recorded = prometheus.instant(&rule, None).expect("PromQL");
        assert_eq!(recorded.len(), 3, "{recorded:?}");
        let (at_s, _) = *recorded[0].points.last().expect("a value");
        (prometheus.instant(panel, Some(at_s)).expect("PromQL").len() == recorded.len()).then_some(())
    });
}

/// Returns (worker, actual, predicted), as bits, of all iterations.
fn speeds_of_service(client: &Client) -> BTreeSet<(String, u64, u64)> {
    let mut known = BTreeSet::new();
    let mut from = 0;
    loop {
        let page: SpeedsView = client.get(&format!("/v1/jobs/{JOB}/speeds?from={from}&limit=1000")).json();
        let Some(last) = page.speeds.last().map(|point| point.iteration) else { return known };
        for point in &page.speeds {
            if let (Some(actual), Some(predicted)) =
                (point.actual_samples_per_s, point.predicted_samples_per_s)
            {
                known.insert((point.worker.as_str().to_owned(), actual.to_bits(), predicted.to_bits()));
            }
        }
        from = last + 1;
    }
}

/// A worker that left has no series from the next scrape on, and the charts show that it left.
fn departures(world: &mut World) {
    // A training worker would join again.
    world.training.process.terminate();
    world.training.process.wait();
    let (client, prometheus) = (world.predictor.client(), &world.prometheus);
    for worker in world.workers() {
        client.leave(JOB, &worker);
    }
    let speed = format!("evenstep_worker_speed_samples_per_second{{job_id=\"{JOB}\"}}");
    until("the series of workers that left end", || {
        prometheus.instant(&speed, None).expect("PromQL").is_empty().then_some(())
    });
    let left =
        questions().into_iter().find(|question| question.place == AFTER_DEPARTURES).expect("the annotation");
    until("the chart shows that they left", || answered(prometheus, &world.view(true), &left).ok());
    let live = format!("evenstep_job_workers{{job_id=\"{JOB}\", state=\"live\"}}");
    assert_eq!(
        prometheus.instant(&live, None).expect("PromQL")[0].points[0].1,
        client.job(JOB).live_workers as f64
    );
}
