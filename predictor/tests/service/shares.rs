//! Two teams on one predictor: streams end with their token, and every token leaves room for others.

use std::io::{Read, Write};
use std::net::TcpStream;

use evenstep_protocol::{JobSpec, JobsView};
use evenstep_tests::events::Events;
use evenstep_tests::wait::until;
use serde_json::json;

use crate::access::{create, id, raw, sign_in, status, token_command, with_token};
use crate::support::{Service, allocate_request};
use crate::telemetry::batch;

/// Bytes of bodies of which a token may hold half.
const BODIES_BYTES: usize = 64 << 20;
const BODY_BYTES_MAX: usize = 8 << 20;

fn start() -> Service {
    Service::start_with(&["--refit-interval-s=86400", "--auth=required"])
}

#[test]
fn streams_end_with_the_right_of_their_client() {
    let service = start();
    let store = service.store.address();
    let [trainer, stays, revoked, expired, signs_out] =
        ["trainer", "viewer", "viewer", "viewer", "viewer"].map(|scope| create(&store, scope, "team-a/*"));
    let job = "/v1/jobs/team-a%2Fjob";
    let trainer = with_token(&service, &trainer);
    assert_eq!(trainer.put(job, &JobSpec::new(64)).status, 201);
    let generation = trainer.join("team-a%2Fjob", "node/0").generation;
    let cookie = |token: &str| sign_in(&service, token).split(';').next().unwrap().to_owned();
    let bearer = |token: &str| ("authorization", format!("Bearer {token}"));
    let kept = cookie(&stays);
    let (of_revoked, of_sign_out) = (cookie(&revoked), cookie(&signs_out));
    let open = |(name, value): &(&str, String)| {
        let path = |path| format!("{}{path}", service.predictor.url);
        [path("/v1/live"), path(&format!("{job}/live"))].map(|url| Events::open_with(&url, &[(name, value)]))
    };
    let stay = [bearer(&stays), ("cookie", kept)];
    let end = [bearer(&revoked), bearer(&expired), ("cookie", of_revoked), ("cookie", of_sign_out.clone())];
    let mut staying: Vec<Events> = stay.iter().flat_map(open).collect();
    let ending: Vec<Events> = end.iter().flat_map(open).collect();
    assert!(token_command(&store, &["revoke", id(&revoked)]).status.success());
    let expire = format!("UPDATE token SET expires_unix_ms = 1 WHERE token_id = '{}'", id(&expired));
    service.store.rows(&format!("{expire} RETURNING token_id"));
    let origin = format!("cookie: {of_sign_out}\r\norigin: {}\r\n", service.predictor.url);
    assert!(raw(&service, "DELETE", "/v1/session", &origin, "").starts_with("HTTP/1.1 204"));
    for mut stream in ending {
        while stream.next().is_some() {}
    }
    // The others continue: they show the next events.
    assert_eq!(trainer.allocate(&allocate_request("team-a/job", generation, 0)).status, 200);
    trainer.leave("team-a%2Fjob", "node/0");
    for stream in &mut staying {
        assert!(stream.any(|event| event.data.contains("node/0 left") || event.data.contains("finished")));
    }
}

#[test]
fn one_team_leaves_room_for_another() {
    let service = start();
    let store = service.store.address();
    let [admin, a, b] = [("admin", "*"), ("viewer", "team-a/*"), ("viewer", "team-b/*")]
        .map(|(scope, jobs)| create(&store, scope, jobs));
    // Streams.
    let live = |token: &str| status(&service, "GET", "/v1/live", Some(token));
    let (url, authorization) = (format!("{}/v1/live", service.predictor.url), format!("Bearer {b}"));
    let streams: Vec<Events> =
        (0..128).map(|_| Events::open_with(&url, &[("authorization", &authorization)])).collect();
    let refused = with_token(&service, &b).get("/v1/live");
    assert_eq!(refused.retry_after.as_deref(), Some("1"));
    let detail = refused.problem(429, "busy").detail;
    assert!(detail.contains(&format!("{} holds 128 of 256 streams", id(&b))), "{detail}");
    assert_eq!(live(&a).0, 200, "its own half is free");
    drop(streams);
    until("the places are free again", || (live(&b).0 == 200).then_some(()));
    // Sessions.
    let cookie = |token: &str| sign_in(&service, token).split(';').next().unwrap().to_owned();
    let session = cookie(&admin);
    let first = cookie(&b);
    for _ in 0..1001 {
        assert_eq!(service.client.post("/v1/session", &json!({"token": b})).status, 200);
    }
    let jobs = |cookie: &str| raw(&service, "GET", "/v1/jobs", &format!("cookie: {cookie}\r\n"), "");
    assert!(jobs(&session).starts_with("HTTP/1.1 200"), "the session of another token");
    assert!(jobs(&first).starts_with("HTTP/1.1 401"), "its own oldest one has ended");
    assert!(with_token(&service, &a).get("/v1/jobs").json::<JobsView>().jobs.is_empty());
}

#[test]
fn bodies_of_one_token_leave_memory_for_those_of_another() {
    let service = start();
    let store = service.store.address();
    let [one, other, scraper] = ["agent", "agent", "metrics"].map(|scope| create(&store, scope, "*"));
    let almost = vec![b' '; BODY_BYTES_MAX - 1];
    let sending: Vec<TcpStream> = (0..BODIES_BYTES / 2 / BODY_BYTES_MAX)
        .map(|_| {
            let address = service.predictor.url.strip_prefix("http://").unwrap();
            let mut stream = TcpStream::connect(address).unwrap();
            let head = format!(
                "POST /v1/telemetry HTTP/1.1\r\nhost: {address}\r\nexpect: 100-continue\r\n\
                 authorization: Bearer {one}\r\ncontent-type: application/json\r\ncontent-length: {BODY_BYTES_MAX}\r\n\r\n"
            );
            stream.write_all(head.as_bytes()).unwrap();
            let mut answer = [0; "HTTP/1.1 100 Continue\r\n\r\n".len()];
            stream.read_exact(&mut answer).unwrap();
            assert!(answer.starts_with(b"HTTP/1.1 100"), "{answer:?}");
            stream.write_all(&almost).unwrap();
            stream
        })
        .collect();
    let send = |token: &str| with_token(&service, token).post("/v1/telemetry", &batch("node", "boot", 0, 10));
    // A request before would take bytes that the bodies need.
    until("the service has read the bodies", || {
        let held = format!("evenstep_http_body_bytes{{kind=\"telemetry\"}} {}", BODIES_BYTES / 2);
        with_token(&service, &scraper).get("/metrics").body.contains(&held).then_some(())
    });
    let detail = send(&one).problem(429, "busy").detail;
    assert!(detail.contains(&format!("{} of {BODIES_BYTES} bytes", BODIES_BYTES / 2)), "{detail}");
    assert_eq!(send(&other).status, 200, "its own share is free");
    drop(sending);
    until("telemetry is accepted again", || (send(&one).status == 200).then_some(()));
}
