"""Names of the drivers used by forecasts, in order. `agent/README.md` describes each one."""

from evenstep._native import DRIVER_NAMES

NAMES: tuple[str, ...] = tuple(DRIVER_NAMES)
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
        "gpu_throttled",
        "cgroup_cpu_limit",
        "cgroup_memory_used",
    }
)
"""The readings that need no window."""
