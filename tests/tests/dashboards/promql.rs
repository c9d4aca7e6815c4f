//! Checks of the dashboards' PromQL without data: it parses, names existing metrics, and uses ranges and
//! counters correctly.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde_json::json;

use crate::rules::{Checked, promtool};
use crate::shipped::{self, DashboardQuery, dashboards};

/// Returns the expressions of panels and annotations, and the selectors of variables.
fn questions(dashboard: &shipped::Dashboard) -> Vec<DashboardQuery> {
    let mut questions = dashboard.panel_queries();
    questions.extend(dashboard.annotation_queries());
    questions.extend(dashboard.variable_queries().into_iter().map(|mut question| {
        let selector = question.text.strip_prefix("label_values(").and_then(|rest| rest.rsplit_once(','));
        let expr = question.text.strip_prefix("query_result(").and_then(|rest| rest.strip_suffix(')'));
        let text = selector.map(|(selector, _)| selector).or(expr);
        question.text = text.unwrap_or_else(|| panic!("{question:?}")).to_owned();
        question
    }));
    questions
}

fn all_questions() -> Vec<DashboardQuery> {
    dashboards().iter().flat_map(questions).collect()
}

/// Returns the faults of a query.
fn complaints(question: &DashboardQuery, metrics: &BTreeSet<String>) -> Vec<String> {
    let mut found = Vec::new();
    let mut complain = |what: String| found.push(format!("{}: {what}: {}", question.place, question.text));
    for name in
        names(&question.text).filter(|name| name.contains("evenstep_") || name.starts_with("process_"))
    {
        if !metrics.contains(name) {
            complain(format!("{name} is not a metric of docs/reference/metrics.md"));
        }
    }
    for (range, after) in question.text.split('[').skip(1).filter_map(|rest| rest.split_once(']')) {
        // The whole range, at its end, ranks the workers of a chart.
        let ranks = range == "$__range:$__interval" && after.starts_with(" @ end()");
        if range != "$__rate_interval" && !(range == "$__range" && question.instant) && !ranks {
            complain(format!("[{range}]: a range must be $__rate_interval, or $__range in an instant query"));
        }
    }
    let is_annotation = question.part.get("iconColor").is_some();
    for name in names(&question.text) {
        let counter = ["_total", "_bucket", "_sum", "_count"].iter().any(|end| name.ends_with(end));
        let at = name.as_ptr() as usize - question.text.as_ptr() as usize;
        let rated = ["rate(", "increase("].iter().any(|function| question.text[..at].ends_with(function));
        // Annotations use the steps of counters.
        if counter && !rated && !is_annotation {
            complain(format!("{name} is a counter: use its rate or increase"));
        }
    }
    found
}

/// Returns the words that could be names of metrics.
fn names(text: &str) -> impl Iterator<Item = &str> {
    let part_of_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == ':';
    text.split(move |letter| !part_of_name(letter)).filter(|word| !word.is_empty())
}

/// Returns the metrics in docs/reference/metrics.md.
fn documented() -> BTreeSet<String> {
    let mut metrics = BTreeSet::new();
    let documentation = shipped::text("../docs/reference/metrics.md");
    for row in documentation.lines().filter(|line| line.starts_with("| `")) {
        let mut columns = row.split('|').skip(1);
        let (named, kind) = (columns.next().unwrap_or_default(), columns.next().unwrap_or_default().trim());
        let mut last = String::new();
        for name in named.split('`').skip(1).step_by(2) {
            // Abbreviated names: `a_lower`, `_upper`
            let name = if name.starts_with('_') { last.replace("_lower", name) } else { name.to_owned() };
            let endings: &[&str] = if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            metrics.extend(endings.iter().map(|ending| format!("{name}{ending}")));
            last = name;
        }
    }
    assert!(metrics.len() > 80, "{metrics:?}");
    let process = ["cpu_seconds_total", "open_fds", "max_fds", "resident_memory_bytes", "start_time_seconds"];
    metrics.extend(process.iter().map(|name| format!("process_{name}")));
    metrics
}

/// Converts the queries into rules for promtool. Variables become words; macros become one minute.
fn as_rules(questions: &[DashboardQuery]) -> String {
    let mut rules = String::from("groups:\n");
    for (index, question) in questions.iter().enumerate() {
        let text = question
            .text
            .replace("$__rate_interval", "1m")
            .replace("$__range", "1m")
            .replace("$__interval", "1s")
            .replace('$', "");
        let (place, text) = (json!(question.place), json!(text));
        write!(rules, "  - name: {place}\n    rules:\n      - record: asked:{index}\n        expr: {text}\n")
            .expect("a string");
    }
    rules
}

#[test]
fn expressions_keep_the_rules() {
    let metrics = documented();
    let found: Vec<String> =
        all_questions().iter().flat_map(|question| complaints(question, &metrics)).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
    let mut named = all_questions();
    named.retain(|question| question.text.contains("evenstep_worker_speed_samples"));
    assert!(!named.is_empty());
    for question in named {
        let unknown = complaints(&question, &BTreeSet::new());
        assert!(unknown.iter().any(|found| found.contains("is not a metric")), "{question:?}: {unknown:?}");
    }
}

#[test]
fn expressions_parse() {
    let Some(promtool) = promtool("dashboards::promql::expressions_parse") else { return };
    let questions = all_questions();
    assert!(questions.len() > 100, "{}", questions.len());
    match promtool.check_rules(&as_rules(&questions)) {
        Checked::Fine(said) => assert!(said.contains(&format!("{} rules found", questions.len())), "{said}"),
        Checked::Wrong(said) => panic!("{said}"),
    }
}
