use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use evenstep_protocol::{TelemetryBatch, TelemetryResponse};
use tokio::net::TcpSocket;

/// Timeout, longer than any healthy test waits.
const TIMEOUT: Duration = evenstep_tests::wait::PATIENCE;

/// Response to a batch; `None` stores it.
type Handler = dyn Fn(&TelemetryBatch, &mut Store) -> Option<Response> + Send + Sync;

/// Received samples, by boot id.
#[derive(Default)]
pub struct Store {
    pub sequences: BTreeMap<String, BTreeSet<u64>>,
    pub duplicates: u64,
    pub batches: Vec<(Instant, usize)>,
}

impl Store {
    pub fn count(&self) -> usize {
        self.sequences.values().map(BTreeSet::len).sum()
    }

    /// Stores a batch by the predictor's rule: (node, boot id, sequence number) identifies a sample.
    pub fn keep(&mut self, batch: &TelemetryBatch) -> TelemetryResponse {
        let known = self.sequences.entry(batch.boot_id.clone()).or_default();
        let next_sequence = batch.sequence + batch.samples.len() as u64;
        let stored =
            (batch.sequence..next_sequence).filter(|sequence| known.insert(*sequence)).count() as u64;
        let duplicates = batch.samples.len() as u64 - stored;
        self.duplicates += duplicates;
        TelemetryResponse {
            node: batch.node.clone(),
            boot_id: batch.boot_id.clone(),
            next_sequence,
            stored,
            duplicates,
        }
    }
}

#[derive(Clone)]
struct Shared {
    store: Arc<(Mutex<Store>, Condvar)>,
    handler: Arc<Handler>,
}

/// A telemetry receiver that can be stopped and started at the same address.
pub struct Receiver {
    pub address: SocketAddr,
    /// Bound but not listening: reserves the port while the receiver is stopped.
    _reserved: TcpSocket,
    store: Arc<(Mutex<Store>, Condvar)>,
    running: Option<(tokio::sync::oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Receiver {
    /// Creates a stopped receiver with a reserved address.
    pub fn away() -> Self {
        let reserved = bind("127.0.0.1:0".parse().unwrap());
        Self {
            address: reserved.local_addr().unwrap(),
            _reserved: reserved,
            store: Arc::default(),
            running: None,
        }
    }

    pub fn here(
        handler: impl Fn(&TelemetryBatch, &mut Store) -> Option<Response> + Send + Sync + 'static,
    ) -> Self {
        let mut receiver = Self::away();
        receiver.run(handler);
        receiver
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn run(
        &mut self,
        handler: impl Fn(&TelemetryBatch, &mut Store) -> Option<Response> + Send + Sync + 'static,
    ) {
        let shared = Shared { store: self.store.clone(), handler: Arc::new(handler) };
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let listener = {
            let _inside = runtime.enter();
            bind(self.address).listen(64).unwrap()
        };
        let thread = std::thread::spawn(move || {
            runtime.block_on(async move {
                let router = Router::new().route("/v1/telemetry", post(receive)).with_state(shared);
                tokio::select! {
                    served = async { axum::serve(listener, router).await } => served.unwrap(),
                    _ = stopped => {}
                }
            });
        });
        self.running = Some((stop, thread));
    }

    /// Stops at once and closes all connections.
    pub fn shut_down(&mut self) {
        if let Some((stop, thread)) = self.running.take() {
            drop(stop);
            thread.join().unwrap();
        }
    }

    pub fn wait_until(&self, what: &str, mut done: impl FnMut(&Store) -> bool) {
        let (store, changed) = &*self.store;
        let guard = store.lock().unwrap();
        let (guard, timeout) = changed.wait_timeout_while(guard, TIMEOUT, |store| !done(store)).unwrap();
        assert!(!timeout.timed_out(), "timed out waiting until {what}; received: {:?}", guard.sequences);
    }

    pub fn look<T>(&self, look: impl FnOnce(&Store) -> T) -> T {
        look(&self.store.0.lock().unwrap())
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.shut_down();
    }
}

fn bind(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(address).unwrap();
    socket
}

async fn receive(State(shared): State<Shared>, Json(batch): Json<TelemetryBatch>) -> Response {
    let (store, changed) = &*shared.store;
    let mut store = store.lock().unwrap();
    store.batches.push((Instant::now(), batch.samples.len()));
    let answer = match (shared.handler)(&batch, &mut store) {
        Some(answer) => answer,
        None => Json(store.keep(&batch)).into_response(),
    };
    changed.notify_all();
    answer
}

/// Accepts every batch.
pub fn take(_: &TelemetryBatch, _: &mut Store) -> Option<Response> {
    None
}

/// Rejects a batch with a status and no body.
pub fn reject(status: u16) -> Option<Response> {
    Some(StatusCode::from_u16(status).unwrap().into_response())
}
