//! What an agent measures and how it travels: at least once on the wire, exactly once in the store.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{NodeId, WorkerId};

/// Readings by name, all finite. A name is 1 to 64 characters of `a-z 0-9 _`; units stand last in it.
pub type Readings = BTreeMap<String, f64>;

/// Names of the drivers that forecasts use as exogenous inputs. Shares are of one core unless said otherwise.
pub mod driver {
    /// Share of the window in which some task of the machine waited for a core (`/proc/pressure/cpu`), 0 to 1.
    pub const PSI_CPU_SOME: &str = "psi_cpu_some";
    /// Share of the window in which some task waited for memory, 0 to 1.
    pub const PSI_MEMORY_SOME: &str = "psi_memory_some";
    /// Share of the window in which some task waited for disks, 0 to 1.
    pub const PSI_IO_SOME: &str = "psi_io_some";
    /// Time that this process's threads waited, runnable, for a core, over the window; may pass 1 with many threads.
    pub const RUN_QUEUE_WAIT: &str = "run_queue_wait";
    /// CPU time of this process over the window, in cores.
    pub const OWN_CPU: &str = "own_cpu";
    /// CPU time of everything else on the machine over the window, in cores.
    pub const OTHER_CPU: &str = "other_cpu";
    /// Runnable tasks at the moment of reading.
    pub const PROCS_RUNNING: &str = "procs_running";
    /// Voluntary context switches of this process, per second of the window.
    pub const VOLUNTARY_SWITCHES: &str = "voluntary_switches_per_s";
    /// Involuntary context switches of this process, per second of the window.
    pub const INVOLUNTARY_SWITCHES: &str = "involuntary_switches_per_s";
    /// Busy share of all cores over the window, 0 to 1.
    pub const CPU_BUSY: &str = "cpu_busy";
    /// Share of memory in use, 0 to 1.
    pub const MEMORY_USED: &str = "memory_used";
    /// Tasks blocked on I/O at the moment of reading.
    pub const PROCS_BLOCKED: &str = "procs_blocked";
    /// SM clock of the worker's GPU in MHz.
    pub const SM_CLOCK_MHZ: &str = "sm_clock_mhz";
    /// Power that the worker's GPU draws, in watts: at its limit the clocks give way.
    pub const GPU_POWER_W: &str = "gpu_power_w";
    /// Temperature of the worker's GPU in degrees Celsius.
    pub const GPU_TEMPERATURE_CELSIUS: &str = "gpu_temperature_celsius";
    /// Share of time in which a kernel ran on the worker's GPU, 0 to 1. Says nothing about how much of it was used.
    pub const GPU_BUSY: &str = "gpu_busy";

    /// How long the worker waited for the others at the end of the iteration, in seconds. Forecasts take it beside the
    /// readings, from the report itself: a long wait is time in which the machine may have changed.
    pub const BARRIER_WAIT_S: &str = "barrier_wait_s";

    /// How much faster the worker was at the end of the iteration, in its tail: the log of its pace (seconds for a sample)
    /// before over its pace there. Forecasts take it beside the readings, from the report itself.
    pub const TAIL_SPEEDUP: &str = "tail_speedup";

    /// All readings, in the order in which forecasts take them. Fixed, so that ranks and models agree without a word; a
    /// reading outside this list is kept, and enters no forecast.
    pub const ALL: [&str; 16] = [
        PSI_CPU_SOME,
        PSI_MEMORY_SOME,
        PSI_IO_SOME,
        RUN_QUEUE_WAIT,
        OWN_CPU,
        OTHER_CPU,
        PROCS_RUNNING,
        PROCS_BLOCKED,
        VOLUNTARY_SWITCHES,
        INVOLUNTARY_SWITCHES,
        CPU_BUSY,
        MEMORY_USED,
        SM_CLOCK_MHZ,
        GPU_BUSY,
        GPU_POWER_W,
        GPU_TEMPERATURE_CELSIUS,
    ];
}

/// `POST /v1/telemetry`: samples of one node in the order they were taken.
///
/// Sample `i` of the batch has the sequence number `sequence + i`. `(node, boot_id, sequence number)` names a sample
/// for ever, so a batch may be sent again, whole or overlapping, and is stored once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TelemetryBatch {
    /// The machine the samples were taken on.
    pub node: NodeId,
    /// Names one life of the agent's sequence counter; a counter that starts again takes a new one.
    pub boot_id: String,
    /// Sequence number of the first sample, from 0.
    pub sequence: u64,
    /// At most 1,000 samples, the oldest first.
    pub samples: Vec<NodeSample>,
}

/// The state of a node at one moment, with shares taken over the window since the sample before.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NodeSample {
    /// When it was taken, in milliseconds since 1970.
    pub at_unix_ms: i64,
    /// How long the window was, in seconds; absent in the first sample of a source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_s: Option<f64>,
    /// True for made-up readings (the demo source), which are never used to forecast.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub synthetic: bool,
    /// Readings of the machine.
    #[serde(default)]
    pub readings: Readings,
    /// What could not be read, by name, and why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub missing: BTreeMap<String, String>,
    /// Readings of watched processes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<ProcessSample>,
    /// Readings of GPUs; empty on a host without.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuSample>,
}

/// Readings of one process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ProcessSample {
    /// Its process id on the node.
    pub pid: u32,
    /// The worker it is, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerId>,
    /// What was read.
    #[serde(default)]
    pub readings: Readings,
    /// What could not be read, by name, and why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub missing: BTreeMap<String, String>,
}

/// Readings of one GPU.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct GpuSample {
    /// Its index in NVML's order.
    pub index: u32,
    /// Its UUID, stable over restarts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Its model name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What was read.
    #[serde(default)]
    pub readings: Readings,
    /// Reasons for lowered clocks that are active, in NVML's words (`sw_thermal_slowdown`, ..).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub throttle_reasons: Vec<String>,
    /// What could not be read, by name, and why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub missing: BTreeMap<String, String>,
    /// Processes on the GPU, with `gpu_memory_bytes` and `gpu_busy` where the driver says them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<ProcessSample>,
}

/// The answer to a batch, sent once every sample of it is durable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TelemetryAnswer {
    /// Whose batch it was.
    pub node: NodeId,
    /// Which life of the sequence counter.
    pub boot_id: String,
    /// The sequence number after the last of the batch: everything below it in this batch is durable.
    pub next_sequence: u64,
    /// Samples that were new.
    pub stored: u64,
    /// Samples that had been stored before.
    pub duplicates: u64,
}
