"""Names of the drivers that forecasts take, in their order. `agent/README.md` says what each one is."""

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

OF_THE_MOMENT = frozenset(
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
"""Those that need no window."""
