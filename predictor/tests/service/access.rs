//! Tokens: which client may use which route and which job.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output};
use std::time::Duration;

use evenstep_client::{Client as Trainer, ClientConfig, ClientTls, ClientTlsFiles, TokenSource};
use evenstep_predictor::access::Scope;
use evenstep_predictor::http::{Allowed, ROUTES};
use evenstep_protocol::{JobSpec, JobsView, JoinRequest, LiveView, NodesView, SessionView};
use evenstep_tests::Client;
use evenstep_tests::events::Events;
use evenstep_tests::predictor::without_settings;
use evenstep_tests::wait::until;
use serde_json::json;

use crate::support::{BINARY, Service, allocate_request, job_id, join_all, worker_id};

/// Runs `evenstep-predictor token` on a store.
pub fn token_command(store: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(BINARY);
    without_settings(&mut command).arg("token").args(arguments).arg(format!("--store={store}"));
    command.output().unwrap()
}

/// Creates a token in a store, and returns its text.
pub fn create(store: &str, scope: &str, jobs: &str) -> String {
    let output = token_command(store, &["create", &format!("--scope={scope}"), &format!("--jobs={jobs}")]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

/// The public part of a token.
pub fn id(token: &str) -> &str {
    token.split('_').nth(1).unwrap()
}

fn start(auth: &str) -> Service {
    Service::start_with(&["--refit-interval-s=86400", &format!("--auth={auth}")])
}

/// A client with a token, which works at once.
pub fn with_token(service: &Service, token: &str) -> Client {
    service.client.clone().with_token(token)
}

/// The status of a response, whose body may never end, and the type of its problem.
pub fn status(service: &Service, method: &str, path: &str, token: Option<&str>) -> (u16, String) {
    let body = body(method, path);
    let address = service.predictor.url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    let authorization = token.map_or_else(String::new, |token| format!("authorization: Bearer {token}\r\n"));
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\n\
         {authorization}content-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let status: u16 = line.split(' ').nth(1).unwrap().parse().unwrap();
    let mut rest = String::new();
    if status >= 400 {
        reader.read_to_string(&mut rest).unwrap();
    }
    let slug = rest.split("urn:evenstep:problem:").nth(1).and_then(|rest| rest.split('"').next());
    (status, slug.unwrap_or_default().to_owned())
}

/// A body that names the job `team-a/job` where a request has the job in its body.
fn body(method: &str, path: &str) -> String {
    let body = match (method, path) {
        ("POST", "/allocate") => serde_json::to_value(allocate_request("team-a/job", 0, 0)).unwrap(),
        ("POST", "/v1/plan/burst") => crate::plan::linear(&json!({"job_id": "team-a/job"})),
        ("POST" | "PUT", _) => json!({}),
        _ => return String::new(),
    };
    body.to_string()
}

/// The path of a route for the job `team-a/job`.
fn path(method: &str, route: &str) -> String {
    let path = route
        .replace("{job_id}", "team-a%2Fjob")
        .replace("{worker}", "node%2F0")
        .replace("{node}", "node")
        .replace("{name}", "report.html")
        .replace("{token_id}", "0000000000")
        .replace("{*path}", "base.css");
    if path == "/allocate" && method == "GET" {
        format!("{path}?job_id=team-a%2Fjob&iteration=0")
    } else {
        path
    }
}

/// `ROUTES` is the whole API and the page: a route that it lacks would be rejected for everyone.
#[test]
fn the_table_of_routes_is_complete() {
    let service = Service::start();
    let document: serde_json::Value = service.client.get("/openapi.json").json();
    let described = document["paths"].as_object().unwrap().iter().flat_map(|(path, methods)| {
        methods.as_object().unwrap().keys().map(move |method| (method.to_uppercase(), path.clone()))
    });
    let described: BTreeSet<(String, String)> = described.collect();
    let pages = ["/", "/docs", "/docs/", "/ui/{*path}", "/openapi.json", "/reports/{name}"];
    let table = ROUTES.iter().filter(|(_, path, _)| !pages.contains(path));
    let table: BTreeSet<_> =
        table.map(|(method, path, _)| ((*method).to_owned(), (*path).to_owned())).collect();
    assert_eq!(table, described);
    for path in pages {
        assert!(ROUTES.iter().any(|(method, of, _)| (*method, *of) == ("GET", path)), "{path}");
    }
}

#[test]
fn every_route_checks_the_token_its_scope_and_its_jobs() {
    let service = start("required");
    let store = service.store.address();
    let of_all = Scope::ALL.map(|scope| (scope, create(&store, scope.name(), "*")));
    let of_team_b = Scope::ALL
        .into_iter()
        .filter(|scope| scope.has_jobs())
        .map(|scope| (scope, create(&store, scope.name(), "team-b/*")));
    let of_team_b: Vec<(Scope, String)> = of_team_b.collect();
    let expired = create(&store, "admin", "*");
    let update = format!(
        "UPDATE token SET expires_unix_ms = 1 WHERE token_id = '{}' RETURNING token_id",
        id(&expired)
    );
    assert_eq!(service.store.rows(&update).len(), 1);
    until("the tokens are known", || {
        (status(&service, "GET", "/v1/jobs", Some(&expired)).1 == "token-expired").then_some(())
    });
    let wrong = format!("evenstep_{}_{}", id(&expired), "0".repeat(64));
    for (method, route, allowed) in ROUTES {
        let path = path(method, route);
        let denied = |token: Option<&str>| status(&service, method, &path, token);
        let (scopes, all_jobs) = match allowed {
            Allowed::Everyone => {
                for token in [None, Some(&*expired), Some(&*of_all[0].1)] {
                    let (status, slug) = denied(token);
                    // A wrong token in the body of a sign-in is another matter.
                    assert!(
                        *route == "/v1/session" || !matches!(status, 401 | 403),
                        "{method} {route}: {slug}"
                    );
                }
                continue;
            }
            Allowed::Scopes(scopes) => (scopes, false),
            Allowed::AllJobs(scopes) => (scopes, true),
        };
        assert_eq!(denied(None), (401, "token-required".to_owned()), "{method} {route}");
        assert_eq!(denied(Some(&expired)), (401, "token-expired".to_owned()), "{method} {route}");
        let (refused, slug) = denied(Some(&wrong));
        assert!(
            matches!((refused, &*slug), (401, "token-unknown") | (429, "too-many-wrong-tokens")),
            "{method} {route}: {refused} {slug}"
        );
        for (scope, token) in &of_all {
            let has_scope = *scope == Scope::Admin || scopes.contains(scope);
            let (status, slug) = denied(Some(token));
            assert_eq!(slug == "forbidden", !has_scope, "{method} {route} with {scope}: {status} {slug}");
            assert!(status != 401 && (status == 403) != has_scope, "{method} {route} with {scope}: {status}");
        }
        // The path, query or body names a job of team A.
        let has_job = route.contains("{job_id}") || matches!(*route, "/allocate" | "/v1/plan/burst");
        for (scope, token) in &of_team_b {
            let is_allowed = scopes.contains(scope) && !has_job && !all_jobs;
            let (status, slug) = denied(Some(token));
            assert_eq!(
                slug == "forbidden",
                !is_allowed,
                "{method} {route} with {scope} of team B: {status} {slug}"
            );
        }
    }
    assert_eq!(status(&service, "GET", "/unknown", None), (404, "unknown-path".to_owned()));
    // A wrong secret does not lock out others at its address.
    assert_eq!(status(&service, "GET", "/v1/jobs", Some(&of_all[1].1)).0, 200);
}

#[test]
fn a_team_sees_its_own_jobs_and_nodes_only() {
    let service = start("required");
    let store = service.store.address();
    let admin = with_token(&service, &create(&store, "admin", "*"));
    let [a, b] = ["team-a", "team-b"].map(|team| {
        let jobs = format!("{team}/*");
        let trainer = with_token(&service, &create(&store, "trainer", &jobs));
        let job = format!("{team}%2Fjob");
        assert_eq!(trainer.put(&format!("/v1/jobs/{job}"), &JobSpec::new(64)).status, 201);
        let generation = join_all_at(&trainer, &job, &format!("node-of-{team}"));
        let allocated = trainer.allocate(&allocate_request(&format!("{team}/job"), generation, 0));
        assert_eq!(allocated.status, 200, "{allocated:?}");
        let sample = json!({"at_unix_ms": 1, "readings": {"cpu_busy": 0.5}, "processes": [{"pid": 7}]});
        let node = format!("node-of-{team}");
        let batch = json!({"node": node, "boot_id": "b", "sequence": 0, "samples": [sample]});
        assert_eq!(admin.post("/v1/telemetry", &batch).status, 200);
        let viewer = with_token(&service, &create(&store, "viewer", &jobs));
        let metrics = with_token(&service, &create(&store, "metrics", &jobs));
        (trainer, viewer, metrics)
    });
    for (team, (trainer, viewer, metrics)) in [("team-a", &a), ("team-b", &b)] {
        let own = format!("{team}/job");
        let jobs: JobsView = viewer.get("/v1/jobs").json();
        assert_eq!(jobs.jobs.iter().map(|job| job.job_id.as_str()).collect::<Vec<_>>(), [&*own]);
        let nodes: NodesView = viewer.get("/v1/nodes").json();
        assert_eq!(nodes.nodes.len(), 1);
        assert_eq!(nodes.nodes[0].node.as_str(), format!("node-of-{team}"));
        assert!(nodes.nodes[0].latest.processes.is_empty() && !nodes.nodes[0].latest.readings.is_empty());
        let text = metrics.get("/metrics").body;
        assert!(text.contains(&format!("job_id=\"{own}\"")), "{text}");
        let series = text.lines().filter(|line| !line.starts_with('#'));
        series.for_each(|line| assert!(line.contains(&format!("job_id=\"{own}\"")), "{line}"));
        let other = if team == "team-a" { "team-b" } else { "team-a" };
        assert!(viewer.samples(&format!("node-of-{other}"), 10).samples.is_empty());
        assert_eq!(viewer.samples(&format!("node-of-{team}"), 10).samples.len(), 1);
        let foreign = format!("/v1/jobs/{other}%2Fjob");
        viewer.get(&foreign).problem(403, "forbidden");
        viewer.get("/v1/jobs/of-nobody").problem(403, "forbidden");
        trainer.put(&format!("{foreign}2"), &JobSpec::new(64)).problem(403, "forbidden");
        trainer.allocate(&allocate_request(&format!("{other}/job"), 2, 1)).problem(403, "forbidden");
    }
    assert_eq!(admin.get("/v1/jobs").json::<JobsView>().jobs.len(), 2);
    assert_eq!(admin.get("/v1/nodes").json::<NodesView>().nodes.len(), 2);
}

/// The stream of all jobs, with the cookie of a session as a browser sends it.
#[test]
fn a_session_of_the_page_sees_what_its_token_sees() {
    let service = start("required");
    let store = service.store.address();
    let admin = with_token(&service, &create(&store, "admin", "*"));
    for job in ["team-a%2Fjob", "team-b%2Fjob"] {
        assert_eq!(admin.put(&format!("/v1/jobs/{job}"), &JobSpec::new(64)).status, 201);
    }
    let token = create(&store, "operator", "team-a/*");
    let wrong_secret = format!("evenstep_{}_{}", id(&token), "0".repeat(64));
    for wrong in ["secret words", &wrong_secret] {
        service.client.post("/v1/session", &json!({"token": wrong})).problem(401, "token-unknown");
    }
    let failed = "SELECT actor, address, subject FROM audit WHERE action = 'session.failed' ORDER BY id";
    let subjects = ["no token: unknown".to_owned(), format!("token {}: unknown", id(&token))];
    let entry = |subject: String| vec![Some("anonymous".into()), Some("127.0.0.1".into()), Some(subject)];
    assert_eq!(service.store.rows(failed), subjects.map(entry));
    // Another thread reads the log.
    until("the log has both", || {
        let log = service.predictor.process.output();
        assert!(!log.contains("secret words"));
        (log.matches("a sign-in failed").count() == 2 && log.contains("127.0.0.1")).then_some(())
    });
    let signed_in = sign_in(&service, &token);
    assert!(signed_in.contains("; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict"), "{signed_in}");
    let cookie = signed_in.split(';').next().unwrap().to_owned();
    assert!(!cookie.contains(&token));
    let view = raw(&service, "GET", "/v1/session", &format!("cookie: other=1; {cookie}\r\n"), "");
    assert!(view.contains(r#""scopes":["operator"],"jobs":"team-a/*""#), "{view}");
    let mut events = Events::open_with(&format!("{}/v1/live", service.predictor.url), &[("cookie", &cookie)]);
    let live: LiveView = events.next_of(&["jobs"]).unwrap().json();
    assert_eq!(live.jobs.iter().map(|job| job.job_id.as_str()).collect::<Vec<_>>(), ["team-a/job"]);
    // A page of another site makes the browser send the cookie, if it is old, but also its own origin.
    let own = "/v1/jobs/team-a%2Fjob";
    for origin in ["http://evil.test", "null", "https://127.0.0.1"] {
        let answer = raw(&service, "DELETE", own, &format!("cookie: {cookie}\r\norigin: {origin}\r\n"), "");
        assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("foreign-origin"), "{answer}");
    }
    let origin = format!("cookie: {cookie}\r\norigin: {}\r\n", service.predictor.url);
    assert!(raw(&service, "DELETE", own, &origin, "").starts_with("HTTP/1.1 204"));
    let out = raw(&service, "DELETE", "/v1/session", &origin, "");
    assert!(out.starts_with("HTTP/1.1 204") && out.contains("Max-Age=0"), "{out}");
    let ended = raw(&service, "GET", "/v1/jobs", &format!("cookie: {cookie}\r\n"), "");
    assert!(ended.starts_with("HTTP/1.1 401") && ended.contains("session-ended"), "{ended}");
}

#[test]
fn the_audit_log_says_who_changed_what() {
    let mut service = start("required");
    let store = service.store.address();
    let operator_token = create(&store, "operator", "*");
    let admin_token = create(&store, "admin", "*");
    let (operator, admin) = (with_token(&service, &operator_token), with_token(&service, &admin_token));
    assert_eq!(operator.put("/v1/jobs/job", &JobSpec::new(64)).status, 201, "known at once");
    assert_eq!(operator.put("/v1/jobs/job", &JobSpec::new(32)).status, 200);
    join_all(&admin, "job", 1);
    let worker = "/v1/jobs/job/workers/node%2F0";
    assert_eq!(operator.put(&format!("{worker}/override"), &json!({"max_local_batch": 8})).status, 204);
    assert_eq!(operator.delete(worker).status, 200);
    assert_eq!(admin.delete("/v1/jobs/job").status, 204);
    // A predictor serves the store meanwhile.
    assert!(token_command(&store, &["revoke", id(&operator_token)]).status.success());
    until("the revoked token is rejected", || {
        (status(&service, "GET", "/v1/jobs", Some(&operator_token)).1 == "token-unknown").then_some(())
    });
    let shown = String::from_utf8(token_command(&store, &["audit"]).stdout).unwrap();
    let mut lines = shown.lines();
    let head: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
    assert_eq!(head, ["TIME", "ACTOR", "ADDRESS", "ACTION", "SUBJECT"]);
    let command = format!("command of uid {}", rustix::process::getuid().as_raw());
    let by = |token: &str| format!("token {}", id(token));
    let created = |token: &str, scope: &str| format!("{} (scope {scope}, jobs *)", id(token));
    let expected = [
        (command.clone(), "", "token.revoke", id(&operator_token).to_owned()),
        (by(&admin_token), "127.0.0.1", "job.delete", "job".to_owned()),
        (by(&operator_token), "127.0.0.1", "worker.delete", "node/0 of job job".to_owned()),
        (by(&operator_token), "127.0.0.1", "worker.override", "node/0 of job job: at most 8".to_owned()),
        (by(&operator_token), "127.0.0.1", "job.create", "job".to_owned()),
        (command.clone(), "", "token.create", created(&admin_token, "admin")),
        (command, "", "token.create", created(&operator_token, "operator")),
    ];
    for ((actor, address, action, subject), line) in expected.iter().zip(lines.by_ref()) {
        let words: Vec<&str> = line.split_whitespace().skip(1).collect();
        let expected = format!("{actor} {address} {action} {subject}");
        assert_eq!(words, expected.split_whitespace().collect::<Vec<_>>(), "{shown}");
    }
    assert_eq!(lines.next(), None, "{shown}");
    // Uses are stored at the end.
    service.predictor.process.terminate();
    service.predictor.process.wait();
    let used = service.store.rows("SELECT token_id FROM token WHERE last_used_unix_ms > created_unix_ms");
    assert_eq!(used, [[Some(id(&admin_token).to_owned())]]);
}

#[test]
fn commands_create_list_and_revoke_tokens() {
    let store = evenstep_tests::Store::fresh();
    // Before the first start of a predictor.
    let first = create(&store.address(), "trainer", "team-a/*");
    let listed = token_command(&store.address(), &["list"]);
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(
        listed.contains(id(&first)) && listed.contains("team-a/*") && !listed.contains(&first),
        "{listed}"
    );
    let json = token_command(&store.address(), &["list", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["tokens"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&json["tokens"][0]["token_id"], &json["tokens"][0]["scope"]),
        (&json!(id(&first)), &json!("trainer"))
    );
    let revoked = token_command(&store.address(), &["revoke", id(&first)]);
    assert!(revoked.status.success());
    let again = token_command(&store.address(), &["revoke", id(&first)]);
    let said = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(!again.status.success() && said.contains(id(&first)) && said.contains("token list"), "{said}");
    for (arguments, named) in [
        (["create", "--scope=emperor", "--jobs=*"], "emperor"),
        (["create", "--scope=agent", "--jobs=team-a/*"], "the scope agent"),
        (["create", "--scope=viewer", "--jobs=a b"], "\"a b\""),
        (["create", "--scope=viewer", "--expires=1x"], "1x"),
        (["create", "--scope=viewer", "--expires=0s"], "0s"),
        (["create", "--scope=viewer", "--note=a\nb"], "a\\nb"),
    ] {
        let output = token_command(&store.address(), &arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(named), "{said}");
    }
    let actions = store.rows("SELECT action FROM audit ORDER BY id");
    assert_eq!(actions, [[Some("token.create".to_owned())], [Some("token.revoke".to_owned())]]);
}

#[test]
fn optional_tokens_restrict_only_clients_that_send_one() {
    let service = start("optional");
    let viewer = with_token(&service, &create(&service.store.address(), "viewer", "*"));
    viewer.put("/v1/jobs/job", &JobSpec::new(64)).problem(403, "forbidden");
    assert_eq!(service.client.put("/v1/jobs/job", &JobSpec::new(64)).status, 201);
    service.client.clone().with_token("wrong").get("/v1/jobs").problem(401, "token-unknown");
}

#[test]
fn without_tokens_everyone_may_train() {
    let service = Service::start();
    let client = service.client.clone().with_token("of another predictor");
    client.put_job("job", &JobSpec::new(64));
    client.post("/v1/session", &json!({"token": "any"})).problem(409, "conflict");
    let view: SessionView = client.get("/v1/session").json();
    assert_eq!((&*view.auth, view.token_id, &*view.jobs), ("none", None, "*"));
    assert_eq!(client.delete("/v1/jobs/job").status, 204);
    let actors = service.store.rows("SELECT actor, action FROM audit ORDER BY id");
    let anonymous = |action: &str| vec![Some("anonymous".to_owned()), Some(action.to_owned())];
    assert_eq!(actors, [anonymous("job.create"), anonymous("job.delete")]);
}

#[test]
fn the_operator_token_also_protects_jobs() {
    let service = Service::start_with(&["--refit-interval-s=86400", "--operator-token=open-sesame"]);
    service.client.put_job("job", &JobSpec::new(64));
    service.client.delete("/v1/jobs/job").problem(401, "not-operator");
    let operator = service.client.clone().with_token("open-sesame");
    let guesser = service.client.clone().with_token("guess-guess");
    for _ in 0..10 {
        guesser.delete("/v1/jobs/job").problem(401, "not-operator");
    }
    let problem = operator.delete("/v1/jobs/job").problem(429, "too-many-wrong-tokens");
    assert!(problem.retry_after_s.is_some_and(|wait_s| (1..=60).contains(&wait_s)));
    service.client.put_job("job", &JobSpec::new(64));
}

/// The clients of this project read their token from the environment, and a file again when it has changed.
#[test]
fn clients_send_the_token_of_their_environment() {
    let service = start("required");
    let store = service.store.address();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    let first = create(&store, "trainer", "*");
    std::fs::write(&file, format!("{first}\n")).unwrap();
    let files = ClientTlsFiles { token: Some(TokenSource::File(file.clone())), ..ClientTlsFiles::default() };
    let config = ClientConfig {
        tls: ClientTls::load(files).unwrap(),
        request_timeout: Duration::from_secs(300),
        ..ClientConfig::default()
    };
    assert!(!format!("{config:?}").contains(&first));
    let trainer = Trainer::new(&service.predictor.url.parse().unwrap(), job_id("team-a/job"), config);
    trainer.register_job(&JobSpec::new(64)).unwrap();
    std::fs::write(&file, create(&store, "trainer", "*")).unwrap();
    assert!(token_command(&store, &["revoke", id(&first)]).status.success());
    until("the first token is revoked", || {
        (with_token(&service, &first).get("/v1/jobs").status == 401).then_some(())
    });
    trainer.join(&JoinRequest::new(worker_id(0))).unwrap();
    std::fs::write(&file, "revoked").unwrap();
    let report = |token: &str| {
        let mut command = Command::new(BINARY);
        let server = format!("--server={}", service.predictor.url);
        without_settings(&mut command)
            .args(["report", &server])
            .env("EVENSTEP_TOKEN", token)
            .output()
            .unwrap()
    };
    let listed = report(&create(&store, "viewer", "*"));
    assert_eq!(String::from_utf8_lossy(&listed.stdout), "team-a/job\n");
    let refused = report(&first);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("token") && !said.contains(&first), "{said}");
    let mut top = Command::new(BINARY);
    let once = ["top", "--once", &format!("--server={}", service.predictor.url)];
    std::fs::write(&file, create(&store, "viewer", "*")).unwrap();
    let shown = without_settings(&mut top).args(once).env("EVENSTEP_TOKEN_FILE", &file).output().unwrap();
    assert!(String::from_utf8_lossy(&shown.stdout).contains("team-a/job"), "{shown:?}");
}

/// Joins two workers of a node, and returns the generation.
fn join_all_at(client: &Client, job: &str, node: &str) -> u64 {
    (0..2).fold(0, |_, worker| client.join(job, &format!("{node}/{worker}")).generation)
}

/// Signs in to the page; returns the cookie with its attributes.
pub fn sign_in(service: &Service, token: &str) -> String {
    let answer = raw(service, "POST", "/v1/session", "", &json!({"token": token}).to_string());
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let cookie = answer.lines().find_map(|line| line.strip_prefix("set-cookie: "));
    cookie.unwrap().to_owned()
}

/// Sends a request with more headers; returns the whole response.
pub fn raw(service: &Service, method: &str, path: &str, headers: &str, body: &str) -> String {
    let address = service.predictor.url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\n\
         {headers}content-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
