//! Limits of the values in requests, for the OpenAPI document. They come from the constants of the checks.

use evenstep_burst::{COUNTS_MAX, GPUS_MAX, INPUTS_MAX, LAYERS_MAX, NAME_BYTES_MAX, US_MAX, VALUES_MAX};
use evenstep_protocol::columns::{Bounds, COLUMNS};
use serde_json::{Map, Value, json};

use crate::http::body::{INTEGER_MAX, READING_NAME_MAX, READINGS_MAX};
use crate::http::jobs::{
    ALLOWED_SIZES_MAX, GLOBAL_BATCH_MAX, INITIAL_SPEED_MAX, INITIAL_SPEED_MIN, ITERATIONS_MAX, KEEP_S_MAX,
    LEASE_S_MAX, UNIT_BYTES_MAX, WARMUP_EPOCHS_MAX,
};
use crate::http::telemetry::{PARTS_MAX, SAMPLES_MAX, TEXT_BYTES_MAX, UNIX_MS_MAX};
use crate::http::workers::DEVICE_BYTES_MAX;
use crate::jobs::WORKERS_MAX;

/// Pattern of a number of samples or GPUs as the name of a field.
const COUNT: &str = "^[1-9][0-9]{0,15}$";
/// Patterns of IDs.
const JOB: &str = "^[A-Za-z0-9][A-Za-z0-9._:@-]*(/[A-Za-z0-9][A-Za-z0-9._:@-]*)?$";
const NODE: &str = "^[A-Za-z0-9][A-Za-z0-9._:@-]*$";
const TOKEN: &str = "^[0-9a-f]{10}$";
const WORKER: &str = "^[A-Za-z0-9][A-Za-z0-9._:@/-]*$";
/// Pattern of text without the character 0.
const NO_NUL: &str = "^[^\\u0000]*$";

/// Sets the limits of the request schemas.
pub fn set(schemas: &mut Map<String, Value>) {
    for (name, fields) in limits() {
        let Some(properties) = schemas.get_mut(name).map(|schema| &mut schema["properties"]) else {
            continue;
        };
        for (field, limits) in fields.as_object().into_iter().flatten() {
            add(&mut properties[field], limits);
        }
    }
    for (name, pattern) in [("JobId", JOB), ("NodeId", NODE), ("TokenId", TOKEN), ("WorkerId", WORKER)] {
        schemas.insert(name.into(), id(pattern));
    }
}

/// The schema of an ID.
fn id(pattern: &str) -> Value {
    json!({"type": "string", "minLength": 1, "maxLength": 128, "pattern": pattern})
}

/// Adds keywords to a schema.
fn add(schema: &mut Value, keywords: &Value) {
    let keywords = keywords.as_object().into_iter().flatten();
    keywords.for_each(|(keyword, value)| schema[keyword] = value.clone());
}

/// Limits all integers that have no maximum, in the schemas within a value.
pub fn limit_integers(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            let types = fields.get("type");
            let is_integer = types.is_some_and(|types| {
                types == "integer" || types.as_array().is_some_and(|types| types.contains(&json!("integer")))
            });
            if is_integer && !fields.contains_key("maximum") {
                fields.insert("maximum".into(), json!(INTEGER_MAX));
            }
            fields.values_mut().for_each(limit_integers);
        }
        Value::Array(values) => values.iter_mut().for_each(limit_integers),
        _ => {}
    }
}

/// The limits of the numbers of a report, or of its tail.
fn columns(of_tail: bool) -> Value {
    let limits = |bounds| match bounds {
        Bounds::Count | Bounds::Finite => json!({}),
        Bounds::Part => json!({"minimum": 1, "maximum": INTEGER_MAX}),
        Bounds::Seconds | Bounds::NotNegative => json!({"minimum": 0}),
        Bounds::Positive(most) => json!({"exclusiveMinimum": 0, "maximum": most}),
        Bounds::Work => json!({"exclusiveMinimum": 0}),
    };
    let fields = COLUMNS.iter().filter_map(|column| {
        let part = column.path.strip_prefix("tail.");
        (part.is_some() == of_tail).then(|| (part.unwrap_or(column.path).to_owned(), limits(column.bounds)))
    });
    Value::Object(fields.collect())
}

/// The limits of each schema, by field.
fn limits() -> Vec<(&'static str, Value)> {
    let between = |least: f64, most: f64| json!({"minimum": least, "maximum": most});
    let count = |least: u64, most: u64| json!({"minimum": least, "maximum": most});
    // The format int32, which utoipa sets for u32, ends at 2^31.
    let wide = |most: u64| json!({"minimum": 0, "maximum": most, "format": "int64"});
    let batch = |least: u64| count(least, GLOBAL_BATCH_MAX);
    let at_least_0 = json!({"minimum": 0});
    let text = |least: usize, most: usize| json!({"minLength": least, "maxLength": most, "pattern": NO_NUL});
    let times = |names: &str| {
        json!({"propertyNames": {"type": "string", "pattern": names}, "additionalProperties": {
            "type": "number", "format": "double", "minimum": 0, "maximum": US_MAX
        }})
    };
    let plain = format!("^[a-z0-9_]{{1,{READING_NAME_MAX}}}$");
    let readings =
        json!({"maxProperties": READINGS_MAX, "propertyNames": {"type": "string", "pattern": plain}});
    let short = json!({"type": "string", "maxLength": TEXT_BYTES_MAX, "pattern": NO_NUL});
    let missing = json!({"maxProperties": PARTS_MAX, "propertyNames": short, "additionalProperties": short});
    let parts = json!({"maxItems": PARTS_MAX});
    vec![
        (
            "JobSpec",
            json!({
                "global_batch": batch(1), "per_worker_batch": batch(1), "quantum": batch(1), "min_chunk": batch(1),
                "unit": {"pattern": format!("^[a-z]{{1,{UNIT_BYTES_MAX}}}$")},
                "min_local_batch": batch(0), "max_local_batch": batch(1),
                "allowed_sizes": {"maxItems": ALLOWED_SIZES_MAX, "uniqueItems": true, "items": {
                    "type": "integer", "format": "int64", "minimum": 0, "maximum": GLOBAL_BATCH_MAX
                }},
                "distinct_sizes": count(2, WORKERS_MAX as u64), "min_workers": count(1, WORKERS_MAX as u64),
                "lease_s": between(1.0, LEASE_S_MAX), "min_gain": between(0.0, 1.0),
                "keep_s": count(60, KEEP_S_MAX),
                "initial_speeds": {"maxProperties": WORKERS_MAX, "propertyNames": id(WORKER), "additionalProperties": {
                    "type": "number", "format": "double", "minimum": INITIAL_SPEED_MIN, "maximum": INITIAL_SPEED_MAX
                }}
            }),
        ),
        ("BackgroundSettings", json!({"slow_down_limit": between(1.0, evenstep_rules::gate::LIMIT_MAX)})),
        (
            "LearningRateSettings",
            json!({
                "ramp_iterations": count(0, ITERATIONS_MAX), "warmup_epochs": between(0.0, WARMUP_EPOCHS_MAX),
                "dataset_samples": count(1, INTEGER_MAX)
            }),
        ),
        (
            "JoinRequest",
            json!({
                "device": text(0, DEVICE_BYTES_MAX), "min_local_batch": batch(0), "max_local_batch": batch(1),
                "memory_bytes": count(1, INTEGER_MAX)
            }),
        ),
        ("OomReport", json!({"local_batch": count(2, INTEGER_MAX)})),
        (
            "WorkerOverride",
            json!({
                "pinned_local_batch": batch(0), "min_local_batch": batch(0), "max_local_batch": batch(1)
            }),
        ),
        (
            "AllocateRequest",
            json!({
                "global_batch": count(1, INTEGER_MAX), "reports": {"maxItems": WORKERS_MAX}
            }),
        ),
        ("WorkerReport", json!({"drivers": readings})),
        ("WorkerReport", columns(false)),
        ("TailReport", columns(true)),
        ("TelemetryBatch", json!({"boot_id": text(1, TEXT_BYTES_MAX), "samples": {"maxItems": SAMPLES_MAX}})),
        (
            "NodeSample",
            json!({
                "at_unix_ms": count(0, UNIX_MS_MAX), "window_s": at_least_0, "readings": readings, "missing": missing,
                "processes": parts, "gpus": parts
            }),
        ),
        ("ProcessSample", json!({"readings": readings, "missing": missing, "pid": wide(u32::MAX.into())})),
        (
            "GpuSample",
            json!({
                "index": wide(u32::MAX.into()), "uuid": text(0, TEXT_BYTES_MAX), "name": text(0, TEXT_BYTES_MAX),
                "pci_bus_id": text(0, TEXT_BYTES_MAX), "readings": readings, "missing": missing, "processes": parts,
                "instances": parts,
                "throttle_reasons": {"maxItems": PARTS_MAX, "items": short}
            }),
        ),
        (
            "GpuInstanceSample",
            json!({
                "uuid": text(0, TEXT_BYTES_MAX), "name": text(0, TEXT_BYTES_MAX), "readings": readings,
                "missing": missing
            }),
        ),
        (
            "BurstRequest",
            json!({
                "global_batch": batch(1), "gpus": count(1, GPUS_MAX as u64), "amplification": {"minimum": 1},
                "counts": {"minItems": 1, "maxItems": COUNTS_MAX, "items": {
                    "type": "integer", "format": "int64", "minimum": 1, "maximum": GPUS_MAX
                }},
                "speeds": {"minItems": 1, "maxItems": GPUS_MAX, "items": {
                    "type": "number", "format": "double", "minimum": f64::MIN_POSITIVE
                }},
                "exempt_below_us": at_least_0, "bytes_per_parameter": at_least_0
            }),
        ),
        (
            "BurstNetwork",
            json!({"bandwidth_bytes_per_s": {"minimum": f64::MIN_POSITIVE}, "latency_us": at_least_0}),
        ),
        ("BurstProfile", json!({"layers": {"minItems": 1, "maxItems": LAYERS_MAX}})),
        (
            "BurstLayer",
            json!({
                "name": {"minLength": 1, "maxLength": NAME_BYTES_MAX}, "inputs": {"maxItems": INPUTS_MAX},
                "compute_us": times(COUNT), "forward_us": times(COUNT), "cost_us": times(COUNT),
                "edge_us": times("^[1-9][0-9]{0,15}->[1-9][0-9]{0,15}$"), "parameters": count(0, VALUES_MAX as u64),
                "outputs": count(0, VALUES_MAX as u64),
                "activation_bytes": {"propertyNames": {"type": "string", "pattern": COUNT}}
            }),
        ),
    ]
}
