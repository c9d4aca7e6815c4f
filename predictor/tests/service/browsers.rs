//! Attacks by pages of other sites, sent by the browser of a user: forged requests and DNS rebinding.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use evenstep_predictor::http::{Allowed, ROUTES};
use evenstep_protocol::{JobSpec, SignIn};
use evenstep_tests::predictor::without_settings;
use evenstep_tests::process::Process;
use evenstep_tests::{Predictor, Store};
use serde_json::json;

use crate::support::{BINARY, Service, allocate_request, join_all};

/// Headers of requests that a page of another site can cause, with the status and type of the response. `HOST` is the
/// address of the predictor.
const FORGED: [(&str, &str, u16, &str); 9] = [
    ("HOST", "content-type: text/plain\r\n", 415, "wrong-content-type"),
    ("HOST", "content-type: text/plain; charset=application/json\r\n", 415, "wrong-content-type"),
    ("HOST", "content-type: application/x-www-form-urlencoded\r\n", 415, "wrong-content-type"),
    ("HOST", "content-type: multipart/form-data; boundary=x\r\n", 415, "wrong-content-type"),
    ("HOST", "", 415, "wrong-content-type"),
    ("HOST", "content-type: application/json\r\norigin: http://evil.test\r\n", 403, "foreign-origin"),
    ("HOST", "content-type: application/json\r\norigin: null\r\n", 403, "foreign-origin"),
    ("HOST", "content-type: application/json\r\nsec-fetch-site: cross-site\r\n", 403, "foreign-origin"),
    (
        "evil.test:7117",
        "content-type: application/json\r\norigin: http://evil.test:7117\r\n",
        421,
        "foreign-host",
    ),
];

/// The head of a response, and the type of its problem. The body of a success is not read: it may be endless.
fn send(url: &str, line: &str, host: &str, headers: &str, body: &str) -> (u16, String, String) {
    let address = url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    let host = if host == "HOST" { address } else { host };
    let length = if body.is_empty() { String::new() } else { format!("content-length: {}\r\n", body.len()) };
    let request =
        format!("{line} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{length}{headers}\r\n{body}");
    stream.write_all(request.as_bytes()).unwrap();
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() == 1 {
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    let status: u16 = head.split(' ').nth(1).unwrap_or_else(|| panic!("{head:?}")).parse().unwrap();
    let mut rest = String::new();
    if status >= 400 {
        stream.read_to_string(&mut rest).unwrap();
    }
    let slug = rest.split("urn:evenstep:problem:").nth(1).and_then(|rest| rest.split('"').next());
    (status, slug.unwrap_or_default().to_owned(), head)
}

/// A predictor with tokens, a job and a worker; and the header of an admin.
fn start() -> (Service, String) {
    let service = Service::start_with(&["--refit-interval-s=86400", "--auth=optional"]);
    service.client.put_job("job", &JobSpec::new(64));
    join_all(&service.client, "job", 1);
    let mut command = Command::new(BINARY);
    let store = format!("--store={}", service.store.address());
    let output =
        without_settings(&mut command).args(["token", "create", "--scope=admin", &store]).output().unwrap();
    let token = String::from_utf8(output.stdout).unwrap();
    (service, format!("authorization: Bearer {}\r\n", token.trim_end()))
}

/// A request line and a body that would change something.
fn request(method: &str, route: &str) -> (String, String) {
    let path = route.replace("{job_id}", "job").replace("{worker}", "node%2F0").replace("{node}", "node");
    let path = path.replace("{name}", "a.html").replace("{*path}", "base.css");
    let body = match (method, route) {
        ("GET" | "DELETE", _) => String::new(),
        (_, "/v1/session") => json!(SignIn { token: "any".into() }).to_string(),
        (_, "/allocate") => json!(allocate_request("job", 1, 0)).to_string(),
        (_, "/v1/jobs/{job_id}") => json!(JobSpec::new(32)).to_string(),
        (_, "/v1/jobs/{job_id}/workers") => json!({"worker": "node/1"}).to_string(),
        (_, route) if route.ends_with("/oom") => json!({"iteration": 0, "local_batch": 2}).to_string(),
        (_, route) if route.ends_with("/override") => json!({"paused": true}).to_string(),
        (_, "/v1/plan/burst") => crate::plan::linear(&json!({"job_id": "job"})).to_string(),
        (_, "/v1/telemetry") => {
            json!({"node": "node", "boot_id": "b", "sequence": 0, "samples": [{"at_unix_ms": 1}]}).to_string()
        }
        _ => panic!("{method} {route} has no body in this test"),
    };
    (format!("{method} {path}"), body)
}

fn changes() -> impl Iterator<Item = &'static (&'static str, &'static str, Allowed)> {
    ROUTES.iter().filter(|(method, ..)| *method != "GET")
}

/// Everything that the requests could change.
fn state(service: &Service) -> Vec<String> {
    let paths = ["/v1/jobs/job", "/v1/jobs/job/workers", "/v1/jobs/job/allocations", "/v1/nodes", "/v1/jobs"];
    let mut state: Vec<String> = paths.iter().map(|path| service.client.get(path).body).collect();
    let rows = service.store.rows("SELECT actor, action, subject FROM audit ORDER BY id");
    state.push(format!("{rows:?} {:?}", service.store.rows("SELECT token_id FROM token")));
    state
}

#[test]
fn pages_of_other_sites_change_nothing() {
    let (service, admin) = start();
    let url = &service.predictor.url;
    let before = state(&service);
    for (method, route, allowed) in changes() {
        let (line, body) = request(method, route);
        for (host, headers, status, slug) in FORGED {
            // Rebound pages have no token.
            let is_rebound = status == 421;
            if is_rebound && *allowed == Allowed::Scopes(&[]) {
                continue;
            }
            let token = if is_rebound { "" } else { &admin };
            let headers = format!("{headers}{token}");
            let bodies = if *method == "DELETE" { vec!["", "{}"] } else { vec!["", body.as_str()] };
            for body in bodies {
                // Without a body, its type is of no importance. Browsers send no such request to other sites.
                if *method == "DELETE" && body.is_empty() && status == 415 {
                    continue;
                }
                let (answered, said, head) = send(url, &line, host, &headers, body);
                assert_eq!((answered, &*said), (status, slug), "{line} {headers} {body}: {head}");
                assert!(!head.contains("set-cookie"), "{head}");
            }
        }
    }
    assert_eq!(state(&service), before);
    // The same requests of the own page.
    let own = format!(
        "content-type: Application/JSON; charset=utf-8\r\norigin: {url}\r\nsec-fetch-site: same-origin\r\n{admin}"
    );
    for (method, route, _) in changes() {
        let (line, body) = request(method, route);
        let (status, slug, _) = send(url, &line, "HOST", &own, &body);
        assert!(!matches!(status, 403 | 415 | 421), "{line}: {status} {slug}");
    }
    assert_ne!(state(&service), before);
}

/// The requests of a page whose name was rebound to the predictor's address have no token of the predictor.
#[test]
fn pages_of_other_names_read_nothing() {
    let (service, admin) = start();
    let url = &service.predictor.url;
    for (method, route, _) in ROUTES.iter().filter(|(method, ..)| *method == "GET") {
        let (mut line, _) = request(method, route);
        if *route == "/allocate" {
            line += "?job_id=job&iteration=0";
        }
        let is_probe = matches!(*route, "/healthz" | "/readyz");
        for host in ["evil.test:7117", "evil.test", "localhost.evil.test", "127.0.0.1.evil.test", ""] {
            for token in ["", "cookie: evenstep_theme=dark\r\n"] {
                let (status, slug, _) = send(url, &line, host, token, "");
                let expected = if is_probe { "" } else { "foreign-host" };
                assert_eq!(slug, expected, "{line} at {host:?}: {status}");
            }
            let (status, slug, _) = send(url, &line, host, &admin, "");
            assert!(status != 421 && status != 403, "{line} at {host:?} with a token: {status} {slug}");
        }
        for host in ["HOST", "localhost:1", "[::1]:7117", "192.0.2.7", "predictor.test"] {
            let (status, slug, _) = send(url, &line, host, "", "");
            assert_ne!(status, 421, "{line} at {host}: {slug}");
        }
    }
}

/// A proxy may read the first of two names, and the predictor the second.
#[test]
fn a_request_with_two_hosts_is_malformed() {
    let (service, admin) = start();
    let before = state(&service);
    for (method, route, _) in ROUTES {
        let (line, body) = request(method, route);
        for headers in ["host: localhost\r\n".to_owned(), format!("host: HOST\r\n{admin}")] {
            let headers = format!("content-type: application/json\r\n{headers}");
            let (status, slug, _) = send(&service.predictor.url, &line, "localhost", &headers, &body);
            assert_eq!((status, slug.as_str()), (400, "malformed"), "{line}");
        }
    }
    assert_eq!(state(&service), before);
}

#[test]
fn no_page_of_another_site_is_allowed_to_read_responses() {
    let (service, _) = start();
    let url = &service.predictor.url;
    let origin = "origin: http://evil.test\r\naccess-control-request-headers: content-type\r\n";
    for (method, route, _) in ROUTES {
        let (line, _) = request(method, route);
        let path = line.split(' ').nth(1).unwrap();
        let asked = format!("{origin}access-control-request-method: {method}\r\n");
        let (status, _, head) = send(url, &format!("OPTIONS {path}"), "HOST", &asked, "");
        assert!(status >= 400 && !head.contains("access-control"), "{head}");
        if *method == "GET" {
            let (_, _, head) = send(url, &line, "HOST", origin, "");
            assert!(!head.contains("access-control"), "{head}");
        }
    }
}

/// The status of a list of jobs, for a client that uses this name.
fn at(url: &str, host: &str) -> u16 {
    send(url, "GET /v1/jobs", host, "", "").0
}

#[test]
fn operators_allow_more_names() {
    let store = Store::fresh();
    let start = |flags: &[&str]| Predictor::start_over(Path::new(BINARY), &store.address(), flags);
    let mut predictor =
        start(&["--allow-host=predictor.example,other.example", "--allow-host=third.example"]);
    for name in ["predictor.example:7117", "other.example", "THIRD.example."] {
        assert_eq!(at(&predictor.url, name), 200, "{name}");
    }
    assert_eq!(at(&predictor.url, "fourth.example"), 421);
    // On a loopback address, a name without a dot could be someone's in the local network.
    assert_eq!(at(&predictor.url, "predictor:7117"), 421);
    predictor.process.kill();
    let mut predictor = start(&[]);
    predictor.process.kill();
    predictor.set_environment("EVENSTEP_ALLOW_HOSTS", "predictor.example, other.example");
    predictor.restart();
    assert_eq!((at(&predictor.url, "other.example"), at(&predictor.url, "third.example")), (200, 421));
    predictor.process.kill();
    // If every client needs a token, no name is foreign: the page can be opened to sign in.
    let mut predictor = start(&["--auth=required"]);
    assert_eq!(send(&predictor.url, "GET /", "predictor.example", "", "").0, 200);
    assert_eq!(at(&predictor.url, "predictor.example"), 401);
    predictor.process.kill();
    let mut command = Command::new(BINARY);
    let wrong = ["serve", "--listen=127.0.0.1:0", "--allow-host=http://predictor.example:7117"];
    let output = without_settings(&mut command).args(wrong).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("without scheme and port"), "{said}");
}

/// In a network of containers, clients use names of services.
#[test]
fn names_of_the_local_network_work_if_it_can_connect() {
    let store = Store::fresh();
    let mut command = Command::new(BINARY);
    let flags =
        ["serve", "--listen=0.0.0.0:0", "--insecure-listen", "--url=http://192.0.2.1:7117", "--log=warn"];
    let store = format!("--store={}", store.address());
    let process = Process::start(without_settings(&mut command).args(flags).arg(store));
    let url = process.line("its address", |line| Some(line.strip_prefix("listening on ")?.to_owned()));
    let url = url.replace("0.0.0.0", "127.0.0.1");
    for name in ["predictor:7117", "evenstep.default.svc.cluster.local", "host.docker.internal:7117"] {
        assert_eq!(at(&url, name), 200, "{name}");
    }
    for name in ["evil.test", "predictor.evil.test:7117", "predictor.example"] {
        assert_eq!(at(&url, name), 421, "{name}");
    }
}
