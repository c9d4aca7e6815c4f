//! Names of readings as metrics.

use evenstep_protocol::driver;

/// Metric of a reading.
pub(super) struct ReadingMetric {
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
    /// Whether the metric is a counter.
    pub(super) is_counter: bool,
}

const fn reading_metric(reading: &'static str, name: &'static str, help: &'static str) -> ReadingMetric {
    ReadingMetric { reading, name, help, labels: &[], unit: 1.0, is_counter: false }
}

impl ReadingMetric {
    const fn with(self, labels: &'static [(&'static str, &'static str)]) -> Self {
        Self { labels, ..self }
    }

    const fn in_units_of(self, unit: f64) -> Self {
        Self { unit, ..self }
    }
}

const fn errors(reading: &'static str, kind: &'static [(&'static str, &'static str)]) -> ReadingMetric {
    let help = "Errors of the GPU by kind, since its driver was loaded; Xid errors since the agent started.";
    let metric = reading_metric(reading, "evenstep_gpu_errors_total", help).with(kind);
    ReadingMetric { is_counter: true, ..metric }
}

const fn cpu(reading: &'static str, mode: &'static [(&'static str, &'static str)]) -> ReadingMetric {
    reading_metric(reading, "evenstep_node_cpu_ratio", "Share of all cores' time.").with(mode)
}

const fn pressure(reading: &'static str, of: &'static [(&'static str, &'static str)]) -> ReadingMetric {
    let help = "Share of time in which some or all tasks waited for the resource.";
    reading_metric(reading, "evenstep_node_pressure_ratio", help).with(of)
}

const fn tasks(reading: &'static str, state: &'static [(&'static str, &'static str)]) -> ReadingMetric {
    reading_metric(reading, "evenstep_node_tasks", "Number of tasks by state.").with(state)
}

const fn clock(reading: &'static str, clock: &'static [(&'static str, &'static str)]) -> ReadingMetric {
    reading_metric(reading, "evenstep_gpu_clock_hertz", "Clock frequencies of the GPU.")
        .with(clock)
        .in_units_of(1e6)
}

const fn switches(reading: &'static str, kind: &'static [(&'static str, &'static str)]) -> ReadingMetric {
    let help = "Rate of context switches of the process.";
    reading_metric(reading, "evenstep_process_context_switches_per_second", help).with(kind)
}

/// Readings of the machine.
pub(super) const HOST: [ReadingMetric; 15] = [
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
    reading_metric("load_1m", "evenstep_node_load1", "1-minute load average."),
    reading_metric(
        "context_switches_per_s",
        "evenstep_node_context_switches_per_second",
        "Rate of context switches of all tasks.",
    ),
    reading_metric(
        driver::MEMORY_USED,
        "evenstep_node_memory_used_ratio",
        "Share of memory that is not available.",
    ),
    reading_metric("memory_available_bytes", "evenstep_node_memory_available_bytes", "Available memory."),
    reading_metric("memory_total_bytes", "evenstep_node_memory_size_bytes", "Total memory of the node."),
];

/// Readings of a watched process.
pub(super) const PROCESS: [ReadingMetric; 7] = [
    reading_metric(driver::OWN_CPU, "evenstep_process_cpu_cores", "CPU time of the process, in cores."),
    reading_metric(
        driver::OTHER_CPU,
        "evenstep_process_other_cpu_cores",
        "CPU time of everything else on the node, in cores.",
    ),
    reading_metric(
        driver::RUN_QUEUE_WAIT,
        "evenstep_process_run_queue_wait_ratio",
        "Time that its runnable threads waited for a core, divided by the window.",
    ),
    switches(driver::VOLUNTARY_SWITCHES, &[("kind", "voluntary")]),
    switches(driver::INVOLUNTARY_SWITCHES, &[("kind", "involuntary")]),
    reading_metric("rss_bytes", "evenstep_process_resident_memory_bytes", "Resident memory of the process."),
    reading_metric("threads", "evenstep_process_threads", "Number of threads of the process."),
];

/// Readings of a GPU.
pub(super) const GPU: [ReadingMetric; 17] = [
    reading_metric(driver::GPU_BUSY, "evenstep_gpu_busy_ratio", "Share of time in which a kernel ran."),
    reading_metric(
        "gpu_memory_busy",
        "evenstep_gpu_memory_busy_ratio",
        "Share of time in which GPU memory was read or written.",
    ),
    reading_metric("gpu_memory_used_bytes", "evenstep_gpu_memory_used_bytes", "GPU memory in use."),
    reading_metric("gpu_memory_total_bytes", "evenstep_gpu_memory_size_bytes", "Total memory of the GPU."),
    clock(driver::SM_CLOCK_MHZ, &[("clock", "sm")]),
    clock("memory_clock_mhz", &[("clock", "memory")]),
    reading_metric(driver::GPU_POWER_W, "evenstep_gpu_power_watts", "Power draw of the GPU."),
    reading_metric(
        driver::GPU_TEMPERATURE_CELSIUS,
        "evenstep_gpu_temperature_celsius",
        "Temperature of the GPU.",
    ),
    reading_metric(
        driver::GPU_THROTTLED,
        "evenstep_gpu_slowed_down",
        "1 while the GPU lowers its clocks because of temperature, power or its group.",
    ),
    errors("gpu_ecc_corrected_errors", &[("kind", "ecc_corrected")]),
    errors("gpu_ecc_uncorrected_errors", &[("kind", "ecc_uncorrected")]),
    errors("gpu_pcie_replays", &[("kind", "pcie_replay")]),
    errors("gpu_nvlink_replays", &[("kind", "nvlink_replay")]),
    errors("gpu_nvlink_recoveries", &[("kind", "nvlink_recovery")]),
    errors("gpu_nvlink_crc_errors", &[("kind", "nvlink_crc")]),
    errors("gpu_xid_errors", &[("kind", "xid")]),
    reading_metric("gpu_last_xid", "evenstep_gpu_last_xid", "Number of the last Xid error."),
];

/// Readings of a MIG instance.
pub(super) const GPU_INSTANCE: [ReadingMetric; 2] = [
    reading_metric(
        "gpu_memory_used_bytes",
        "evenstep_gpu_instance_memory_used_bytes",
        "Memory of the MIG instance in use.",
    ),
    reading_metric(
        "gpu_memory_total_bytes",
        "evenstep_gpu_instance_memory_size_bytes",
        "Total memory of the MIG instance.",
    ),
];

/// Readings of a process on a GPU.
pub(super) const GPU_PROCESS: [ReadingMetric; 2] = [
    reading_metric(
        driver::GPU_BUSY,
        "evenstep_process_gpu_busy_ratio",
        "Share of time in which the process's kernels ran.",
    ),
    reading_metric(
        "gpu_memory_bytes",
        "evenstep_process_gpu_memory_bytes",
        "GPU memory that the process uses.",
    ),
];
