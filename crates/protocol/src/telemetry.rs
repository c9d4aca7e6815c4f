//! Telemetry samples and their transport: delivered at least once, stored exactly once.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{NodeId, WorkerId};

/// Readings by name, all finite. A name is 1 to 64 characters of `a-z 0-9 _` and ends in its unit.
pub type Readings = BTreeMap<String, f64>;

/// Names of the drivers that forecasts use as exogenous inputs. CPU shares are of one core unless stated
/// otherwise.
pub mod driver {
    /// Share of the window in which at least one task of the machine waited for a core
    /// (`/proc/pressure/cpu`), 0 to 1.
    pub const PSI_CPU_SOME: &str = "psi_cpu_some";
    /// Share of the window in which at least one task waited for memory, 0 to 1.
    pub const PSI_MEMORY_SOME: &str = "psi_memory_some";
    /// Share of the window in which at least one task waited for disks, 0 to 1.
    pub const PSI_IO_SOME: &str = "psi_io_some";
    /// Time that this process's runnable threads waited for a core, per second of the window; may exceed 1
    /// with many threads.
    pub const RUN_QUEUE_WAIT: &str = "run_queue_wait";
    /// CPU time of this process over the window, in cores.
    pub const OWN_CPU: &str = "own_cpu";
    /// CPU time of all other processes on the machine over the window, in cores.
    pub const OTHER_CPU: &str = "other_cpu";
    /// Number of runnable tasks at the time of reading.
    pub const PROCS_RUNNING: &str = "procs_running";
    /// Voluntary context switches of this process, per second of the window.
    pub const VOLUNTARY_SWITCHES: &str = "voluntary_switches_per_s";
    /// Involuntary context switches of this process, per second of the window.
    pub const INVOLUNTARY_SWITCHES: &str = "involuntary_switches_per_s";
    /// Busy share of all cores over the window, 0 to 1.
    pub const CPU_BUSY: &str = "cpu_busy";
    /// Share of memory in use, 0 to 1.
    pub const MEMORY_USED: &str = "memory_used";
    /// Number of tasks blocked on I/O at the time of reading.
    pub const PROCS_BLOCKED: &str = "procs_blocked";
    /// SM clock of the worker's GPU in MHz.
    pub const SM_CLOCK_MHZ: &str = "sm_clock_mhz";
    /// Power draw of the worker's GPU in watts. At its power limit, the GPU lowers its clocks.
    pub const GPU_POWER_W: &str = "gpu_power_w";
    /// Temperature of the worker's GPU in degrees Celsius.
    pub const GPU_TEMPERATURE_CELSIUS: &str = "gpu_temperature_celsius";
    /// Share of time in which a kernel ran on the worker's GPU, 0 to 1. It does not measure how much of the
    /// GPU was used.
    pub const GPU_BUSY: &str = "gpu_busy";
    /// 1 while the worker's GPU lowers its clocks because of its temperature, its power, or another GPU of its
    /// group; else 0.
    pub const GPU_THROTTLED: &str = "gpu_throttled";

    /// CPU time that the process's cgroup may use, in cores: the smallest quota of the cgroup and its ancestors.
    pub const CGROUP_CPU_LIMIT: &str = "cgroup_cpu_limit";
    /// Share of the periods of that quota in which the cgroup was throttled, 0 to 1.
    pub const CGROUP_CPU_THROTTLED: &str = "cgroup_cpu_throttled";
    /// Share of the window in which at least one task of the process's cgroup waited for a core, 0 to 1.
    pub const CGROUP_PSI_CPU_SOME: &str = "cgroup_psi_cpu_some";
    /// Memory of the process's cgroup over its limit; the largest such share of the cgroup and its ancestors.
    pub const CGROUP_MEMORY_USED: &str = "cgroup_memory_used";

    /// Barrier wait of the worker at the end of the iteration, in seconds. Forecasts take it from the report
    /// instead of the readings: during a long wait, the machine may have changed.
    pub const BARRIER_WAIT_S: &str = "barrier_wait_s";

    /// Speed-up of the worker in the tail of the iteration: the logarithm of its seconds per sample before
    /// the tail over its seconds per sample in the tail. Forecasts take it from the report instead of the
    /// readings.
    pub const TAIL_SPEEDUP: &str = "tail_speedup";

    /// All readings, in the order in which forecasts use them. The order is fixed, so all ranks and models
    /// agree. Readings outside this list are stored but not used in forecasts.
    pub const ALL: [&str; 21] = [
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
        GPU_THROTTLED,
        CGROUP_CPU_LIMIT,
        CGROUP_CPU_THROTTLED,
        CGROUP_PSI_CPU_SOME,
        CGROUP_MEMORY_USED,
    ];
}

/// Body of `POST /v1/telemetry`: samples of one node in the order in which they were taken.
///
/// Sample `i` of the batch has the sequence number `sequence + i`. `(node, boot_id, sequence number)`
/// identifies a sample permanently. A batch may therefore be sent again, in whole or in part; each sample is
/// stored once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TelemetryBatch {
    /// The node that the samples were taken on.
    pub node: NodeId,
    /// Id of one run of the agent's sequence counter; a counter that restarts gets a new one.
    pub boot_id: String,
    /// Sequence number of the first sample, from 0.
    pub sequence: u64,
    /// At most 1,000 samples, the oldest first.
    pub samples: Vec<NodeSample>,
}

/// The state of a node at one moment. Shares are over the window since the previous sample.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NodeSample {
    /// Time of the sample, in milliseconds since 1970.
    pub at_unix_ms: i64,
    /// Length of the window in seconds; absent in the first sample of a source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_s: Option<f64>,
    /// True for synthetic readings (the demo source), which are never used to forecast.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub synthetic: bool,
    /// Readings of the machine.
    #[serde(default)]
    pub readings: Readings,
    /// Readings that failed, by name, with the reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub missing: BTreeMap<String, String>,
    /// Readings of watched processes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<ProcessSample>,
    /// Readings of GPUs; empty on a host without GPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuSample>,
}

/// Readings of one process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ProcessSample {
    /// Process id on the node.
    pub pid: u32,
    /// The worker that runs in this process, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerId>,
    /// Readings of the process.
    #[serde(default)]
    pub readings: Readings,
    /// Readings that failed, by name, with the reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub missing: BTreeMap<String, String>,
}

/// Readings of one GPU. Its UUID identifies it; its index may change.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct GpuSample {
    /// Index of the GPU in NVML's order when NVML last listed it.
    pub index: u32,
    /// UUID of the GPU, stable over restarts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// PCI bus id, such as `00000000:65:00.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci_bus_id: Option<String>,
    /// Model name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Why the GPU cannot be read; absent if it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap: Option<GpuGap>,
    /// Readings of the GPU.
    #[serde(default)]
    pub readings: Readings,
    /// Active reasons for lowered clocks, by NVML's names (`sw_thermal_slowdown`, ..).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub throttle_reasons: Vec<String>,
    /// Readings that failed, by name, with the reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub missing: BTreeMap<String, String>,
    /// Processes on the GPU, with `gpu_memory_bytes` and `gpu_busy` if the GPU's driver reports them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<ProcessSample>,
    /// MIG instances of the GPU.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instances: Vec<GpuInstanceSample>,
}

/// Readings of a MIG instance, a part of a GPU that programs see as a GPU.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct GpuInstanceSample {
    /// UUID of the instance.
    pub uuid: String,
    /// Name of the instance, with its size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Readings of the instance.
    #[serde(default)]
    pub readings: Readings,
    /// Readings that failed, by name, with the reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub missing: BTreeMap<String, String>,
}

/// Why a GPU cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum GpuGap {
    /// The GPU has fallen off the bus, needs a reset or has been removed.
    Lost,
    /// The driver does not respond.
    TimedOut,
    /// The agent's user may not read it.
    NoPermission,
    /// Its driver provides none of the readings.
    Unsupported,
    /// Its driver returned another error.
    DriverFailed,
}

impl GpuGap {
    /// Returns the name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::TimedOut => "timed_out",
            Self::NoPermission => "no_permission",
            Self::Unsupported => "unsupported",
            Self::DriverFailed => "driver_failed",
        }
    }
}

/// Response to a batch, sent when every sample in it is durable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TelemetryResponse {
    /// The node that sent the batch.
    pub node: NodeId,
    /// Id of the run of the sequence counter.
    pub boot_id: String,
    /// The sequence number after the last sample of the batch. All samples of this batch below it are
    /// durable.
    pub next_sequence: u64,
    /// Number of samples that were new.
    pub stored: u64,
    /// Number of samples that had been stored before.
    pub duplicates: u64,
}
