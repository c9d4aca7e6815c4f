//! Grafana's processing of a query: it replaces variables.

use std::collections::BTreeMap;

/// Number of points that a panel of usual width requests.
const DATA_POINTS: f64 = 1000.0;
/// Maximum number of steps that Prometheus returns.
const STEPS_MAX: f64 = 11_000.0;
/// Expression for all values of a variable, the `allValue` of every one.
const ALL: &str = ".+";

/// Selection of a variable.
#[derive(Debug, Clone)]
pub enum Selection {
    /// One value, if the variable has a single selection.
    One(String),
    /// Some of the values.
    Some(Vec<String>),
    /// All values.
    All,
}

/// The variables of a dashboard, and its time range.
#[derive(Debug, Clone)]
pub struct View {
    /// Selections by variable.
    pub selections: BTreeMap<String, Selection>,
    /// Start and end in seconds since 1970.
    pub range_s: (f64, f64),
    /// Scrape interval of the data source.
    pub scrape_interval_s: f64,
}

impl View {
    /// Returns the time between two points of a chart.
    pub fn step_s(&self) -> f64 {
        let range_s = self.range_s.1 - self.range_s.0;
        (range_s / DATA_POINTS).round().max(self.scrape_interval_s).max((range_s / STEPS_MAX).round())
    }

    /// Returns `$__rate_interval`: long enough that a rate always has two samples.
    fn rate_interval_s(&self) -> f64 {
        (self.step_s() + self.scrape_interval_s).max(4.0 * self.scrape_interval_s)
    }

    /// Returns the PromQL that Grafana sends to Prometheus.
    ///
    /// # Errors
    /// Names an unknown variable.
    pub fn promql(&self, text: &str) -> Result<String, String> {
        replaced(text, |name| {
            // A group of a regular expression is no variable; Grafana leaves it.
            if name.starts_with(|letter: char| letter.is_ascii_digit()) {
                return Some(format!("${name}"));
            }
            if let Some(span_s) = self.span(name) {
                return Some(format!("{}s", span_s.ceil()));
            }
            let one = |value: &str| quoted(&escaped(value));
            Some(match self.selections.get(name)? {
                Selection::One(value) => quoted(value),
                Selection::All => ALL.to_owned(),
                Selection::Some(values) => match values.as_slice() {
                    [value] => one(value),
                    values => {
                        format!("({})", values.iter().map(|value| one(value)).collect::<Vec<_>>().join("|"))
                    }
                },
            })
        })
    }

    /// Returns the value of one of Grafana's named time spans, in seconds.
    fn span(&self, name: &str) -> Option<f64> {
        match name {
            "__rate_interval" => Some(self.rate_interval_s()),
            "__interval" => Some(self.step_s()),
            "__range" => Some(self.range_s.1 - self.range_s.0),
            _ => None,
        }
    }
}

/// Replaces `$name` and `${name}`.
fn replaced(text: &str, replace: impl Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut done = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        let (name, after) = if let Some(braced) = after.strip_prefix('{') {
            braced.split_once('}').ok_or_else(|| format!("${after}: no closing brace"))?
        } else {
            let end = after.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
            after.split_at(end.unwrap_or(after.len()))
        };
        done.push_str(before);
        done.push_str(&replace(name).ok_or_else(|| format!("${{{name}}}: no such variable"))?);
        rest = after;
    }
    Ok(done + rest)
}

/// Escapes a value for a regular expression.
fn escaped(value: &str) -> String {
    value
        .chars()
        .flat_map(|letter| r"\^$.*+?()[]{}|".contains(letter).then_some('\\').into_iter().chain([letter]))
        .collect()
}

/// Escapes a value for a string in PromQL.
fn quoted(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', "\\\"")
}

#[test]
fn variables_are_interpolated_as_grafana_does() {
    let one = |value: &str| Selection::One(value.to_owned());
    let values = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>();
    let view = |scrape_interval_s, range_s| View {
        selections: BTreeMap::from([
            ("job_id".to_owned(), one("a\"b")),
            ("worker".to_owned(), Selection::Some(values(&["w.0", "w1"]))),
            ("node".to_owned(), Selection::Some(values(&["n'0"]))),
            ("all".to_owned(), Selection::All),
        ]),
        range_s: (1_000_000.0, 1_000_000.0 + range_s),
        scrape_interval_s,
    };
    let hour = view(5.0, 3600.0);
    let asked = hour.promql(
        "rate(a{job=\"$job_id\", worker=~\"$worker\", node=~\"${node}\", all=~\"$all\"}[$__rate_interval])",
    );
    assert_eq!(asked.unwrap(), r#"rate(a{job="a\"b", worker=~"(w\\.0|w1)", node=~"n'0", all=~".+"}[20s])"#);
    assert_eq!(hour.promql("a[$__range] b[$__interval]").unwrap(), "a[3600s] b[5s]");
    assert_eq!(view(5.0, 86_400.0 * 30.0).promql("a[$__rate_interval]").unwrap(), "a[2597s]");
    assert!(hour.promql("a{b=\"$wroker\"}").unwrap_err().contains("wroker"));
}
