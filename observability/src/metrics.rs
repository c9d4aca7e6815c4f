//! Metrics: families of series, gathered when somebody asks.
//!
//! What happens is counted in instruments of [`prometheus`]; what is, is put together as [`Family`] when it is asked for: so no
//! series outlives what it tells of.

use std::sync::Arc;

use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{Encoder, TextEncoder};

pub use prometheus;

/// What gathers all families of a program, sorted by name.
pub type Gather = Arc<dyn Fn() -> Vec<MetricFamily> + Send + Sync>;

/// The content type of [`text`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A family of gauges or counters whose series are said one by one.
#[derive(Debug)]
pub struct Family {
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    series: Vec<Metric>,
}

impl Family {
    /// A family of gauges.
    pub fn gauge(name: &'static str, help: &'static str) -> Self {
        Self { name, help, kind: MetricType::GAUGE, series: Vec::new() }
    }

    /// A family of counters; the name ends in `_total`.
    pub fn counter(name: &'static str, help: &'static str) -> Self {
        Self { name, help, kind: MetricType::COUNTER, series: Vec::new() }
    }

    /// A series. Labels are pairs of name and value.
    pub fn say<'a>(&mut self, labels: impl IntoIterator<Item = (&'a str, &'a str)>, value: f64) {
        let label = |(name, value): (&str, &str)| {
            let mut pair = LabelPair::default();
            pair.set_name(name.to_owned());
            pair.set_value(value.to_owned());
            pair
        };
        let mut metric = Metric::from_label(labels.into_iter().map(label).collect());
        if self.kind == MetricType::COUNTER {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        } else {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
        self.series.push(metric);
    }

    /// The family, where it has any series: one without would be a name that says nothing.
    pub fn done(self) -> Option<MetricFamily> {
        if self.series.is_empty() {
            return None;
        }
        let mut family = MetricFamily::default();
        family.set_name(self.name.to_owned());
        family.set_help(self.help.to_owned());
        family.set_field_type(self.kind);
        family.set_metric(self.series);
        Some(family)
    }
}

/// Families in the text format of Prometheus, version 0.0.4.
///
/// # Errors
/// A family without a name or without series.
pub fn text(families: &[MetricFamily]) -> Result<String, prometheus::Error> {
    let mut text = Vec::new();
    TextEncoder::new().encode(families, &mut text)?;
    String::from_utf8(text).map_err(|error| prometheus::Error::Msg(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_escapes_what_people_name_things() {
        let mut speed = Family::gauge("evenstep_speed", "How fast.");
        speed.say([("worker", "a\"b\\c\nd")], 1.5);
        let text = text(&[speed.done().unwrap()]).unwrap();
        let expected = "# HELP evenstep_speed How fast.\n# TYPE evenstep_speed gauge\nevenstep_speed{worker=\"a\\\"b\\\\c\\nd\"} 1.5\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_family_without_series_is_not_there() {
        assert!(Family::counter("evenstep_total", "None.").done().is_none());
    }
}
