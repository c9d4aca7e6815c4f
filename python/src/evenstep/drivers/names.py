"""Names of the drivers used by forecasts, in order. `agent/README.md` describes each one."""

NAMES: tuple[str, ...] = (
    "psi_cpu_some",
    "psi_memory_some",
    "psi_io_some",
    "run_queue_wait",
    "own_cpu",
    "other_cpu",
    "procs_running",
    "procs_blocked",
    "voluntary_switches_per_s",
    "involuntary_switches_per_s",
    "cpu_busy",
    "memory_used",
    "sm_clock_mhz",
    "gpu_busy",
    "gpu_power_w",
    "gpu_temperature_celsius",
)
"""All readings that enter a forecast: `evenstep_protocol::driver::ALL`."""

WINDOWLESS = frozenset(
    {
        "procs_running",
        "procs_blocked",
        "memory_used",
        "sm_clock_mhz",
        "gpu_busy",
        "gpu_power_w",
        "gpu_temperature_celsius",
    }
)
"""The readings that need no window."""
