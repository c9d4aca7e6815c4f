//! Metrics: families of series, gathered on request.
//!
//! Events are counted in [`prometheus`] instruments. Current values are collected into a [`Family`] on each
//! request, so a series disappears together with the object that it describes.

use std::sync::Arc;

use prometheus::core::Collector;
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{Encoder, Histogram, HistogramOpts, HistogramVec, IntCounterVec, Opts, TextEncoder};

pub use prometheus;

/// Gathers all families of a program, sorted by name.
pub type Gather = Arc<dyn Fn() -> Vec<MetricFamily> + Send + Sync>;

/// The content type of [`text`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A family of gauges or counters whose series are added one by one.
#[derive(Debug)]
pub struct Family {
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    series: Vec<Metric>,
}

impl Family {
    /// Returns a family of gauges without series.
    pub fn gauge(name: &'static str, help: &'static str) -> Self {
        Self { name, help, kind: MetricType::GAUGE, series: Vec::new() }
    }

    /// Returns a family of counters without series; the name ends in `_total`.
    pub fn counter(name: &'static str, help: &'static str) -> Self {
        Self { name, help, kind: MetricType::COUNTER, series: Vec::new() }
    }

    /// Adds a series. Labels are pairs of name and value.
    pub fn add<'a>(&mut self, labels: impl IntoIterator<Item = (&'a str, &'a str)>, value: f64) {
        let mut metric = Metric::from_label(labels.into_iter().map(pair).collect());
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

    /// Returns the finished family, or `None` if it has no series.
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

/// Creates a histogram with these `bounds` in ascending order. Add it to the families with [`collect`].
#[expect(clippy::expect_used, reason = "names and bounds are constants: an invalid one fails in every test")]
pub fn histogram(name: &'static str, help: &'static str, bounds: &'static [f64]) -> Histogram {
    let options = HistogramOpts::new(name, help).buckets(bounds.to_vec());
    Histogram::with_opts(options).expect("a valid histogram")
}

/// Creates a histogram with these `bounds` for each combination of labels that occurs. Keep the number of
/// combinations small.
#[expect(clippy::expect_used, reason = "names and bounds are constants: an invalid one fails in every test")]
pub fn histograms(
    name: &'static str,
    help: &'static str,
    labels: &'static [&'static str],
    bounds: &'static [f64],
) -> HistogramVec {
    let options = HistogramOpts::new(name, help).buckets(bounds.to_vec());
    HistogramVec::new(options, labels).expect("a valid histogram")
}

/// Creates a counter for each combination of labels that occurs. Keep the number of combinations small.
#[expect(clippy::expect_used, reason = "names are constants: an invalid one fails in every test")]
pub fn counters(name: &'static str, help: &'static str, labels: &'static [&'static str]) -> IntCounterVec {
    IntCounterVec::new(Opts::new(name, help), labels).expect("a valid counter")
}

/// Adds the series of an instrument to `families`, with additional labels. Series of the same name go into
/// one family.
pub fn collect<'a>(
    families: &mut Vec<MetricFamily>,
    instrument: &impl Collector,
    labels: impl IntoIterator<Item = (&'a str, &'a str)>,
) {
    let labels: Vec<LabelPair> = labels.into_iter().map(pair).collect();
    for mut family in instrument.collect() {
        for series in family.mut_metric() {
            let mut all = series.take_label();
            all.extend(labels.iter().cloned());
            series.set_label(all);
        }
        match families.iter_mut().find(|known| known.name() == family.name()) {
            Some(known) => known.mut_metric().append(family.mut_metric()),
            None => families.push(family),
        }
    }
}

fn pair((name, value): (&str, &str)) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(name.to_owned());
    pair.set_value(value.to_owned());
    pair
}

/// Encodes families in the Prometheus text format, version 0.0.4.
///
/// # Errors
/// If a family has no name or no series.
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
        speed.add([("worker", "a\"b\\c\nd")], 1.5);
        let text = text(&[speed.done().unwrap()]).unwrap();
        let expected = "# HELP evenstep_speed How fast.\n# TYPE evenstep_speed gauge\nevenstep_speed{worker=\"a\\\"b\\\\c\\nd\"} 1.5\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_metric_family_without_series_is_omitted() {
        assert!(Family::counter("evenstep_total", "None.").done().is_none());
    }
}
