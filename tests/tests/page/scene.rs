//! A predictor with a job whose workers report, and a browser with its page.

use evenstep_protocol::{
    AllocateRequest, AllocateResponse, GpuGap, GpuSample, JobId, JobSpec, JoinRequest, NodeId, NodeSample,
    TelemetryBatch, WorkerId, WorkerReport, WorkersView,
};
use evenstep_tests::store::sqlite_address;
use evenstep_tests::wait::until;
use evenstep_tests::{Browser, Client, Gate, Predictor, binaries};
use tempfile::TempDir;

/// Operator token.
pub const TOKEN: &str = "correct-horse-battery-staple";
/// The job of the page.
pub const JOB: &str = "resnet-50";

/// Predictor, job and browser of a test. The page's address stays the same while the predictor restarts.
pub struct Scene {
    pub browser: Browser,
    pub gate: Gate,
    pub predictor: Predictor,
    pub folder: TempDir,
    generation: u64,
    next: u64,
    reports: Vec<WorkerReport>,
    /// Loss in the reports of the next iterations.
    pub loss: Option<f64>,
    /// Rank that has half of its speed in the next iterations.
    slow: Option<u64>,
}

impl Scene {
    /// Starts a predictor without jobs. Returns `None` if a program is missing.
    pub fn empty(test: &str) -> Option<Self> {
        Self::with_flags(test, &[&format!("--operator-token={TOKEN}")])
    }

    /// Starts a predictor without jobs, with these flags. Returns `None` if a program is missing.
    pub fn with_flags(test: &str, flags: &[&str]) -> Option<Self> {
        let binary = binaries::find("evenstep-predictor", test)?;
        let browser = Browser::start(test)?;
        let folder = tempfile::tempdir().unwrap();
        let reports = folder.path().join("reports");
        std::fs::create_dir(&reports).unwrap();
        let reports = format!("--reports={}", reports.display());
        let flags = [flags, &[&reports]].concat();
        let predictor = Predictor::start_over(&binary, &sqlite_address(folder.path()), &flags);
        let gate = Gate::to(&predictor.url);
        Some(Self {
            browser,
            gate,
            predictor,
            folder,
            generation: 0,
            next: 0,
            reports: Vec::new(),
            loss: None,
            slow: None,
        })
    }

    /// Starts a predictor with a job of this number of workers and finished steps.
    pub fn with_job(test: &str, workers: usize, steps: u64) -> Option<Self> {
        let workers: Vec<_> = (0..workers).map(worker).collect();
        Self::with_workers(test, &workers, steps)
    }

    /// Starts a predictor with a job of these workers and this number of finished steps.
    pub fn with_workers(test: &str, workers: &[WorkerId], steps: u64) -> Option<Self> {
        let mut scene = Self::empty(test)?;
        let client = scene.client();
        client.put_job(JOB, &JobSpec::new(64 * workers.len() as u64));
        for (place, worker) in workers.iter().enumerate() {
            let mut request = JoinRequest::new(worker.clone());
            request.device =
                Some(if place % 2 == 0 { "NVIDIA H200".into() } else { "cpu: AMD EPYC 9654".into() });
            let reply = client.post(&format!("/v1/jobs/{JOB}/workers"), &request);
            scene.generation = reply.json::<evenstep_protocol::JoinResponse>().generation;
        }
        for _ in 0..steps {
            scene.step();
        }
        Some(scene)
    }

    pub fn client(&self) -> Client {
        self.predictor.client()
    }

    /// Runs an iteration: requests it, computes it, and reports it with the next request.
    pub fn step(&mut self) {
        let mut request = AllocateRequest::new(JobId::new(JOB).unwrap(), self.generation, self.next);
        request.reports = std::mem::take(&mut self.reports);
        let answer: AllocateResponse = self.client().allocate(&request).json();
        let times: Vec<f64> = answer
            .allocations
            .iter()
            .map(|share| {
                let slowed = if self.slow == Some(share.rank) { 0.5 } else { 1.0 };
                share.local_batch as f64 / (speed(share.rank, self.next) * slowed)
            })
            .collect();
        let longest = times.iter().copied().fold(0.0, f64::max);
        self.reports = answer
            .allocations
            .iter()
            .zip(&times)
            .filter(|(share, _)| share.local_batch > 0)
            .map(|(share, time)| {
                let mut report = WorkerReport::new(share.worker.clone(), self.next, share.local_batch, *time);
                report.barrier_wait_s = Some(longest - time);
                report.loss = self.loss;
                report
            })
            .collect();
        self.next += 1;
    }

    /// Removes a worker from the job.
    pub fn leave(&mut self, worker: &WorkerId) {
        let path = format!("/v1/jobs/{JOB}/workers");
        let name = worker.as_str().replace('/', "%2F");
        assert_eq!(self.client().delete(&format!("{path}/{name}")).status, 200);
        self.generation = self.client().get(&path).json::<WorkersView>().generation;
        self.reports.retain(|report| report.worker != *worker);
    }

    /// Runs iterations in which the worker of a rank has half of its speed, until the predictor flags it.
    pub fn slow_down(&mut self, rank: u64) {
        self.slow = Some(rank);
        let flagged = |scene: &Self| {
            let workers =
                scene.client().get(&format!("/v1/jobs/{JOB}/workers")).json::<WorkersView>().workers;
            workers.iter().any(|worker| worker.straggler.is_some())
        };
        until("the worker is flagged", || {
            self.step();
            flagged(self).then_some(())
        });
    }

    /// Returns the number of iterations reported so far; the page's latest iteration is one less.
    pub fn reported(&self) -> u64 {
        self.next - 1
    }

    /// Sends telemetry of a node.
    pub fn measure(&self, node: &str) {
        self.measure_under(node, 0.05, 0);
    }

    /// Sends telemetry of a node whose tasks wait for a processor in this share of the time, up to this number of seconds ago.
    pub fn measure_under(&self, node: &str, pressure: f64, age_s: i64) {
        let now = now_unix_ms() - 1000 * age_s;
        let sample = |ago: i64| {
            let share = 0.5 + 0.4 * (ago as f64 / 9.0).sin();
            let readings = [
                ("cpu_busy", share),
                ("memory_used", 0.6),
                ("psi_cpu_some", pressure),
                ("procs_running", 3.0),
            ];
            NodeSample {
                at_unix_ms: now - 1000 * ago,
                window_s: Some(1.0),
                readings: readings.map(|(name, value)| (name.to_owned(), value)).into(),
                missing: [("psi_io_some".to_owned(), "no such file".to_owned())].into(),
                gpus: vec![hot(), lost()],
                ..NodeSample::default()
            }
        };
        let batch = TelemetryBatch {
            node: NodeId::new(node).unwrap(),
            boot_id: "life".into(),
            sequence: 0,
            samples: (0..120).rev().map(sample).collect(),
        };
        let reply = self.client().post("/v1/telemetry", &batch);
        assert_eq!(reply.status, 200, "{reply:?}");
    }

    /// Returns the address of a place on the page.
    pub fn at(&self, place: &str) -> String {
        format!("{}/{place}", self.gate.url())
    }

    /// Opens the job's page, and waits until it is complete and live.
    pub fn open_job(&self) {
        self.browser.open(&self.at(&format!("#/jobs/{JOB}")));
        self.browser.until("the page is live", "document.querySelector('#light')?.dataset.state === 'live'");
        self.browser.until("the charts are drawn", "document.querySelectorAll('canvas').length >= 2");
        self.browser.until("the workers are shown", "document.querySelectorAll('.tall tbody tr').length > 0");
    }

    /// Asserts that the console has no complaints.
    pub fn no_complaints(&self) {
        let complaints = self.browser.complaints();
        assert!(complaints.is_empty(), "{complaints:#?}");
    }
}

/// A GPU that lowers its clock.
fn hot() -> GpuSample {
    GpuSample {
        readings: [("gpu_busy".to_owned(), 0.9), ("gpu_temperature_celsius".to_owned(), 88.0)].into(),
        throttle_reasons: vec!["sw_thermal_slowdown".into()],
        ..GpuSample::default()
    }
}

/// A GPU that has fallen off the bus.
fn lost() -> GpuSample {
    GpuSample { index: 1, gap: Some(GpuGap::Lost), ..GpuSample::default() }
}

#[expect(clippy::disallowed_methods, reason = "samples must have the current time")]
fn now_unix_ms() -> i64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as i64
}

/// Returns the id of the worker at a place.
pub fn worker(place: usize) -> WorkerId {
    WorkerId::new(format!("node-{}/{}", char::from(b'a' + (place % 16) as u8), place / 16)).unwrap()
}

/// Returns the speed of a rank in an iteration, in samples per second: unequal between ranks, and slightly
/// variable.
fn speed(rank: u64, iteration: u64) -> f64 {
    let base = [4100.0, 2600.0, 3000.0, 1200.0][rank as usize % 4];
    let wobble = ((iteration * 7 + rank * 13) % 23) as f64 / 23.0 - 0.5;
    base * (1.0 + 0.08 * wobble + 0.15 * (iteration as f64 / 17.0 + rank as f64).sin())
}
