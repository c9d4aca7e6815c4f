//! Completes the OpenAPI document with what follows from the shape of an operation: its path parameters, the
//! errors that it shares with others, and the media type of errors.

use serde_json::{Map, Value, json};

use super::limits;
use crate::http::access::{Allowed, ROUTES};

/// Path parameters, their schemas and descriptions.
const PARAMETERS: [(&str, &str, &str); 4] = [
    ("token_id", "TokenId", "The token's ID"),
    ("job_id", "JobId", "The job, with / written as %2F"),
    ("worker", "WorkerId", "The worker, with / written as %2F"),
    ("node", "NodeId", "The node"),
];

/// Completes a document.
pub fn complete(mut document: Value) -> Value {
    if let Some(paths) = document["paths"].as_object_mut() {
        for (path, operations) in paths {
            for (method, operation) in operations.as_object_mut().into_iter().flatten() {
                parameters(path, operation);
                responses(path, method, operation);
            }
        }
    }
    if let Some(schemas) = document["components"]["schemas"].as_object_mut() {
        limits::set(schemas);
    }
    limits::limit_integers(&mut document);
    document
}

/// Adds the parameters in the path.
fn parameters(path: &str, operation: &mut Value) {
    let mut all: Vec<Value> = PARAMETERS
        .iter()
        .filter(|(name, ..)| path.contains(&format!("{{{name}}}")))
        .map(|(name, schema, description)| {
            let schema = json!({"$ref": format!("#/components/schemas/{schema}")});
            json!({"name": name, "in": "path", "required": true, "description": description, "schema": schema})
        })
        .collect();
    all.extend(operation["parameters"].as_array().into_iter().flatten().cloned());
    if !all.is_empty() {
        operation["parameters"] = Value::Array(all);
    }
}

/// Adds the errors that the operation shares with others, and the media type of all its errors.
fn responses(path: &str, method: &str, operation: &mut Value) {
    let has_body = operation["requestBody"].is_object();
    let has_parameters = operation["parameters"].is_array();
    let is_in_path = path.contains('{');
    let has_job = path.contains("{job_id}") || path == "/allocate" || path == "/v1/plan/burst";
    let is_protected = ROUTES.iter().any(|(of, route, allowed)| {
        of.eq_ignore_ascii_case(method) && *route == path && *allowed != Allowed::Everyone
    });
    let is_probe = matches!(path, "/healthz" | "/readyz");
    let is_stored = path.starts_with("/v1/") || path == "/allocate";
    let shared = [
        (has_job, "307", "Another predictor serves the job; Location is the URL there"),
        (has_body, "400", "The body is not JSON"),
        (is_protected, "401", "The token is missing, unknown or expired, if the predictor requires one"),
        (is_protected, "403", "The token does not allow this, or a page of another site sent the request"),
        (!is_protected && method != "get", "403", "A page of another site sent the request"),
        (has_job || is_in_path, "404", "Unknown job, worker or path"),
        (has_body, "408", "The body arrived too slowly"),
        (has_body, "413", "Body too large"),
        (
            has_body,
            "415",
            "The content type is not application/json, or the body is encoded, for example with gzip",
        ),
        (!is_probe, "421", "The host name is not a name of this predictor"),
        (has_body || has_parameters, "422", "A value breaks the rule that `detail` names"),
        (
            has_job || method != "get" || is_protected,
            "429",
            "Too many requests, or a limit of the token; Retry-After is the time to wait, in seconds",
        ),
        (path != "/healthz", "500", "A defect of the predictor"),
        (
            is_stored || path == "/metrics",
            "503",
            "Not available now; Retry-After is the time to wait, in seconds",
        ),
    ];
    let Some(responses) = operation["responses"].as_object_mut() else { return };
    for (_, status, description) in shared.into_iter().filter(|(applies, ..)| *applies) {
        responses.entry(status).or_insert_with(|| json!({"description": description}));
    }
    for (status, response) in responses {
        if status.starts_with(['3', '4', '5']) {
            let schema = json!({"schema": {"$ref": "#/components/schemas/Problem"}});
            let content = Map::from_iter([(evenstep_protocol::PROBLEM_CONTENT_TYPE.to_owned(), schema)]);
            response["content"] = Value::Object(content);
        }
    }
}
