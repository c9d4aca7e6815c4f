//! The page and reports over HTTP: content types, policies, caching, and rejected paths.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use evenstep_protocol::ReportsView;
use ureq::Agent;
use ureq::http::{HeaderMap, StatusCode};

use crate::support::Service;

/// Status, headers and body of a `GET`.
fn get(url: &str, if_none_match: Option<&str>) -> (StatusCode, HeaderMap, String) {
    let agent: Agent = Agent::config_builder().http_status_as_error(false).build().into();
    let mut request = agent.get(url);
    if let Some(tag) = if_none_match {
        request = request.header("if-none-match", tag);
    }
    let mut answer = request.call().unwrap();
    (answer.status(), answer.headers().clone(), answer.body_mut().read_to_string().unwrap())
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).unwrap_or_else(|| panic!("no {name}: {headers:?}")).to_str().unwrap()
}

#[test]
fn the_page_and_its_files_are_served_with_their_types_and_a_strict_policy() {
    let service = Service::start();
    let url = &service.predictor.url;
    for (path, content_type) in [
        ("/", "text/html; charset=utf-8"),
        ("/ui/main.js", "text/javascript; charset=utf-8"),
        ("/ui/views/job.js", "text/javascript; charset=utf-8"),
        ("/ui/base.css", "text/css; charset=utf-8"),
        ("/ui/charts/line.js", "text/javascript; charset=utf-8"),
        ("/ui/charts/uplot/uPlot.iife.min.js", "text/javascript; charset=utf-8"),
        ("/ui/mark.svg", "image/svg+xml"),
    ] {
        let (status, headers, body) = get(&format!("{url}{path}"), None);
        assert_eq!(status, StatusCode::OK, "{path}");
        assert_eq!(header(&headers, "content-type"), content_type);
        assert_eq!(header(&headers, "x-content-type-options"), "nosniff");
        assert_eq!(header(&headers, "cache-control"), "no-cache");
        let policy = header(&headers, "content-security-policy");
        assert!(policy.contains("default-src 'none'") && policy.contains("script-src 'self';"), "{policy}");
        assert!(!policy.contains("unsafe") && !policy.contains('*') && !policy.contains("http"), "{policy}");
        assert!(!body.is_empty());
        // A file that the browser has cached is not sent again.
        let tag = header(&headers, "etag");
        let (status, again, body) = get(&format!("{url}{path}"), Some(tag));
        assert_eq!(
            (status, header(&again, "etag"), body.as_str()),
            (StatusCode::NOT_MODIFIED, tag, ""),
            "{path}"
        );
        let (status, _, _) = get(&format!("{url}{path}"), Some("\"another\""));
        assert_eq!(status, StatusCode::OK, "{path}");
    }
    service.client.get("/ui/none.js").problem(404, "unknown-path");
    service.client.get("/ui/../main.rs").problem(404, "unknown-path");
}

#[test]
fn without_a_folder_there_are_no_reports() {
    let service = Service::start();
    assert_eq!(service.client.get("/v1/reports").json::<ReportsView>().reports, None);
    service.client.get("/reports/a.html").problem(404, "unknown-report");
}

#[test]
fn reports_are_those_of_the_folder_and_nothing_else() {
    let around = tempfile::tempdir().unwrap();
    let folder = around.path().join("reports");
    fs::create_dir(&folder).unwrap();
    fs::write(around.path().join("secret.html"), "secret").unwrap();
    fs::write(folder.join("a b.html"), "<p>report").unwrap();
    fs::write(folder.join("notes.txt"), "notes").unwrap();
    let service = Service::start_with(&[&format!("--reports={}", folder.display())]);
    let listed = service.client.get("/v1/reports").json::<ReportsView>().reports.unwrap();
    let names: Vec<(&str, u64)> = listed.iter().map(|report| (report.name.as_str(), report.bytes)).collect();
    assert_eq!(names, [("a b.html", 9)]);

    let (status, headers, body) = get(&format!("{}/reports/a%20b.html", service.predictor.url), None);
    assert_eq!((status, body.as_str()), (StatusCode::OK, "<p>report"));
    assert_eq!(header(&headers, "content-type"), "text/html; charset=utf-8");
    assert_eq!(header(&headers, "x-content-type-options"), "nosniff");
    let policy = header(&headers, "content-security-policy");
    assert!(
        policy.starts_with("sandbox allow-scripts;") && !policy.contains("allow-same-origin"),
        "{policy}"
    );

    // Paths that no well-behaved client sends.
    for path in [
        "/reports/../secret.html",
        "/reports/..%2fsecret.html",
        "/reports/%2e%2e%2fsecret.html",
        "/reports/..%5csecret.html",
        "/reports/notes.txt",
        "/reports/none.html",
        "/reports/%00.html",
        "/reports//etc/passwd",
    ] {
        let answer = raw(&service.predictor.url, path);
        assert!(answer.starts_with("HTTP/1.1 404"), "{path}: {answer}");
        assert!(!answer.ends_with("secret"), "{path}: {answer}");
    }
}

#[test]
fn a_missing_folder_is_reported_at_startup() {
    let output = std::process::Command::new(crate::support::BINARY)
        .args(["serve", "--listen=127.0.0.1:0", "--store=sqlite://unused.db", "--reports=/nowhere/at/all"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("reports: /nowhere/at/all: no such folder"), "{said}");
}

/// Sends a request whose path is not normalized.
fn raw(url: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(url.strip_prefix("http://").unwrap()).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
