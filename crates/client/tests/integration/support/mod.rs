//! A server that follows a script.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use evenstep_protocol::Problem;

/// Behavior of a server for a request.
#[derive(Clone)]
pub enum Action {
    /// Responds with this status, these headers and this body.
    Answers(u16, String, String),
    /// Reads the request and closes the connection.
    ClosesConnection,
    /// Reads the request and never responds.
    NeverResponds,
    /// Sends this text and nothing more.
    StopsAfter(&'static str),
}

/// A server on a separate port that follows the steps of a script and repeats the last one.
pub struct Scripted {
    pub url: String,
    script: Arc<Mutex<VecDeque<Action>>>,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Scripted {
    pub fn start(script: impl IntoIterator<Item = Action>) -> Self {
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

    /// Appends to the script.
    pub fn does(&self, does: Action) {
        self.script.lock().unwrap().push_back(does);
    }

    /// Removes the step that is repeated because it was the last one.
    pub fn skip(&self) {
        self.script.lock().unwrap().pop_front();
    }

    /// Returns a server that responds to every request.
    pub fn responding() -> Self {
        Self::start([responds()])
    }

    /// Returns the requests since the last call: method, path and body.
    pub fn heard(&self) -> Vec<String> {
        std::mem::take(&mut *self.heard.lock().unwrap())
    }
}

/// Reads one request and takes the next step. Returns `None` if the connection is closed.
fn turn(
    mut connection: &TcpStream,
    script: &Mutex<VecDeque<Action>>,
    told: &Mutex<Vec<String>>,
) -> Option<()> {
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
        Action::Answers(status, headers, body) => {
            let length = body.len();
            let answer = format!("HTTP/1.1 {status} X\r\n{headers}content-length: {length}\r\n\r\n{body}");
            connection.write_all(answer.as_bytes()).ok()
        }
        Action::ClosesConnection => None,
        Action::NeverResponds => loop {
            thread::park();
        },
        Action::StopsAfter(text) => {
            connection.write_all(text.as_bytes()).ok()?;
            loop {
                thread::park();
            }
        }
    }
}

/// Returns the response to a PUT of a job, with arbitrary content.
pub fn responds() -> Action {
    Action::Answers(200, String::new(), "{}".to_owned())
}

pub fn rejects(status: u16, slug: &str) -> Action {
    let kind = format!("{}{slug}", Problem::TYPE_PREFIX);
    let problem = serde_json::json!({"type": kind, "title": slug, "status": status, "detail": "d"});
    Action::Answers(status, "retry-after: 1\r\n".to_owned(), problem.to_string())
}

/// Returns a response with this JSON body.
pub fn json(body: &serde_json::Value) -> Action {
    Action::Answers(200, String::new(), body.to_string())
}

/// Returns an address without a server.
pub fn nobody() -> String {
    format!("http://{}", TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap())
}
