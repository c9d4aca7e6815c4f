//! The API description, as a document and as a page.

use serde_json::Value;

use crate::support::Service;

/// Methods and paths of the contract.
const ROUTES: [(&str, &str); 29] = [
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
    ("get", "/v1/store"),
    ("get", "/v1/reports"),
    ("get", "/v1/live"),
    ("get", "/v1/jobs/{job_id}/live"),
    ("get", "/v1/jobs/{job_id}/history"),
    ("get", "/v1/jobs/{job_id}/log"),
    ("get", "/v1/operator"),
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
        assert!(operation["responses"]["200"].is_object() || operation["responses"]["204"].is_object());
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
