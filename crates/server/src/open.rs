//! The open connections of a server.

use std::collections::{HashMap, hash_map};
use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustix::net::sockopt;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio::time::Instant;
use tower::ServiceExt;

use crate::activity::{Activity, Phase, Serving};
use crate::counts::Connections;
use crate::limits::Limits;
use crate::listener::{Accepted, ClientAddress, ClientProcess, Listener};
use crate::socket::{Socket, Stream};
use crate::tls::Tls;
use crate::user::ClientUser;

/// Size limit of the head of a request, which is buffered until it is complete, in bytes. Also the size of the buffers
/// of a connection.
const BUFFER_BYTES_MAX: usize = 64 << 10;

/// Options of [`serve`](crate::serve).
#[derive(Debug)]
pub struct Options {
    /// Limits of connections.
    pub limits: Limits,
    /// Counts of connections.
    pub connections: Connections,
    /// TLS; without it, connections are not encrypted.
    pub tls: Option<Tls>,
}

impl Options {
    /// Options with these limits, without TLS.
    pub fn new(limits: Limits) -> Self {
        Self { limits, connections: Connections::default(), tls: None }
    }
}

/// The open connections.
#[derive(Debug)]
pub struct Open {
    router: Router,
    limits: Limits,
    tls: Option<Tls>,
    tasks: JoinSet<()>,
    connections: HashMap<Id, Connection>,
    counts: Connections,
    by_address: HashMap<IpAddr, usize>,
    draining: watch::Sender<bool>,
}

#[derive(Debug)]
struct Connection {
    address: IpAddr,
    activity: Activity,
    task: AbortHandle,
}

impl Open {
    /// No connection yet.
    pub fn new(router: Router, options: Options) -> Self {
        let Options { limits, connections: counts, tls } = options;
        Self {
            router,
            limits,
            tls,
            tasks: JoinSet::new(),
            connections: HashMap::new(),
            counts,
            by_address: HashMap::new(),
            draining: watch::Sender::new(false),
        }
    }

    /// Serves a new connection, or closes it if a limit is reached.
    pub fn add(&mut self, stream: Accepted, address: IpAddr) {
        let of_address = self.by_address.get(&address).copied().unwrap_or(0);
        let evicted = if of_address >= self.limits.per_address {
            self.evict(|connection| connection.address == address)
        } else if self.connections.len() >= self.limits.connections {
            self.evict(|_| true)
        } else {
            true
        };
        if !evicted {
            self.counts.refuse();
            return;
        }
        if let Accepted::Tcp(stream) = &stream
            && let Err(error) = self.configure(stream)
        {
            tracing::debug!(%error, "a connection was closed before it was served");
            return;
        }
        let activity = Activity::new(if self.tls.is_some() { Phase::Handshake } else { Phase::Idle });
        let (tls, router, draining) = (self.tls.clone(), self.router.clone(), self.draining.subscribe());
        let task = self.tasks.spawn(converse(stream, address, tls, activity.clone(), router, draining));
        self.connections.insert(task.id(), Connection { address, activity, task });
        *self.by_address.entry(address).or_default() += 1;
        self.counts.set_open(self.connections.len());
    }

    fn configure(&self, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        // Finds peers that vanished while no data was in flight.
        sockopt::set_socket_keepalive(stream, true)?;
        let unacknowledged_ms = u32::try_from(self.limits.unacknowledged.as_millis()).unwrap_or(u32::MAX);
        sockopt::set_tcp_user_timeout(stream, unacknowledged_ms)?;
        Ok(())
    }

    /// Closes the connection among `candidates` that has been without a complete request the longest. Returns false if
    /// all of them serve requests.
    fn evict(&mut self, candidates: impl Fn(&Connection) -> bool) -> bool {
        let waiting = |(id, connection): (&Id, &Connection)| {
            let (phase, since) = connection.activity.get();
            (phase.is_waiting() && candidates(connection)).then_some((since, *id))
        };
        let longest = self.connections.iter().filter_map(waiting).min_by_key(|(since, _)| *since);
        longest.is_some_and(|(_, id)| self.close(id))
    }

    fn close(&mut self, id: Id) -> bool {
        let Some(connection) = self.connections.remove(&id) else { return false };
        connection.task.abort();
        self.counts.set_open(self.connections.len());
        if let hash_map::Entry::Occupied(mut count) = self.by_address.entry(connection.address) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        true
    }

    /// Completes when a connection has ended; never, if no connection is open.
    pub async fn ended(&mut self) {
        match self.tasks.join_next_with_id().await {
            Some(ended) => {
                let id = ended.map_or_else(|error| panicked(&error), |(id, ())| id);
                self.close(id);
            }
            None => std::future::pending().await,
        }
    }

    /// Closes the connections that have waited too long for a handshake, a request or the rest of its headers.
    pub fn close_late(&mut self, now: Instant) {
        let is_late = |connection: &Connection| {
            let (phase, since) = connection.activity.get();
            let limit = match phase {
                Phase::Idle => self.limits.idle,
                Phase::Handshake | Phase::Headers => self.limits.headers,
                Phase::Serving | Phase::Sending => return false,
            };
            now.saturating_duration_since(since) >= limit
        };
        let late: Vec<Id> = self
            .connections
            .iter()
            .filter(|(_, connection)| is_late(connection))
            .map(|(id, _)| *id)
            .collect();
        for id in late {
            self.close(id);
        }
    }

    /// Closes the listener and the connections without a complete request, waits for the others, and aborts those that take
    /// too long.
    pub async fn drain(mut self, listener: Listener) {
        self.draining.send_replace(true);
        drop(listener);
        self.connections.retain(|_, connection| {
            let is_waiting = connection.activity.get().0.is_waiting();
            if is_waiting {
                connection.task.abort();
            }
            !is_waiting
        });
        let in_time = tokio::time::timeout(self.limits.drain, async {
            while let Some(ended) = self.tasks.join_next().await {
                ended.unwrap_or_else(|error| {
                    panicked(&error);
                });
            }
        });
        if in_time.await.is_err() {
            let (after, requests) = (self.limits.drain, self.tasks.len());
            tracing::warn!(?after, requests, "requests still in flight were aborted");
            self.tasks.shutdown().await;
        }
        self.counts.set_open(0);
    }
}

/// Logs the panic of a connection's task. Returns the ID of the task.
fn panicked(error: &JoinError) -> Id {
    if error.is_panic() {
        tracing::error!(%error, "a connection panicked");
    }
    error.id()
}

/// Serves the requests of a connection until it is closed.
async fn converse(
    stream: Accepted,
    address: IpAddr,
    tls: Option<Tls>,
    activity: Activity,
    router: Router,
    mut draining: watch::Receiver<bool>,
) {
    let (stream, user, process): (Box<dyn Stream>, _, _) = match (stream, tls) {
        (Accepted::Unix(stream), _) => {
            let process = ClientProcess::of(&stream);
            (Box::new(stream), process.map(|process| ClientUser::known(process.user)), process)
        }
        (Accepted::Tcp(stream), tls) => {
            let ends = stream.peer_addr().ok().zip(stream.local_addr().ok());
            let user = ends.map(|(client, server)| ClientUser::new(client, server));
            match tls {
                None => (Box::new(stream), user, None),
                Some(tls) => match tls.accept(stream).await {
                    Ok(stream) => {
                        activity.encrypted();
                        (Box::new(stream), user, None)
                    }
                    Err(error) => return tracing::debug!(%error, "a TLS handshake failed"),
                },
            }
        }
    };
    let socket = TokioIo::new(Socket::new(stream, activity.clone()));
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(ClientAddress(address));
        if let Some(user) = &user {
            request.extensions_mut().insert(user.clone());
        }
        if let Some(process) = process {
            request.extensions_mut().insert(process);
        }
        let (router, serving) = (router.clone(), activity.serve());
        async move {
            let response = router.oneshot(request).await?;
            Ok::<_, Infallible>(response.map(|body| ServedBody { body, _serving: serving }))
        }
    });
    let stopped = async move {
        // The sender lives as long as this task.
        let _ = draining.wait_for(|draining| *draining).await;
    };
    let mut builder = http1::Builder::new();
    let connection = builder.max_buf_size(BUFFER_BYTES_MAX).serve_connection(socket, service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        // In this order, so that a response during a shutdown announces the end of the connection.
        biased;
        () = stopped => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
        ended = connection.as_mut() => ended,
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection failed");
    }
}

/// The body of a response. Its request counts as being served until it is sent.
struct ServedBody {
    body: Body,
    _serving: Serving,
}

impl HttpBody for ServedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
