//! Shared code of the benchmarks: a client with little overhead, and percentiles.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

/// TCP, or TLS over TCP.
pub trait Stream: Read + Write + Send {}

impl<S: Read + Write + Send> Stream for S {}

/// One kept-alive connection with a minimal HTTP client, so that the client has little overhead.
pub struct KeptAliveConnection {
    stream: BufReader<Box<dyn Stream>>,
    /// Header line of a token, or an empty text.
    authorization: String,
}

/// A response.
pub struct Answer {
    pub status: u16,
    pub retry_after_s: Option<u64>,
    pub body: String,
}

impl KeptAliveConnection {
    pub fn to(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_nodelay(true).expect("a TCP stream");
        Self::over(Box::new(stream), String::new())
    }

    /// Uses a connected stream and sends the header line of a token with each request.
    pub fn over(stream: Box<dyn Stream>, authorization: String) -> Self {
        Self { stream: BufReader::new(stream), authorization }
    }

    /// Sends a request that must succeed.
    pub fn call(&mut self, method: &str, path: &str, body: &str) -> String {
        let answer = self.send(&request(&self.authorization, method, path, body));
        assert_eq!(answer.status / 100, 2, "{method} {path}: {} {}", answer.status, answer.body);
        answer.body
    }

    /// Sends the bytes of a request and reads the response.
    pub fn send(&mut self, request: &[u8]) -> Answer {
        self.stream.get_mut().write_all(request).expect("the server reads");
        let (mut length, mut line) = (0, String::new());
        let mut answer = Answer { status: 0, retry_after_s: None, body: String::new() };
        loop {
            line.clear();
            assert!(
                self.stream.read_line(&mut line).expect("the server responds") > 0,
                "the server closed the connection"
            );
            let text = line.trim_ascii();
            if text.is_empty() {
                break;
            }
            if answer.status == 0 {
                let status = text.split(' ').nth(1).expect("a status line");
                answer.status = status.parse().expect("a status");
            } else if let Some((name, value)) = text.split_once(": ") {
                match name.to_ascii_lowercase().as_str() {
                    "content-length" => length = value.parse().expect("a length"),
                    "retry-after" => answer.retry_after_s = Some(value.parse().expect("seconds")),
                    _ => {}
                }
            }
        }
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes).expect("the whole response");
        answer.body = String::from_utf8(bytes).expect("text");
        answer
    }
}

/// The bytes of a request, with the header line of a token or an empty text.
pub fn request(authorization: &str, method: &str, path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    let head = "HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    format!("{method} {path} {head}{authorization}content-length: {length}\r\n\r\n{body}").into_bytes()
}

/// The 50th and the 99th percentile.
pub fn percentiles(times: &mut [f64]) -> [f64; 2] {
    times.sort_by(f64::total_cmp);
    [0.5, 0.99].map(|share| times[((times.len() - 1) as f64 * share) as usize])
}
