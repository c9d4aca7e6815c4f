//! `POST /v1/telemetry`: samples of a node, at least once on the wire, exactly once in the store.

use std::fmt::{Arguments, Display};

use axum::extract::State;
use evenstep_protocol::{NodeSample, Problem, ProcessSample, TelemetryAnswer, TelemetryBatch};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::body::{INTEGER_MAX, Json, readings, seconds, within};
use super::problem::Refusal;

/// Samples in one batch.
const SAMPLES_MAX: u64 = 1000;
/// Processes or GPUs in one sample.
const PARTS_MAX: u64 = 256;
/// The longest boot id, reason or name, in bytes.
const TEXT_BYTES_MAX: usize = 256;

pub fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(post))
}

/// Keep a node's samples. The answer comes when they are durable; sending a batch again stores nothing twice.
#[utoipa::path(
    post, path = "/v1/telemetry", tag = "telemetry", request_body = TelemetryBatch,
    responses(
        (status = 200, description = "Durable", body = TelemetryAnswer),
        (status = 413, description = "Body too large: send less at once", body = Problem),
        (status = 422, description = "A value breaks a rule; nothing was stored", body = Problem),
        (status = 429, description = "Too much at once; Retry-After says when to send again", body = Problem),
    )
)]
async fn post(
    State(api): State<Api>,
    Json(batch): Json<TelemetryBatch>,
) -> Result<axum::Json<TelemetryAnswer>, Refusal> {
    check(&batch)?;
    Ok(axum::Json(api.book.telemetry(batch).await?))
}

fn check(batch: &TelemetryBatch) -> Result<(), Refusal> {
    within("sequence", batch.sequence, 0..=INTEGER_MAX)?;
    within("number of samples", batch.samples.len() as u64, 0..=SAMPLES_MAX)?;
    text("boot_id", &batch.boot_id)?;
    if batch.boot_id.is_empty() {
        return Err(Refusal::invalid("boot_id: must not be empty"));
    }
    batch
        .samples
        .iter()
        .enumerate()
        .try_for_each(|(at, sample)| check_sample(format_args!("samples[{at}]"), sample))
}

fn check_sample(at: Arguments<'_>, sample: &NodeSample) -> Result<(), Refusal> {
    within(
        format_args!("{at}.at_unix_ms"),
        u64::try_from(sample.at_unix_ms).unwrap_or(u64::MAX),
        0..=INTEGER_MAX,
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
        for said in gpu.uuid.iter().chain(&gpu.name).chain(&gpu.throttle_reasons) {
            text(at, said)?;
        }
        within(
            format_args!("{at}: number of throttle_reasons"),
            gpu.throttle_reasons.len() as u64,
            0..=PARTS_MAX,
        )?;
        processes(format_args!("{at}.processes"), &gpu.processes)?;
    }
    Ok(())
}

fn processes(at: Arguments<'_>, processes: &[ProcessSample]) -> Result<(), Refusal> {
    within(format_args!("number of {at}"), processes.len() as u64, 0..=PARTS_MAX)?;
    for (i, process) in processes.iter().enumerate() {
        readings(format_args!("{at}[{i}].readings"), &process.readings)?;
        missing(format_args!("{at}[{i}]"), &process.missing)?;
    }
    Ok(())
}

fn missing(at: Arguments<'_>, missing: &std::collections::BTreeMap<String, String>) -> Result<(), Refusal> {
    within(format_args!("{at}: number of missing readings"), missing.len() as u64, 0..=PARTS_MAX)?;
    missing.iter().try_for_each(|(name, why)| {
        text(format_args!("{at}.missing"), name)?;
        text(format_args!("{at}.missing.{name}"), why)
    })
}

fn text(name: impl Display, text: &str) -> Result<(), Refusal> {
    if text.len() <= TEXT_BYTES_MAX {
        return Ok(());
    }
    Err(Refusal::invalid(format!("{name}: {} bytes; at most {TEXT_BYTES_MAX}", text.len())))
}
