//! Failover between several predictors, over real connections to scripted servers.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use evenstep_client::{Client, ClientConfig, Error, ErrorKind};
use evenstep_protocol::{JobId, JobSpec, Problem};

/// Longer than any healthy request takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a server does with a request.
#[derive(Clone)]
enum Does {
    /// Answers with this status, these headers and this body.
    Answers(u16, String, String),
    /// Reads the request and closes the connection.
    Hangs,
    /// Reads the request and never answers.
    Sleeps,
}

/// A server on a port of its own that does one thing after the other, and the last of them for ever.
struct Scripted {
    url: String,
    script: Arc<Mutex<VecDeque<Does>>>,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Scripted {
    fn start(script: impl IntoIterator<Item = Does>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let heard = Arc::<Mutex<Vec<String>>>::default();
        let script = Arc::new(Mutex::new(script.into_iter().collect::<VecDeque<_>>()));
        let (does, told) = (Arc::clone(&script), Arc::clone(&heard));
        // Ends with the test's process.
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let (does, told) = (Arc::clone(&does), Arc::clone(&told));
                thread::spawn(move || while let Some(()) = turn(&connection, &does, &told) {});
            }
        });
        Self { url, script, heard }
    }

    /// Does this next.
    fn does(&self, does: Does) {
        self.script.lock().unwrap().push_back(does);
    }

    fn answering() -> Self {
        Self::start([answers()])
    }

    /// Requests since the last call: method, path and body.
    fn heard(&self) -> Vec<String> {
        std::mem::take(&mut *self.heard.lock().unwrap())
    }
}

/// Reads one request and does what comes next; none where the connection is over.
fn turn(mut connection: &TcpStream, script: &Mutex<VecDeque<Does>>, told: &Mutex<Vec<String>>) -> Option<()> {
    let mut reader = BufReader::new(connection);
    let (mut first, mut line, mut length) = (String::new(), String::new(), 0);
    reader.read_line(&mut first).ok().filter(|&count| count > 0)?;
    while reader.read_line(&mut line).ok()? > 2 {
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        line.clear();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let request = first.trim_end().trim_end_matches(" HTTP/1.1");
    told.lock().unwrap().push(format!("{request} {}", String::from_utf8(body).unwrap()));
    let mut script = script.lock().unwrap();
    let does = if script.len() > 1 { script.pop_front() } else { script.front().cloned() };
    drop(script);
    match does? {
        Does::Answers(status, headers, body) => {
            let length = body.len();
            let answer = format!("HTTP/1.1 {status} X\r\n{headers}content-length: {length}\r\n\r\n{body}");
            connection.write_all(answer.as_bytes()).ok()
        }
        Does::Hangs => None,
        Does::Sleeps => loop {
            thread::park();
        },
    }
}

/// The answer to a PUT of a job: anything.
fn answers() -> Does {
    Does::Answers(200, String::new(), "{}".to_owned())
}

fn refuses(status: u16, slug: &str) -> Does {
    let kind = format!("{}{slug}", Problem::TYPE_PREFIX);
    let problem = serde_json::json!({"type": kind, "title": slug, "status": status, "detail": "d"});
    Does::Answers(status, "retry-after: 1\r\n".to_owned(), problem.to_string())
}

fn points_to(url: &str) -> Does {
    Does::Answers(307, format!("location: {url}/v1/jobs/job\r\n"), String::new())
}

/// An address where nobody listens.
fn nobody() -> String {
    format!("http://{}", TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap())
}

fn client(servers: &[&str], timeout: Duration) -> Client {
    let config = ClientConfig { request_timeout: timeout, ..ClientConfig::default() };
    Client::new(&servers.join(",").parse().unwrap(), JobId::new("job").unwrap(), config)
}

fn register(client: &Client) -> Result<(), Error> {
    client.register_job(&JobSpec::new(8))
}

#[test]
fn a_closed_port_is_unreachable() {
    let client = client(&[&nobody()], Duration::from_millis(250));
    let started = Instant::now();
    let told = register(&client).unwrap_err();
    assert!(matches!(&told.kind, ErrorKind::Unreachable(why) if !why.contains("http://")), "{told}");
    assert!(started.elapsed() < PATIENCE);
}

#[test]
fn the_next_server_is_tried_at_once_and_first_from_then_on() {
    for first in [
        vec![Does::Hangs],
        vec![refuses(503, "draining")],
        vec![refuses(503, "store-failed")],
        vec![Does::Answers(502, String::new(), "<html>".to_owned())],
    ] {
        let (a, b) = (Scripted::start(first), Scripted::answering());
        let client = client(&[&a.url, &b.url], PATIENCE);
        assert_eq!(register(&client), Ok(()));
        let said = "PUT /v1/jobs/job {\"global_batch\":8,";
        let (a_heard, b_heard) = (a.heard(), b.heard());
        assert_eq!((a_heard.len(), &a_heard), (1, &b_heard), "the same request");
        assert!(a_heard[0].starts_with(said), "{a_heard:?}");
        assert_eq!(register(&client.clone()), Ok(()));
        assert_eq!((a.heard().len(), b.heard().len()), (0, 1));
    }
    let b = Scripted::answering();
    assert_eq!(register(&client(&[&nobody(), &b.url], PATIENCE)), Ok(()));
}

/// One that takes the request and says nothing takes no more than its part of the time.
#[test]
fn a_server_that_sleeps_leaves_time_for_the_next() {
    let (a, b) = (Scripted::start([Does::Sleeps]), Scripted::answering());
    let client = client(&[&a.url, &b.url], Duration::from_secs(4));
    let started = Instant::now();
    assert_eq!(register(&client), Ok(()));
    assert!(started.elapsed() >= Duration::from_secs(2), "half of the time was its own");
    assert_eq!((a.heard().len(), b.heard().len()), (1, 1));
}

/// What a server says of the job, every other one would say too.
#[test]
fn an_answer_is_an_answer() {
    for (does, silent) in [
        (refuses(422, "invalid"), false),
        (refuses(429, "busy"), true),
        (refuses(503, "paused"), true),
        (refuses(503, "cooling-down"), true),
        (refuses(500, "internal"), true),
    ] {
        let (a, b) = (Scripted::start([does]), Scripted::answering());
        let told = register(&client(&[&a.url, &b.url], PATIENCE)).unwrap_err();
        assert_eq!(matches!(told.kind, ErrorKind::Unreachable(_)), silent, "{told}");
        assert_eq!((a.heard().len(), b.heard().len()), (1, 0), "{told}");
    }
}

#[test]
fn the_owner_of_the_job_is_followed_remembered_and_left_when_it_dies() {
    let owner = Scripted::start([answers(), answers(), Does::Hangs]);
    let a = Scripted::start([points_to(&owner.url), points_to(&owner.url), answers()]);
    let client = client(&[&a.url], PATIENCE);
    assert_eq!(register(&client), Ok(()));
    assert_eq!(a.heard(), owner.heard(), "the same request, body and all");
    assert_eq!(register(&client), Ok(()));
    assert_eq!((a.heard().len(), owner.heard().len()), (0, 1));
    // It dies; the list still points to it at first, and then takes the job over.
    assert_eq!(register(&client), Ok(()));
    assert_eq!((a.heard().len(), owner.heard().len()), (2, 1));
    assert_eq!(register(&client), Ok(()));
    assert_eq!((a.heard().len(), owner.heard().len()), (1, 0));
}

#[test]
fn a_ring_of_owners_ends_with_an_error() {
    let (a, b) = (Scripted::start([]), Scripted::start([]));
    a.does(points_to(&b.url));
    b.does(points_to(&a.url));
    let told = register(&client(&[&a.url], PATIENCE)).unwrap_err();
    assert!(matches!(&told.kind, ErrorKind::Unreachable(why) if why.contains("exceeds the limit")), "{told}");
    let looks = ClientConfig::default().handover_attempts_max as usize + 1;
    assert_eq!((a.heard().len(), b.heard().len()), (2 * looks, 2 * looks), "three hops each time");
}
