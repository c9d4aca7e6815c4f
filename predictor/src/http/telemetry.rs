//! `POST /v1/telemetry`: receives samples of a node. Delivered at least once, stored exactly once.

use std::fmt::{Arguments, Display};

use axum::extract::State;
use evenstep_protocol::{NodeId, NodeSample, ProcessSample, TelemetryBatch, TelemetryResponse};
use evenstep_store::TelemetryRows;
use serde::Deserialize;
use serde_json::value::RawValue;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::body::{INTEGER_MAX, SHORT_BYTES, Text, locate, readings, seconds, within};
use super::problem::ErrorResponse;
use super::strict;
use crate::long::compute;

/// Limit of samples in one batch.
pub const SAMPLES_MAX: u64 = 1000;
/// Size limit of one sample, in bytes. Responses contain many of them.
pub const SAMPLE_BYTES_MAX: usize = 256 << 10;
/// The last millisecond of the year 9999: later times have no standard date text.
pub const UNIX_MS_MAX: u64 = 253_402_300_799_999;
/// Limit of processes or GPUs in one sample.
pub const PARTS_MAX: u64 = 256;
/// Length limit of a boot ID, reason or name, in bytes.
pub const TEXT_BYTES_MAX: usize = 256;

pub fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(post))
}

/// Store the samples of a node.
///
/// The response is sent when they are durable. Sending a batch again stores nothing twice.
#[utoipa::path(
    post, path = "/v1/telemetry", tag = "telemetry", request_body = TelemetryBatch,
    responses(
        (status = 200, description = "Durable", body = TelemetryResponse),
    )
)]
async fn post(
    State(api): State<Api>,
    Text(text): Text,
) -> Result<axum::Json<TelemetryResponse>, ErrorResponse> {
    let rows = compute(text.len() > SHORT_BYTES, || read(text))?;
    let answer = api.jobs.telemetry(rows).await?;
    api.meter.stored(answer.stored);
    Ok(axum::Json(answer))
}

/// A [`TelemetryBatch`] whose samples are slices of the request's text.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Batch<'a> {
    node: NodeId,
    boot_id: String,
    sequence: u64,
    #[serde(borrow)]
    samples: Vec<&'a RawValue>,
}

/// Checks a batch. The original text is stored: samples are parsed one at a time for the checks and not kept.
fn read(text: String) -> Result<TelemetryRows, ErrorResponse> {
    let misread = |error: serde_json::Error| {
        // Parsed again as a whole, for an error that names the path in the body.
        let error = strict::from_slice::<TelemetryBatch>(text.as_bytes()).err().unwrap_or(error);
        locate::<TelemetryBatch>(text.as_bytes(), &error)
    };
    let batch: Batch<'_> = strict::from_slice(text.as_bytes()).map_err(misread)?;
    within("sequence", batch.sequence, 0..=INTEGER_MAX)?;
    within("number of samples", batch.samples.len() as u64, 0..=SAMPLES_MAX)?;
    check_text("boot_id", &batch.boot_id)?;
    if batch.boot_id.is_empty() {
        return Err(ErrorResponse::invalid("boot_id: must not be empty"));
    }
    let mut samples = Vec::with_capacity(batch.samples.len());
    for (at, raw) in batch.samples.iter().enumerate() {
        if raw.get().len() > SAMPLE_BYTES_MAX {
            let detail =
                format!("samples[{at}]: {} bytes exceed the limit of {SAMPLE_BYTES_MAX}", raw.get().len());
            return Err(ErrorResponse::invalid(detail));
        }
        let sample: NodeSample = strict::from_slice(raw.get().as_bytes()).map_err(misread)?;
        check_sample(format_args!("samples[{at}]"), &sample)?;
        // The raw value is a slice of the text; their addresses give its position.
        let begin = raw.get().as_ptr().addr() - text.as_ptr().addr();
        samples.push((sample.at_unix_ms, begin..begin + raw.get().len()));
    }
    let Batch { node, boot_id, sequence, .. } = batch;
    TelemetryRows::new(node, boot_id, sequence, text, samples)
        .ok_or_else(|| ErrorResponse::invalid("samples: must be within the body"))
}

fn check_sample(at: Arguments<'_>, sample: &NodeSample) -> Result<(), ErrorResponse> {
    within(
        format_args!("{at}.at_unix_ms"),
        u64::try_from(sample.at_unix_ms).unwrap_or(u64::MAX),
        0..=UNIX_MS_MAX,
    )?;
    sample.window_s.map_or(Ok(()), |window_s| seconds(format_args!("{at}.window_s"), window_s))?;
    readings(format_args!("{at}.readings"), &sample.readings)?;
    missing(at, &sample.missing)?;
    processes(format_args!("{at}.processes"), &sample.processes)?;
    within(format_args!("{at}: number of gpus"), sample.gpus.len() as u64, 0..=PARTS_MAX)?;
    for (i, gpu) in sample.gpus.iter().enumerate() {
        let at = format_args!("{at}.gpus[{i}]");
        readings(format_args!("{at}.readings"), &gpu.readings)?;
        missing(at, &gpu.missing)?;
        for said in gpu.uuid.iter().chain(&gpu.pci_bus_id).chain(&gpu.name).chain(&gpu.throttle_reasons) {
            check_text(at, said)?;
        }
        within(
            format_args!("{at}: number of throttle_reasons"),
            gpu.throttle_reasons.len() as u64,
            0..=PARTS_MAX,
        )?;
        processes(format_args!("{at}.processes"), &gpu.processes)?;
        within(format_args!("{at}: number of instances"), gpu.instances.len() as u64, 0..=PARTS_MAX)?;
        for (i, instance) in gpu.instances.iter().enumerate() {
            let at = format_args!("{at}.instances[{i}]");
            readings(format_args!("{at}.readings"), &instance.readings)?;
            missing(at, &instance.missing)?;
            for said in [&instance.uuid].into_iter().chain(&instance.name) {
                check_text(at, said)?;
            }
        }
    }
    Ok(())
}

fn processes(at: Arguments<'_>, processes: &[ProcessSample]) -> Result<(), ErrorResponse> {
    within(format_args!("number of {at}"), processes.len() as u64, 0..=PARTS_MAX)?;
    for (i, process) in processes.iter().enumerate() {
        readings(format_args!("{at}[{i}].readings"), &process.readings)?;
        missing(format_args!("{at}[{i}]"), &process.missing)?;
    }
    Ok(())
}

fn missing(
    at: Arguments<'_>,
    missing: &std::collections::BTreeMap<String, String>,
) -> Result<(), ErrorResponse> {
    within(format_args!("{at}: number of missing readings"), missing.len() as u64, 0..=PARTS_MAX)?;
    missing.iter().try_for_each(|(name, why)| {
        check_text(format_args!("{at}.missing"), name)?;
        check_text(format_args!("{at}.missing.{name}"), why)
    })
}

fn check_text(name: impl Display, text: &str) -> Result<(), ErrorResponse> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(ErrorResponse::invalid(format!(
            "{name}: {} bytes exceed the limit of {TEXT_BYTES_MAX}",
            text.len()
        )));
    }
    // PostgreSQL text cannot contain NUL.
    if text.contains('\0') {
        return Err(ErrorResponse::invalid(format!("{name}: {text:?} must not contain the character 0")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_a_size_limit() {
        let read = |bytes: usize| {
            let padding = " ".repeat(bytes - r#"{"at_unix_ms":7}"#.len());
            let sample = format!(r#"{{"at_unix_ms":7{padding}}}"#);
            super::read(format!(r#"{{"node":"node","boot_id":"b","sequence":0,"samples":[{sample}]}}"#))
        };
        assert!(read(SAMPLE_BYTES_MAX).is_ok());
        assert!(read(SAMPLE_BYTES_MAX + 1).is_err());
    }

    #[test]
    fn samples_are_kept_as_the_bytes_that_came() {
        let text = "{ \"samples\" : [ {\"at_unix_ms\":7,\n \"readings\": {\"cpu_busy\": 0.50}} ,{\"at_unix_ms\":8, \"missing\": {\"ü\": \"\\u00e9\"}}],\"sequence\":3,\"node\":\"node\",\"boot_id\":\"b\"}";
        let rows = read(text.to_owned()).unwrap();
        let rows: Vec<_> = rows.rows().map(|row| (row.sequence, row.at_unix_ms, row.sample)).collect();
        assert_eq!(rows[0], (3, 7, "{\"at_unix_ms\":7,\n \"readings\": {\"cpu_busy\": 0.50}}"));
        assert_eq!(rows[1], (4, 8, "{\"at_unix_ms\":8, \"missing\": {\"ü\": \"\\u00e9\"}}"));
    }
}
