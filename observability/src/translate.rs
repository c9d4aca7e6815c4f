//! Translates Prometheus families into OTLP messages with the same names, labels and values.

use std::ops::Range;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, ResourceMetrics,
    ScopeMetrics, Sum, metric::Data, number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prometheus::proto::{Metric as Series, MetricFamily, MetricType};

/// The process that the metrics come from.
#[derive(Debug, Clone)]
pub struct Origin {
    /// Name of the program.
    pub service: &'static str,
    /// Version of the program.
    pub version: &'static str,
    /// Id that distinguishes this process from other processes of the program.
    pub instance: String,
}

/// Translates all families into one request. `unix_ms` is in milliseconds since 1970: counters count from its
/// start, and its end is the time of the values.
pub fn request(
    families: &[MetricFamily],
    origin: &Origin,
    unix_ms: Range<i64>,
) -> ExportMetricsServiceRequest {
    let times = Times { since: nanoseconds(unix_ms.start), now: nanoseconds(unix_ms.end) };
    let attributes = [
        ("service.name", origin.service),
        ("service.version", origin.version),
        ("service.instance.id", &origin.instance),
    ];
    let scope = InstrumentationScope {
        name: "evenstep".into(),
        version: origin.version.into(),
        ..InstrumentationScope::default()
    };
    let metrics = families.iter().map(|family| metric(family, times)).collect();
    ExportMetricsServiceRequest {
        resource_metrics: vec![ResourceMetrics {
            resource: Some(Resource {
                attributes: attributes.map(|(key, value)| attribute(key, value)).to_vec(),
                ..Resource::default()
            }),
            scope_metrics: vec![ScopeMetrics { scope: Some(scope), metrics, ..ScopeMetrics::default() }],
            ..ResourceMetrics::default()
        }],
    }
}

#[derive(Clone, Copy)]
struct Times {
    since: u64,
    now: u64,
}

fn metric(family: &MetricFamily, times: Times) -> Metric {
    let series = family.get_metric().iter();
    let cumulative = AggregationTemporality::Cumulative.into();
    let data = match family.get_field_type() {
        MetricType::COUNTER => Data::Sum(Sum {
            data_points: series
                .map(|series| number(series, series.get_counter().get_value(), times))
                .collect(),
            aggregation_temporality: cumulative,
            is_monotonic: true,
        }),
        MetricType::HISTOGRAM => Data::Histogram(Histogram {
            data_points: series.map(|series| histogram(series, times)).collect(),
            aggregation_temporality: cumulative,
        }),
        _ => Data::Gauge(Gauge {
            data_points: series.map(|series| number(series, series.get_gauge().get_value(), times)).collect(),
        }),
    };
    Metric {
        name: family.name().into(),
        description: family.help().into(),
        data: Some(data),
        ..Metric::default()
    }
}

fn number(series: &Series, value: f64, times: Times) -> NumberDataPoint {
    NumberDataPoint {
        attributes: attributes(series),
        start_time_unix_nano: times.since,
        time_unix_nano: times.now,
        value: Some(number_data_point::Value::AsDouble(value)),
        ..NumberDataPoint::default()
    }
}

/// Prometheus buckets are cumulative, OTLP buckets are not; the last OTLP bucket, above all bounds, has no
/// bound.
fn histogram(series: &Series, times: Times) -> HistogramDataPoint {
    let histogram = series.get_histogram();
    let bounded = histogram.get_bucket().iter().filter(|bucket| bucket.upper_bound().is_finite());
    let (mut explicit_bounds, mut bucket_counts, mut below) = (Vec::new(), Vec::new(), 0);
    for bucket in bounded {
        explicit_bounds.push(bucket.upper_bound());
        bucket_counts.push(bucket.cumulative_count().saturating_sub(below));
        below = bucket.cumulative_count();
    }
    let count = histogram.get_sample_count();
    bucket_counts.push(count.saturating_sub(below));
    HistogramDataPoint {
        attributes: attributes(series),
        start_time_unix_nano: times.since,
        time_unix_nano: times.now,
        count,
        sum: Some(histogram.get_sample_sum()),
        bucket_counts,
        explicit_bounds,
        ..HistogramDataPoint::default()
    }
}

fn attributes(series: &Series) -> Vec<KeyValue> {
    series.get_label().iter().map(|label| attribute(label.name(), label.value())).collect()
}

fn attribute(key: &str, value: &str) -> KeyValue {
    let value = AnyValue { value: Some(any_value::Value::StringValue(value.to_owned())) };
    KeyValue { key: key.to_owned(), value: Some(value), ..KeyValue::default() }
}

fn nanoseconds(unix_ms: i64) -> u64 {
    u64::try_from(unix_ms).unwrap_or(0).saturating_mul(1_000_000)
}

#[cfg(test)]
mod tests {
    use prometheus::core::Collector;
    use prometheus::{HistogramOpts, HistogramVec};

    use super::*;

    #[test]
    fn buckets_are_counted_between_bounds() {
        let options = HistogramOpts::new("evenstep_d_seconds", "d").buckets(vec![0.1, 1.0]);
        let durations = HistogramVec::new(options, &["route"]).unwrap();
        for seconds in [0.05, 0.5, 0.5, 7.0] {
            durations.with_label_values(&["/x"]).observe(seconds);
        }
        let origin = Origin { service: "s", version: "1", instance: "i".into() };
        let request = request(&durations.collect(), &origin, 1..2);
        let metric = &request.resource_metrics[0].scope_metrics[0].metrics[0];
        let Some(Data::Histogram(histogram)) = &metric.data else { panic!("{metric:?}") };
        let point = &histogram.data_points[0];
        assert_eq!(point.explicit_bounds, [0.1, 1.0]);
        assert_eq!(point.bucket_counts, [1, 2, 1]);
        assert_eq!((point.count, point.sum), (4, Some(8.05)));
        assert_eq!(point.attributes[0].key, "route");
    }
}
