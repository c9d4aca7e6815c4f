//! Serves HTTP/1.1 with bounded connections, see [`serve`], lets the processes of a user share programs, see [`local`], and reads
//! the options of programs, see [`config`].
//!
//! - At most [`Limits::connections`] are open, and at most [`Limits::per_address`] from one IP address. At a limit, the
//!   connection that has been waiting for a request the longest is closed in favour of a new one. If all of them serve
//!   requests, the new one is closed.
//! - A connection without a request, one whose request headers do not arrive in time, and one whose client does not take
//!   its response are closed.
//! - The head of a request has at most 64 KiB and 100 headers.
//! - A shutdown ends idle connections at once and waits a bounded time for requests.
//!
//! With [`Tls`], a connection waits for a request from its first byte on: its handshake has the deadline of headers.
//!
//! A request over a Unix socket has a [`ClientProcess`].
//!
//! Bodies and the duration of requests are the router's own responsibility.

mod activity;
pub mod config;
mod counts;
mod limits;
mod listener;
pub mod local;
mod open;
mod reading;
mod socket;
mod tls;
mod user;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use tokio::net::{TcpListener, TcpSocket};
use tokio::time::{Instant, MissedTickBehavior};

pub use counts::Connections;
pub use evenstep_tls::read_file;
pub use limits::Limits;
pub use listener::{ClientAddress, ClientProcess, Listener};
use open::Open;
pub use open::Options;
pub use reading::{HANGS_AFTER, read_files};
pub use tls::{Tls, TlsFiles, TlsStatus};
pub use user::ClientUser;

/// Interval at which deadlines are checked.
const TICK: Duration = Duration::from_millis(500);
/// Number of connections that may wait to be accepted. The system may allow fewer.
const BACKLOG: u32 = 4096;
/// Pause after a failure to accept a connection, such as a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Binds an address, with room for many clients that connect at once, such as after a restart.
///
/// # Errors
/// If the address cannot be used.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A restart must not wait for the connections of the previous process to expire.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves requests until `stop` completes. Then finishes the requests in flight within [`Limits::drain`] and aborts the
/// remaining ones. When this returns, no task of the server is left.
pub async fn serve(
    listener: impl Into<Listener>,
    router: Router,
    options: Options,
    stop: impl Future<Output = ()>,
) {
    let listener = listener.into();
    let tls = options.tls.clone();
    let mut open = Open::new(router, options);
    let mut reading = std::pin::pin!(async {
        match tls {
            Some(tls) => tls.watch().await,
            None => std::future::pending().await,
        }
    });
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut stop = std::pin::pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, address)) => open.add(stream, address),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            () = open.ended() => {}
            never = &mut reading => match never {},
            _ = tick.tick() => open.close_late(Instant::now()),
        }
    }
    open.drain(listener).await;
}

#[cfg(test)]
mod tests;
