//! A link that can be cut or slowed down: a TCP port that stays the same while the server behind it restarts.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// The link. Without a server behind it, every connection is closed at once.
#[derive(Debug)]
pub struct Gate {
    address: SocketAddr,
    link: Arc<Mutex<Link>>,
}

#[derive(Debug, Default)]
struct Link {
    server: Option<SocketAddr>,
    closed: bool,
    /// Time that each KiB takes, in microseconds.
    slow_us: Arc<AtomicU64>,
    /// Both ends of every connection since the last cut.
    connections: Vec<TcpStream>,
}

impl Gate {
    /// Creates a link without a server.
    pub fn shut() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let link = Arc::new(Mutex::new(Link::default()));
        let accepted = link.clone();
        thread::spawn(move || {
            for client in listener.incoming() {
                let mut link = accepted.lock().expect("no panic while linking");
                if link.closed {
                    return;
                }
                let server = link.server.and_then(|server| TcpStream::connect(server).ok());
                if let (Ok(client), Some(server)) = (client, server) {
                    link.connect(client, server).expect("two TCP streams");
                }
            }
        });
        Self { address, link }
    }

    /// Creates a link to a server, given as `http://host:port`.
    pub fn to(url: &str) -> Self {
        let gate = Self::shut();
        gate.open(url);
        gate
    }

    /// Returns the link's own address, for clients.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Links to a server from the next connection on.
    pub fn open(&self, url: &str) {
        let server = url.strip_prefix("http://").expect("http://").parse().expect("host:port");
        self.link.lock().expect("no panic while linking").server = Some(server);
    }

    /// Sets the time that each KiB takes in each direction, also on open connections.
    pub fn slow(&self, per_kibibyte: Duration) {
        let us = u64::try_from(per_kibibyte.as_micros()).expect("a duration of a test");
        self.link.lock().expect("no panic while linking").slow_us.store(us, Ordering::Relaxed);
    }

    /// Cuts every connection, in the middle of its traffic, and accepts no more.
    pub fn cut(&self) {
        let mut link = self.link.lock().expect("no panic while linking");
        link.server = None;
        for connection in link.connections.drain(..) {
            // Fails only for a connection that is already closed.
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.cut();
        self.link.lock().expect("no panic while linking").closed = true;
        // Wakes the accepting thread, which then ends.
        let _ = TcpStream::connect(self.address);
    }
}

impl Link {
    fn connect(&mut self, client: TcpStream, server: TcpStream) -> std::io::Result<()> {
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        carry(client.try_clone()?, server.try_clone()?, self.slow_us.clone());
        carry(server.try_clone()?, client.try_clone()?, self.slow_us.clone());
        self.connections.extend([client, server]);
        Ok(())
    }
}

/// Copies bytes in one direction until either end closes.
#[expect(clippy::disallowed_methods, reason = "a slow link takes time")]
fn carry(mut from: TcpStream, mut to: TcpStream, slow_us: Arc<AtomicU64>) {
    thread::spawn(move || {
        let mut buffer = [0; 16 * 1024];
        let mut write = |part: &[u8]| {
            let slow_us = slow_us.load(Ordering::Relaxed);
            if slow_us > 0 {
                thread::sleep(Duration::from_micros(slow_us));
            }
            to.write_all(part)
        };
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            if buffer[..count].chunks(1024).try_for_each(&mut write).is_err() {
                break;
            }
        }
        // Fails only for a connection that is already closed.
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    });
}
