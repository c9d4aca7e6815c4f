//! The API description, as a document and as a page.

use serde_json::Value;

use crate::support::Service;

/// Methods and paths of the contract.
const ROUTES: [(&str, &str); 34] = [
    ("post", "/allocate"),
    ("get", "/allocate"),
    ("put", "/v1/jobs/{job_id}"),
    ("get", "/v1/jobs/{job_id}"),
    ("delete", "/v1/jobs/{job_id}"),
    ("get", "/v1/jobs"),
    ("post", "/v1/jobs/{job_id}/workers"),
    ("get", "/v1/jobs/{job_id}/workers"),
    ("delete", "/v1/jobs/{job_id}/workers/{worker}"),
    ("post", "/v1/jobs/{job_id}/workers/{worker}/oom"),
    ("put", "/v1/jobs/{job_id}/workers/{worker}/override"),
    ("delete", "/v1/jobs/{job_id}/workers/{worker}/override"),
    ("get", "/v1/jobs/{job_id}/forecast"),
    ("get", "/v1/jobs/{job_id}/allocations"),
    ("get", "/v1/jobs/{job_id}/speeds"),
    ("post", "/v1/telemetry"),
    ("get", "/v1/nodes"),
    ("get", "/v1/nodes/{node}/samples"),
    ("get", "/v1/nodes/{node}/health"),
    ("get", "/v1/store"),
    ("get", "/v1/reports"),
    ("get", "/v1/live"),
    ("get", "/v1/jobs/{job_id}/live"),
    ("get", "/v1/jobs/{job_id}/history"),
    ("get", "/v1/jobs/{job_id}/summary"),
    ("get", "/v1/jobs/{job_id}/log"),
    ("get", "/v1/operator"),
    ("get", "/v1/session"),
    ("post", "/v1/session"),
    ("delete", "/v1/session"),
    ("post", "/v1/plan/burst"),
    ("get", "/metrics"),
    ("get", "/healthz"),
    ("get", "/readyz"),
];

#[test]
fn the_document_names_every_route_and_all_it_refers_to() {
    let service = Service::start();
    let text = service.client.get("/openapi.json").body;
    let typed: utoipa::openapi::OpenApi = serde_json::from_str(&text).unwrap();
    assert_eq!(typed.info.version, env!("CARGO_PKG_VERSION"));
    let document: Value = serde_json::from_str(&text).unwrap();
    for (method, path) in ROUTES {
        let operation = &document["paths"][path][method];
        assert!(operation.is_object(), "{method} {path} is not described");
        assert!(operation["summary"].is_string(), "{method} {path} has no summary");
        assert!(["200", "201", "204"].iter().any(|status| operation["responses"][status].is_object()));
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            let name = parameter["name"].as_str().unwrap();
            let place = if path.contains(&format!("{{{name}}}")) { "path" } else { "query" };
            assert_eq!(parameter["in"], place, "{method} {path}: {name}");
        }
    }
    let described: usize =
        document["paths"].as_object().unwrap().values().map(|path| path.as_object().unwrap().len()).sum();
    assert_eq!(described, ROUTES.len(), "a route is missing in ROUTES");
    let mut references = Vec::new();
    collect(&document, &mut references);
    assert!(references.len() > 20, "{references:?}");
    for reference in references {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference} does not resolve");
    }
}

/// Operations with a body, with parameters or of a job share errors.
#[test]
fn every_operation_lists_its_errors_as_problems() {
    let service = Service::start();
    let document: Value = service.client.get("/openapi.json").json();
    for (method, path) in ROUTES {
        let operation = &document["paths"][path][method];
        let responses = operation["responses"].as_object().unwrap();
        let lists = |status: &str| assert!(responses.contains_key(status), "{method} {path} lacks {status}");
        if operation["requestBody"].is_object() {
            ["400", "413", "422", "429", "503"].into_iter().for_each(lists);
        }
        if operation["parameters"].is_array() {
            lists("422");
        }
        if path.contains("{job_id}") || path == "/allocate" {
            ["307", "404", "422", "429", "503"].into_iter().for_each(lists);
        }
        for (status, response) in responses.iter().filter(|(status, _)| !status.starts_with('2')) {
            let content = response["content"].as_object().unwrap();
            assert_eq!(
                content.keys().collect::<Vec<_>>(),
                ["application/problem+json"],
                "{method} {path} {status}"
            );
        }
    }
    let lists = |path: &str, method: &str, status: &str| {
        document["paths"][path][method]["responses"][status].is_object()
    };
    for (path, method, status) in [
        ("/allocate", "post", "409"),
        ("/allocate", "post", "410"),
        ("/v1/jobs/{job_id}", "put", "409"),
        ("/v1/jobs/{job_id}/workers", "post", "409"),
        ("/v1/jobs/{job_id}/workers/{worker}/override", "put", "401"),
    ] {
        assert!(lists(path, method, status), "{method} {path} lacks {status}");
    }
    assert!(!lists("/healthz", "get", "503"), "only errors that can occur are listed");
}

/// A generator of clients or of tests reads the limits from the document.
#[test]
fn every_value_of_a_request_has_its_limits() {
    let service = Service::start();
    let document: Value = service.client.get("/openapi.json").json();
    let mut seen = Vec::new();
    for (method, path) in ROUTES {
        let operation = &document["paths"][path][method];
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            limited(
                &document,
                &parameter["schema"],
                &format!("{method} {path}: {}", parameter["name"]),
                &mut seen,
            );
        }
        let body = &operation["requestBody"]["content"]["application/json"]["schema"];
        if body.is_object() {
            limited(&document, body, &format!("{method} {path}"), &mut seen);
        }
    }
    for name in
        ["JobSpec", "WorkerReport", "NodeSample", "GpuSample", "TailReport", "WorkerOverride", "JobId"]
    {
        assert!(seen.iter().any(|schema| schema.ends_with(name)), "{name} was not reached: {seen:?}");
    }
    let field =
        |schema: &str, field: &str| document["components"]["schemas"][schema]["properties"][field].clone();
    assert_eq!(field("JobSpec", "global_batch")["maximum"], 1u64 << 31);
    assert_eq!(field("OomReport", "local_batch")["minimum"], 2);
    assert_eq!(field("WorkerReport", "drivers")["maxProperties"], 64);
}

/// Checks that integers have a minimum and a maximum, and ids a pattern.
fn limited(document: &Value, schema: &Value, at: &str, seen: &mut Vec<String>) {
    if let Some(reference) = schema["$ref"].as_str() {
        if !seen.iter().any(|schema| schema == reference) {
            seen.push(reference.to_owned());
            limited(document, document.pointer(&reference[1..]).unwrap(), reference, seen);
        }
        return;
    }
    let choices = schema["oneOf"].as_array().into_iter().chain(schema["allOf"].as_array()).flatten();
    let choices: Vec<&Value> = choices.collect();
    let types: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(all) => all.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    assert!(!types.is_empty() || !choices.is_empty(), "{at} has no type: {schema}");
    if types.contains(&"integer") {
        assert!(schema["minimum"].is_number() && schema["maximum"].is_number(), "{at}: {schema}");
    }
    if at.ends_with("Id") {
        assert!(schema["pattern"].is_string() && schema["maxLength"].is_number(), "{at}: {schema}");
    }
    choices.into_iter().for_each(|choice| limited(document, choice, at, seen));
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        limited(document, field, &format!("{at}.{name}"), seen);
    }
    if schema["items"].is_object() {
        limited(document, &schema["items"], &format!("{at}[]"), seen);
    }
}

#[test]
fn the_page_works_offline() {
    let service = Service::start();
    let page = service.client.get("/docs/");
    assert_eq!(page.status, 200);
    assert!(page.content_type.unwrap().starts_with("text/html"));
    assert!(!page.body.contains("https://"), "{}", page.body);
    // All files that the page refers to exist, and the path without the slash redirects to it.
    for file in page.body.split("\"../ui/").skip(1).filter_map(|rest| rest.split('"').next()) {
        assert_eq!(service.client.get(&format!("/ui/{file}")).status, 200, "{file}");
    }
    assert_eq!(service.client.get("/docs").status, 308);
    assert_eq!(service.client.get("/healthz").body, "ok\n");
    assert_eq!(service.client.get("/readyz").body, "ready\n");
}

fn collect<'a>(value: &'a Value, references: &mut Vec<&'a str>) {
    match value {
        Value::Object(fields) => {
            references.extend(fields.get("$ref").and_then(Value::as_str));
            fields.values().for_each(|value| collect(value, references));
        }
        Value::Array(values) => values.iter().for_each(|value| collect(value, references)),
        _ => {}
    }
}
