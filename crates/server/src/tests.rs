use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::task::JoinHandle;

use super::{Connections, Limits, Options, Tls, serve};

mod tls;

const REQUEST: &str = "GET /quick HTTP/1.1\r\nhost: test\r\n\r\n";
const SLOW_REQUEST: &str = "GET /slow HTTP/1.1\r\nhost: test\r\n\r\n";
const FOREVER: Duration = Duration::from_secs(3600);

struct Server {
    runtime: Runtime,
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<()>,
    connections: Connections,
    /// Notified when a slow request has begun.
    begun: Arc<Notify>,
    /// Each permit ends a slow request.
    go_on: Arc<Semaphore>,
}

impl Server {
    fn start(limits: Limits) -> Self {
        Self::start_with(limits, None)
    }

    fn start_with(limits: Limits, tls: Option<Tls>) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let (begun, go_on) = (Arc::new(Notify::new()), Arc::new(Semaphore::new(0)));
        let slow = {
            let (begun, go_on) = (begun.clone(), go_on.clone());
            async move || {
                begun.notify_one();
                go_on.acquire().await.unwrap().forget();
                "slow"
            }
        };
        let router = Router::new().route("/quick", get(async || "quick")).route("/slow", get(slow));
        let (stop, stopped) = oneshot::channel();
        let options = Options { tls, ..Options::new(limits) };
        let connections = options.connections.clone();
        let serving = runtime.spawn(serve(listener, router, options, async {
            let _ = stopped.await;
        }));
        Self { runtime, address, stop, serving, connections, begun, go_on }
    }

    /// A connection that has sent `text`.
    fn send(&self, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        stream
    }

    fn begin_slow(&self) -> TcpStream {
        let stream = self.send(SLOW_REQUEST);
        self.runtime.block_on(self.begun.notified());
        stream
    }

    fn stop(self) {
        self.stop.send(()).unwrap();
        self.runtime.block_on(self.serving).unwrap();
    }
}

/// Limits without deadlines, for tests that set one of them.
fn limits(connections: usize) -> Limits {
    Limits {
        per_address: connections,
        headers: FOREVER,
        idle: FOREVER,
        drain: FOREVER,
        ..Limits::new(connections)
    }
}

fn ask(stream: &mut (impl Read + Write)) -> String {
    stream.write_all(REQUEST.as_bytes()).unwrap();
    let mut answer = [0; 512];
    let mut length = 0;
    while !answer[..length].ends_with(b"quick") {
        let read = stream.read(&mut answer[length..]).unwrap();
        assert!(read > 0, "closed after {:?}", String::from_utf8_lossy(&answer[..length]));
        length += read;
    }
    String::from_utf8_lossy(&answer[..length]).into_owned()
}

/// Whether the server closed the connection, after any response.
fn is_closed(stream: &mut TcpStream) -> bool {
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).map_or(true, |_| true)
}

#[test]
fn half_sent_headers_are_closed_and_idle_connections_stay() {
    let server = Server::start(Limits { headers: Duration::from_millis(1), ..limits(8) });
    let mut idle = TcpStream::connect(server.address).unwrap();
    assert!(is_closed(&mut server.send("GET /quick HTTP/1.1\r\nhos")));
    assert!(ask(&mut idle).starts_with("HTTP/1.1 200"));
    assert!(ask(&mut idle).starts_with("HTTP/1.1 200"), "the connection is kept");
    server.stop();
}

#[test]
fn idle_connections_are_closed_also_after_a_request() {
    let server = Server::start(Limits { idle: Duration::from_millis(1), ..limits(8) });
    let mut unused = TcpStream::connect(server.address).unwrap();
    assert!(is_closed(&mut unused));
    assert!(is_closed(&mut server.send(REQUEST)));
    let mut slow = server.begin_slow();
    assert!(is_closed(&mut TcpStream::connect(server.address).unwrap()), "deadlines were checked meanwhile");
    server.go_on.add_permits(1);
    let mut response = String::new();
    slow.read_to_string(&mut response).unwrap();
    assert!(response.ends_with("slow"), "a connection that serves a request is not idle: {response}");
    server.stop();
}

#[test]
fn at_the_limit_the_longest_idle_connection_makes_room() {
    let server = Server::start(limits(3));
    let [mut first, mut second, mut third] = [(); 3].map(|()| TcpStream::connect(server.address).unwrap());
    let mut fourth = TcpStream::connect(server.address).unwrap();
    ask(&mut fourth);
    assert!(is_closed(&mut first));
    let mut fifth = TcpStream::connect(server.address).unwrap();
    ask(&mut fifth);
    assert!(is_closed(&mut second));
    ask(&mut third);
    assert_eq!((server.connections.open(), server.connections.refused()), (3, 0));
    server.stop();
}

#[test]
fn a_half_sent_request_makes_room() {
    let server = Server::start(limits(1));
    let mut half = server.send("GET");
    ask(&mut TcpStream::connect(server.address).unwrap());
    assert!(is_closed(&mut half));
    server.stop();
}

#[test]
fn connections_that_serve_requests_are_never_closed_for_others() {
    let server = Server::start(limits(2));
    let mut slow = [server.begin_slow(), server.begin_slow()];
    assert!(is_closed(&mut TcpStream::connect(server.address).unwrap()), "no room");
    assert_eq!(server.connections.refused(), 1);
    server.go_on.add_permits(2);
    for stream in &mut slow {
        let mut response = [0; 12];
        stream.read_exact(&mut response).unwrap();
        assert_eq!(&response, b"HTTP/1.1 200");
    }
    server.stop();
}

#[test]
fn an_address_has_a_share() {
    let server = Server::start(Limits { per_address: 1, ..limits(8) });
    let _slow = server.begin_slow();
    assert!(is_closed(&mut TcpStream::connect(server.address).unwrap()));
    server.go_on.add_permits(2);
    server.stop();
}

#[test]
fn a_shutdown_finishes_requests_and_waits_for_nothing_else() {
    let server = Server::start(limits(8));
    let (mut idle, mut half, mut slow) = (
        TcpStream::connect(server.address).unwrap(),
        server.send("GET /quick HTTP/1.1\r\n"),
        server.begin_slow(),
    );
    let go_on = server.go_on.clone();
    let finishing = std::thread::spawn(move || {
        assert!(is_closed(&mut idle) && is_closed(&mut half), "at once");
        go_on.add_permits(1);
        let mut response = String::new();
        slow.read_to_string(&mut response).unwrap();
        response
    });
    server.stop();
    let response = finishing.join().unwrap();
    assert!(response.ends_with("slow"), "{response}");
}

#[test]
fn a_shutdown_aborts_requests_that_take_too_long() {
    let server = Server::start(Limits { drain: Duration::from_millis(1), ..limits(8) });
    let mut slow = server.begin_slow();
    server.stop();
    let mut response = Vec::new();
    assert!(slow.read_to_end(&mut response).map_or(true, |read| read == 0), "aborted");
}
