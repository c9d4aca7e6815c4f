//! Names of readings as metrics.

use evenstep_protocol::driver;

/// Metric of a reading.
pub(super) struct Shown {
    /// Name of the reading.
    pub(super) reading: &'static str,
    /// Name of the metric.
    pub(super) name: &'static str,
    /// Help text.
    pub(super) help: &'static str,
    /// Labels that distinguish readings with the same metric.
    pub(super) labels: &'static [(&'static str, &'static str)],
    /// Factor from the reading's unit to the metric's unit.
    pub(super) unit: f64,
}

const fn shown(reading: &'static str, name: &'static str, help: &'static str) -> Shown {
    Shown { reading, name, help, labels: &[], unit: 1.0 }
}

impl Shown {
    const fn with(self, labels: &'static [(&'static str, &'static str)]) -> Self {
        Self { labels, ..self }
    }

    const fn in_units_of(self, unit: f64) -> Self {
        Self { unit, ..self }
    }
}

const fn cpu(reading: &'static str, mode: &'static [(&'static str, &'static str)]) -> Shown {
    shown(reading, "evenstep_node_cpu_ratio", "Share of all cores' time.").with(mode)
}

const fn pressure(reading: &'static str, of: &'static [(&'static str, &'static str)]) -> Shown {
    let help = "Share of time in which some or all tasks waited for the resource.";
    shown(reading, "evenstep_node_pressure_ratio", help).with(of)
}

const fn tasks(reading: &'static str, state: &'static [(&'static str, &'static str)]) -> Shown {
    shown(reading, "evenstep_node_tasks", "Number of tasks by state.").with(state)
}

const fn clock(reading: &'static str, clock: &'static [(&'static str, &'static str)]) -> Shown {
    shown(reading, "evenstep_gpu_clock_hertz", "Clock frequencies of the GPU.").with(clock).in_units_of(1e6)
}

const fn switches(reading: &'static str, kind: &'static [(&'static str, &'static str)]) -> Shown {
    let help = "Rate of context switches of the process.";
    shown(reading, "evenstep_process_context_switches_per_second", help).with(kind)
}

/// Readings of the machine.
pub(super) const HOST: [Shown; 15] = [
    cpu(driver::CPU_BUSY, &[("mode", "busy")]),
    cpu("cpu_iowait", &[("mode", "iowait")]),
    cpu("cpu_steal", &[("mode", "steal")]),
    pressure(driver::PSI_CPU_SOME, &[("resource", "cpu"), ("tasks", "some")]),
    pressure(driver::PSI_MEMORY_SOME, &[("resource", "memory"), ("tasks", "some")]),
    pressure("psi_memory_full", &[("resource", "memory"), ("tasks", "full")]),
    pressure(driver::PSI_IO_SOME, &[("resource", "io"), ("tasks", "some")]),
    pressure("psi_io_full", &[("resource", "io"), ("tasks", "full")]),
    tasks(driver::PROCS_RUNNING, &[("state", "runnable")]),
    tasks(driver::PROCS_BLOCKED, &[("state", "blocked")]),
    shown("load_1m", "evenstep_node_load1", "1-minute load average."),
    shown(
        "context_switches_per_s",
        "evenstep_node_context_switches_per_second",
        "Rate of context switches of all tasks.",
    ),
    shown(driver::MEMORY_USED, "evenstep_node_memory_used_ratio", "Share of memory that is not available."),
    shown("memory_available_bytes", "evenstep_node_memory_available_bytes", "Available memory."),
    shown("memory_total_bytes", "evenstep_node_memory_size_bytes", "Total memory of the node."),
];

/// Readings of a watched process.
pub(super) const PROCESS: [Shown; 7] = [
    shown(driver::OWN_CPU, "evenstep_process_cpu_cores", "CPU time of the process, in cores."),
    shown(
        driver::OTHER_CPU,
        "evenstep_process_other_cpu_cores",
        "CPU time of everything else on the node, in cores.",
    ),
    shown(
        driver::RUN_QUEUE_WAIT,
        "evenstep_process_run_queue_wait_ratio",
        "Time that its runnable threads waited for a core, divided by the window.",
    ),
    switches(driver::VOLUNTARY_SWITCHES, &[("kind", "voluntary")]),
    switches(driver::INVOLUNTARY_SWITCHES, &[("kind", "involuntary")]),
    shown("rss_bytes", "evenstep_process_resident_memory_bytes", "Resident memory of the process."),
    shown("threads", "evenstep_process_threads", "Number of threads of the process."),
];

/// Readings of a GPU.
pub(super) const GPU: [Shown; 8] = [
    shown(driver::GPU_BUSY, "evenstep_gpu_busy_ratio", "Share of time in which a kernel ran."),
    shown(
        "gpu_memory_busy",
        "evenstep_gpu_memory_busy_ratio",
        "Share of time in which GPU memory was read or written.",
    ),
    shown("gpu_memory_used_bytes", "evenstep_gpu_memory_used_bytes", "GPU memory in use."),
    shown("gpu_memory_total_bytes", "evenstep_gpu_memory_size_bytes", "Total memory of the GPU."),
    clock(driver::SM_CLOCK_MHZ, &[("clock", "sm")]),
    clock("memory_clock_mhz", &[("clock", "memory")]),
    shown(driver::GPU_POWER_W, "evenstep_gpu_power_watts", "Power draw of the GPU."),
    shown(driver::GPU_TEMPERATURE_CELSIUS, "evenstep_gpu_temperature_celsius", "Temperature of the GPU."),
];

/// Readings of a process on a GPU.
pub(super) const GPU_PROCESS: [Shown; 2] = [
    shown(
        driver::GPU_BUSY,
        "evenstep_process_gpu_busy_ratio",
        "Share of time in which the process's kernels ran.",
    ),
    shown("gpu_memory_bytes", "evenstep_process_gpu_memory_bytes", "GPU memory that the process uses."),
];
