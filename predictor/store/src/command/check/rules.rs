//! Rules for the rows of each table, as pure functions of a row.

use std::collections::BTreeMap;

use crate::encode::{Json, job_spec};
use crate::error::StoreError;
use crate::lenient;
use crate::tables::{Cell, Table};
use evenstep_protocol::{
    AllocateResponse, JobId, JoinRequest, NodeId, NodeSample, Readings, WorkerId, WorkerOverride,
};
use serde::de::DeserializeOwned;

/// Readers for values whose format the store does not know. Each returns an error message if it cannot read a
/// value.
#[derive(Debug, Clone, Copy)]
pub struct ModelReaders {
    /// Model format that the readers support.
    pub format: u32,
    /// Reads a job's models.
    pub job: fn(u64, &[u8]) -> Result<(), String>,
    /// Reads a device type's models.
    pub device: fn(&[u8]) -> Result<(), String>,
    /// Reads the state of a job's learning-rate rule.
    pub learning_rate: fn(&str) -> Result<(), String>,
}

/// Remark on a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remark {
    /// The row violates this rule.
    Fault(String),
    /// The row is valid, but the user may want to know this.
    Note(&'static str),
}

/// Note on models that were stored in another format version.
pub const OTHER_FORMAT: &str = "models in another format: they are learned again from the reports";

/// Note on a job with options of a newer version.
const UNKNOWN_OPTIONS: &str = "job options that this version does not know: it does not plan these jobs";

impl From<String> for Remark {
    fn from(rule: String) -> Self {
        Self::Fault(rule)
    }
}

/// Checks a row against the rules of its table. Unknown tables have no rules.
///
/// # Errors
/// The first violated rule, or a note.
pub fn judge(table: &Table, row: &[Cell], models: &ModelReaders) -> Result<(), Remark> {
    let values = Values { table, row };
    match table.name.as_str() {
        "job" => job(&values, models.learning_rate),
        "worker" => worker(&values),
        "report" => report(&values),
        "allocation" => allocation(&values),
        "event" => values.ids(),
        "model_state" => {
            values.ids()?;
            let part = values.count("part")?;
            stored_models(&values, models.format, |state| (models.job)(part, state))
        }
        "device_model" => stored_models(&values, models.format, models.device),
        "node" => values.ids().and_then(|()| Ok(values.count("samples").map(drop)?)),
        "node_sample" => node_sample(&values),
        "node_summary" => node_summary(&values),
        "worker_summary" => worker_summary(&values),
        _ => Ok(()),
    }
}

fn job(values: &Values<'_>, read_learning_rate: fn(&str) -> Result<(), String>) -> Result<(), Remark> {
    values.ids()?;
    let mut spec: serde_json::Value = values.json("spec")?;
    // Options stored before schema 0007 (SQLite) or 0003 (PostgreSQL) have this field, which the migration
    // replaces.
    spec.as_object_mut().and_then(|options| options.remove("calm"));
    let spec = Json(spec.to_string().into_bytes());
    let (_, unknown) = job_spec(&spec).map_err(|error| match error {
        StoreError::Corrupt { source, .. } => format!("its spec cannot be read: {source}"),
        other => other.to_string(),
    })?;
    let learning_rate = values.text("learning_rate")?;
    if !learning_rate.is_empty() {
        read_learning_rate(learning_rate)
            .map_err(|error| format!("its learning_rate cannot be read: {error}"))?;
    }
    let (departed, generation) = (values.count("departed_generation")?, values.count("generation")?);
    rule(departed <= generation, || {
        format!("departed_generation {departed} exceeds its generation {generation}")
    })?;
    if unknown.is_empty() { Ok(()) } else { Err(Remark::Note(UNKNOWN_OPTIONS)) }
}

fn worker(values: &Values<'_>) -> Result<(), Remark> {
    values.ids()?;
    let request: JoinRequest = values.json("request")?;
    let worker = values.text("worker")?;
    rule(request.worker.as_str() == worker, || format!("its request names worker {}", request.worker))?;
    if !values.text("operator_override")?.is_empty() {
        values.json::<WorkerOverride>("operator_override")?;
    }
    Ok(())
}

fn report(values: &Values<'_>) -> Result<(), Remark> {
    values.ids()?;
    values.count("iteration")?;
    values.count("local_batch")?;
    values.time("compute_time_s")?;
    values.json::<Readings>("drivers").map(drop)
}

fn allocation(values: &Values<'_>) -> Result<(), Remark> {
    values.ids()?;
    let answer: AllocateResponse = values.json("answer")?;
    let named = (answer.job_id.as_str(), answer.iteration, answer.generation);
    let (job_id, position) = (values.text("job_id")?, values.count("iteration")?);
    // A run that returned to an earlier iteration has iterations below their positions.
    let is_own = named.0 == job_id && named.1 <= position && named.2 == values.count("generation")?;
    rule(is_own, || {
        format!("the response names job {}, iteration {} in generation {}", named.0, named.1, named.2)
    })?;
    let mut at = 0_u64;
    for share in &answer.allocations {
        rule(share.offset == at, || {
            format!(
                "the share of {} begins at {}, but the shares before it end at {at}",
                share.worker, share.offset
            )
        })?;
        at = at.saturating_add(share.local_batch);
    }
    if let Some(tail) = &answer.tail {
        rule(tail.offset == at, || {
            format!("its tail begins at {}, but the shares end at {at}", tail.offset)
        })?;
        at = tail.chunks.iter().fold(at, |sum, chunk| sum.saturating_add(*chunk));
    }
    rule(at == answer.global_batch, || {
        format!("its shares and tail sum to {at}, but its global batch is {}", answer.global_batch)
    })
}

fn stored_models(
    values: &Values<'_>,
    format: u32,
    read: impl Fn(&[u8]) -> Result<(), String>,
) -> Result<(), Remark> {
    if values.count("format")? != u64::from(format) {
        return Err(Remark::Note(OTHER_FORMAT));
    }
    Ok(read(values.bytes("state")?).map_err(|error| format!("its models cannot be read: {error}"))?)
}

fn node_sample(values: &Values<'_>) -> Result<(), Remark> {
    values.ids()?;
    values.count("sequence")?;
    let sample: NodeSample = values.json("sample")?;
    let at = values.integer("at_unix_ms")?;
    rule(sample.at_unix_ms == at, || {
        format!("its sample was taken at {}, but it is stored under {at}", sample.at_unix_ms)
    })
}

fn node_summary(values: &Values<'_>) -> Result<(), Remark> {
    values.ids()?;
    let samples = values.count("samples")?;
    step(values)?;
    // Maps a reading to count, sum, minimum and maximum.
    let readings: BTreeMap<String, (u64, f64, f64, f64)> = values.json("readings")?;
    for (reading, (count, sum, least, most)) in readings {
        let mean = sum / count as f64;
        // Sums are rounded.
        let slack = 1e-9 * least.abs().max(most.abs());
        let holds = (1..=samples).contains(&count) && mean >= least - slack && mean <= most + slack;
        rule(holds, || {
            format!(
                "{reading}: {count} of {samples} samples with sum {sum} cannot all lie between {least} and {most}"
            )
        })?;
    }
    Ok(())
}

fn worker_summary(values: &Values<'_>) -> Result<(), Remark> {
    values.ids()?;
    step(values)?;
    let (reports, predicted) = (values.count("reports")?, values.count("predicted")?);
    rule(reports > 0 && predicted <= reports, || {
        format!(
            "{predicted} of its {reports} reports have a prediction; reports must be at least 1, predicted at most reports"
        )
    })?;
    values.count("samples")?;
    ["compute_time_s", "barrier_wait_s", "loader_wait_s", "predicted_time_s"]
        .into_iter()
        .try_for_each(|column| values.time(column))
}

/// Checks that a summary begins at a step boundary.
fn step(values: &Values<'_>) -> Result<(), Remark> {
    let (at, step_ms) = (values.integer("at_unix_ms")?, values.integer("step_s")?.saturating_mul(1000));
    rule(step_ms > 0 && at.rem_euclid(step_ms) == 0, || {
        format!("at_unix_ms {at} is not a multiple of the step, {step_ms} ms")
    })
}

fn rule(holds: bool, broken: impl FnOnce() -> String) -> Result<(), Remark> {
    if holds { Ok(()) } else { Err(Remark::Fault(broken())) }
}

/// A row with access by column name. A column that an older schema lacks reads as null.
struct Values<'a> {
    table: &'a Table,
    row: &'a [Cell],
}

impl<'a> Values<'a> {
    fn cell(&self, column: &str) -> &'a Cell {
        self.table.place(column).and_then(|place| self.row.get(place)).unwrap_or(&Cell::Null)
    }

    /// Returns text; null reads as the empty string.
    fn text(&self, column: &str) -> Result<&'a str, String> {
        match self.cell(column) {
            Cell::Text(text) => Ok(text),
            Cell::Null => Ok(""),
            other => Err(format!("{column} {other} is not text")),
        }
    }

    fn bytes(&self, column: &str) -> Result<&'a [u8], String> {
        match self.cell(column) {
            Cell::Bytes(bytes) => Ok(bytes),
            other => Err(format!("{column} {other} is not a byte string")),
        }
    }

    fn integer(&self, column: &str) -> Result<i64, String> {
        match self.cell(column) {
            Cell::Integer(value) => Ok(*value),
            other => Err(format!("{column} {other} is not an integer")),
        }
    }

    fn count(&self, column: &str) -> Result<u64, String> {
        let value = self.integer(column)?;
        u64::try_from(value).map_err(|_| format!("{column} {value} is negative"))
    }

    /// Checks a time in seconds: finite, and at least 0.
    fn time(&self, column: &str) -> Result<(), Remark> {
        match self.cell(column) {
            Cell::Real(value) => rule(value.is_finite() && *value >= 0.0, || {
                format!("{column} {value} is not a duration of at least 0 s")
            }),
            other => Err(Remark::Fault(format!("{column} {other} is not a number"))),
        }
    }

    fn json<T: DeserializeOwned>(&self, column: &str) -> Result<T, Remark> {
        let read = lenient::from_slice(self.text(column)?.as_bytes());
        Ok(read.map(|(value, _)| value).map_err(|error| format!("its {column} cannot be read: {error}"))?)
    }

    /// Checks the job, worker and node ids of a row.
    fn ids(&self) -> Result<(), Remark> {
        for column in &self.table.columns {
            let wrong = match column.name.as_str() {
                "job_id" => JobId::new(self.text("job_id")?).err(),
                "worker" => WorkerId::new(self.text("worker")?).err(),
                "node" => NodeId::new(self.text("node")?).err(),
                _ => None,
            };
            if let Some(wrong) = wrong {
                return Err(Remark::Fault(wrong.to_string()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
