//! Grafana's processing of a query: variables and macros.

use std::collections::BTreeMap;

use jiff::Timestamp;

/// Number of points that a panel of usual width requests.
const DATA_POINTS: f64 = 1000.0;
/// Maximum number of steps that Prometheus returns.
const STEPS_MAX: f64 = 11_000.0;

/// Selection of a variable.
#[derive(Debug, Clone)]
pub enum Selection {
    /// One value, if the variable has a single selection.
    One(String),
    /// Some of the values.
    Some(Vec<String>),
    /// All values. If the variable has an expression for all values, the second field contains it.
    All(Vec<String>, Option<String>),
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
        replaced(text, |name, format| {
            // A group of a regular expression is no variable; Grafana leaves it.
            if name.starts_with(|letter: char| letter.is_ascii_digit()) {
                return Some(format!("${name}"));
            }
            if let Some(span_s) = self.span(name) {
                return Some(format!("{}s", span_s.ceil()));
            }
            let one = |value: &str| quoted(&escaped(value));
            Some(match (self.selections.get(name)?, format) {
                (Selection::One(value), None) => quoted(value),
                (Selection::All(_, Some(expression)), None) => expression.clone(),
                (Selection::Some(values) | Selection::All(values, _), None) => match values.as_slice() {
                    [value] => one(value),
                    values => {
                        format!("({})", values.iter().map(|value| one(value)).collect::<Vec<_>>().join("|"))
                    }
                },
                (_, Some(_)) => return None,
            })
        })
    }

    /// Returns the SQL that Grafana sends to PostgreSQL: replaces text first, then macros.
    ///
    /// # Errors
    /// Names an unknown variable or macro.
    pub fn sql(&self, text: &str) -> Result<String, String> {
        let text = replaced(text, |name, format| {
            if self.selections.contains_key(name) || !name.starts_with("__") {
                let values = match self.selections.get(name)? {
                    Selection::One(value) => std::slice::from_ref(value),
                    Selection::Some(values) | Selection::All(values, _) => values,
                };
                let quoted = |value: &String| format!("'{}'", value.replace('\'', "''"));
                return (format? == "sqlstring")
                    .then(|| values.iter().map(quoted).collect::<Vec<_>>().join(","));
            }
            // Macros with arguments are replaced later.
            Some(self.span(name).map_or_else(|| format!("${name}"), |span_s| format!("{}s", span_s.ceil())))
        })?;
        self.macros(&text)
    }

    fn macros(&self, text: &str) -> Result<String, String> {
        let mut done = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("$__") {
            let (name, after) = after.split_once('(').ok_or_else(|| format!("$__{after}: not a macro"))?;
            let (arguments, after) =
                after.split_once(')').ok_or_else(|| format!("$__{name}(: no closing parenthesis"))?;
            let arguments: Vec<&str> =
                arguments.split(',').map(|argument| argument.trim().trim_matches('\'')).collect();
            let group = |column: &str, span: &str| {
                let span_s = span.trim_end_matches('s');
                format!("floor(extract(epoch from {column})/{span_s})*{span_s}")
            };
            let expanded = match (name, arguments.as_slice()) {
                ("timeFilter", [column]) => {
                    let (from, to) = (time(self.range_s.0), time(self.range_s.1));
                    format!("{column} BETWEEN {from} AND {to}")
                }
                ("timeGroup", [column, span]) => group(column, span),
                ("timeGroupAlias", [column, span]) => format!("{} AS \"time\"", group(column, span)),
                _ => return Err(format!("$__{name}({arguments:?}): no such macro")),
            };
            done.push_str(before);
            done.push_str(&expanded);
            rest = after;
        }
        Ok(done + rest)
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

/// Replaces `$name`, `${name}` and `${name:format}`.
fn replaced(text: &str, replace: impl Fn(&str, Option<&str>) -> Option<String>) -> Result<String, String> {
    let mut done = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        let (named, after) = if let Some(braced) = after.strip_prefix('{') {
            braced.split_once('}').ok_or_else(|| format!("${after}: no closing brace"))?
        } else {
            let end = after.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
            after.split_at(end.unwrap_or(after.len()))
        };
        let (name, format) =
            named.split_once(':').map_or((named, None), |(name, format)| (name, Some(format)));
        done.push_str(before);
        done.push_str(&replace(name, format).ok_or_else(|| format!("${{{named}}}: no such variable"))?);
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

/// Formats a time as Grafana does in SQL.
fn time(unix_s: f64) -> String {
    format!("'{}'", Timestamp::from_millisecond((unix_s * 1e3) as i64).expect("a time of ours"))
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
            ("all".to_owned(), Selection::All(values(&["x", "y"]), Some(".+".to_owned()))),
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
    assert_eq!(
        hour.sql("SELECT $__timeGroupAlias(at, $__interval) FROM a WHERE $__timeFilter(at) AND w IN (${all:sqlstring}, ${node:sqlstring})").unwrap(),
        "SELECT floor(extract(epoch from at)/5)*5 AS \"time\" FROM a WHERE at BETWEEN '1970-01-12T13:46:40Z' AND \
         '1970-01-12T14:46:40Z' AND w IN ('x','y', 'n''0')"
    );
    assert!(hour.sql("SELECT $__timeGrup(at, 5s)").unwrap_err().contains("timeGrup"));
    assert!(hour.sql("SELECT ${jobb:sqlstring}").unwrap_err().contains("jobb"));
}
