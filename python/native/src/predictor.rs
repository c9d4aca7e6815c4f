//! Rank 0's connection to the predictor.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use evenstep_client::Servers;
use evenstep_client::{
    Allocated, Backlog, Connection, ConnectionBuilder, Prefetcher, Registration, RunStart,
};
use evenstep_protocol::{JobSpec, JoinRequest, WorkerId};
use evenstep_rules as rules;
use pyo3::prelude::*;
use rustix::time::{ClockId, clock_gettime};

use crate::errors::{invalid_setting, request_failed};
use crate::http;
use crate::plan::Plan;
use crate::reports;

/// Maximum number of plans for later iterations, and of messages that wait to be collected.
const WAITING_MAX: usize = 256;

/// Requests plans in a thread without the interpreter's lock, and delivers reports.
#[pyclass(frozen, module = "evenstep._native")]
pub struct Predictor {
    workers: Vec<WorkerId>,
    whole_batch: u64,
    backlog: Backlog,
    state: Mutex<State>,
    /// Whether the run is over.
    closing: Arc<AtomicBool>,
    /// CPU time of the requests, in nanoseconds.
    cpu_ns: Arc<AtomicU64>,
    messages: Messages,
}

enum State {
    Created(Box<ConnectionBuilder>),
    Open {
        prefetcher: Prefetcher<rules::Plan>,
        /// Plans that have not been taken, by iteration.
        plans: BTreeMap<u64, rules::Plan>,
    },
    Closed,
}

/// Changes of the connection, for a log.
#[derive(Clone, Default)]
struct Messages(Arc<Mutex<VecDeque<String>>>);

impl Messages {
    fn push(&self, message: String) {
        let mut waiting = lock(&self.0);
        waiting.push_back(message);
        if waiting.len() > WAITING_MAX {
            waiting.pop_front();
        }
    }
}

#[pymethods]
impl Predictor {
    /// Prepares the connection of a run; nothing is sent yet. `spec` and `workers` are JSON: the body of
    /// `PUT /v1/jobs/{job}`, and a list of the bodies that join the workers, in rank order.
    #[new]
    #[pyo3(signature = (servers, job_id, spec, workers, *, begin = 0, resumed = false, restarted = false, former = None, timeout_s = 2.0, find_server = None, tls = None))]
    #[expect(clippy::too_many_arguments, reason = "Python passes them by name")]
    fn new(
        servers: &str,
        job_id: &str,
        spec: &str,
        workers: &str,
        begin: u64,
        resumed: bool,
        restarted: bool,
        former: Option<Vec<String>>,
        timeout_s: f64,
        find_server: Option<Py<PyAny>>,
        tls: Option<&http::ClientTls>,
    ) -> PyResult<Self> {
        let closing = Arc::<AtomicBool>::default();
        let client = http::client(servers, job_id, timeout_s, tls)?;
        let spec: JobSpec = serde_json::from_str(spec).map_err(invalid_setting)?;
        let joins: Vec<JoinRequest> = serde_json::from_str(workers).map_err(invalid_setting)?;
        let start = RunStart { iteration: begin, resumed, restarted };
        let former = former.unwrap_or_default().into_iter().map(WorkerId::new);
        let former = former.collect::<Result<_, _>>().map_err(invalid_setting)?;
        let registration =
            Registration::new(client, spec, joins).starting_at(start).with_former_workers(former);
        let (workers, whole_batch) = (registration.workers().to_vec(), registration.whole_batch());
        let (messages, backlog) = (Messages::default(), Backlog::default());
        let told = messages.clone();
        let mut builder = Connection::builder(registration)
            .backlog(backlog.clone())
            .on_event(move |event| told.push(event.to_string()));
        if let Some(find) = find_server {
            let (told, closing) = (messages.clone(), Arc::clone(&closing));
            // Once the run is over, the interpreter may end, and no thread may call it any more.
            let is_over = move || closing.load(Ordering::Acquire);
            builder = builder.find_servers(move || if is_over() { None } else { find_servers(&find, &told) });
        }
        let (state, cpu_ns) = (Mutex::new(State::Created(Box::new(builder))), Arc::default());
        Ok(Self { workers, whole_batch, backlog, state, closing, cpu_ns, messages })
    }

    /// Registers the run and returns the plans of these (iteration, samples), `None` where no predictor responds.
    fn open(&self, py: Python<'_>, wanted: Vec<(u64, u64)>) -> PyResult<Vec<Option<Plan>>> {
        let State::Created(builder) = std::mem::replace(&mut *self.state(), State::Closed) else {
            return Err(invalid_setting("open: must be called once"));
        };
        let opened = py.detach(|| {
            let mut connection = builder.open()?;
            let request = |(iteration, size)| connection.request_first(iteration, size, rules::checked);
            let plans = wanted.into_iter().map(request).collect::<Result<Vec<_>, _>>()?;
            Ok((connection, plans))
        });
        let (connection, plans) = opened.map_err(|error| request_failed(&error))?;
        let cpu_ns = Arc::clone(&self.cpu_ns);
        let prefetcher = Prefetcher::start(connection, move |response, requested| {
            let used = clock_gettime(ClockId::ThreadCPUTime);
            let used_ns = used.tv_sec.cast_unsigned() * 1_000_000_000 + used.tv_nsec.cast_unsigned();
            cpu_ns.store(used_ns, Ordering::Relaxed);
            rules::checked(response, requested)
        });
        *self.state() = State::Open { prefetcher, plans: BTreeMap::new() };
        Ok(plans.into_iter().map(|allocated| allocated.map(|allocated| shared(&allocated.plan))).collect())
    }

    /// Returns the newest unused plan for this iteration or an earlier one.
    fn take(&self, iteration: u64) -> Option<Plan> {
        let mut state = self.state();
        let State::Open { prefetcher, plans } = &mut *state else { return None };
        if let Some(Allocated { plan, timed }) = prefetcher.newest() {
            plans.insert(timed.response.iteration, plan);
            if plans.len() > WAITING_MAX {
                plans.pop_first();
            }
        }
        let later = plans.split_off(&iteration.saturating_add(1));
        let due = std::mem::replace(plans, later);
        due.values().next_back().map(shared)
    }

    /// Keeps the reports of an iteration, rows by rank, for the next request, and requests the plan of `then`,
    /// an (iteration, samples) pair. `step` is the time of the whole step, and the number of iterations that it stands for.
    #[pyo3(signature = (iteration, rows, then, step=None))]
    #[expect(clippy::needless_pass_by_value, reason = "the values come from Python")]
    fn learn(
        &self,
        py: Python<'_>,
        iteration: u64,
        rows: Vec<f64>,
        then: (u64, u64),
        step: Option<(Option<f64>, f64)>,
    ) {
        py.detach(|| {
            self.backlog.push(iteration, reports::decode(&self.workers, &rows, step));
            if let State::Open { prefetcher, .. } = &*self.state() {
                prefetcher.request(then.0, then.1);
            }
        });
    }

    /// Delivers the last reports and leaves the job, if the predictor responds within this time.
    fn close(&self, py: Python<'_>, timeout_s: f64) -> PyResult<()> {
        let timeout = http::timeout(timeout_s)?;
        self.closing.store(true, Ordering::Release);
        let before = std::mem::replace(&mut *self.state(), State::Closed);
        if let State::Open { prefetcher, .. } = before {
            let whole_batch = self.whole_batch;
            py.detach(|| finish(prefetcher, whole_batch, timeout));
        }
        Ok(())
    }

    /// Returns and removes the messages for a log.
    fn messages(&self) -> Vec<String> {
        lock(&self.messages.0).drain(..).collect()
    }

    /// The CPU time of the requests up to now, in seconds.
    #[getter]
    fn cpu_s(&self) -> f64 {
        self.cpu_ns.load(Ordering::Relaxed) as f64 / 1e9
    }
}

impl Predictor {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// Returns a plan without what ranks in Python do not share: budgets of background work.
fn shared(plan: &rules::Plan) -> Plan {
    Plan(rules::Plan::new(plan.shares().to_vec(), plan.rate(), plan.tail().cloned()))
}

fn finish(prefetcher: Prefetcher<rules::Plan>, whole_batch: u64, timeout: Duration) {
    let (done, ended) = mpsc::sync_channel(1);
    thread::spawn(move || {
        if let Some(connection) = prefetcher.finish() {
            connection.close(whole_batch);
        }
        // After the time limit, the caller no longer waits.
        let _ = done.send(());
    });
    // The time limit is not an error: the leases of the workers will expire.
    let _ = ended.recv_timeout(timeout);
}

/// Calls Python for the servers, unless the interpreter is ending.
fn find_servers(find: &Py<PyAny>, messages: &Messages) -> Option<Servers> {
    let found = Python::try_attach(|py| -> PyResult<Option<Servers>> {
        let found: Option<String> = find.call0(py)?.extract(py)?;
        found.map(|text| http::servers(&text)).transpose()
    })?;
    found.unwrap_or_else(|error| {
        messages.push(format!("looking for the predictor failed: {error}"));
        None
    })
}

/// Every change leaves the value valid, so a panic of another thread does no harm.
fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}
