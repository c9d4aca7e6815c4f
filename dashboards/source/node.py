"""Dashboard of one machine: the agent's readings and their delivery to the predictor."""

from .panels import (BLUE, COUNT, DASHED, GREEN, GREY, ORANGE, RATIO, RED, SECONDS, annotation, by_name, by_query, colored, dashboard, firing, lines, query, row, source_variable,
                     stat, states, steps, values, variable)
from .uids import NODE

CHOSEN = 'node="$node"'
PRESSURE_STEPS = steps((0.1, ORANGE), (0.4, RED))
MEMORY_STEPS = steps((0.85, ORANGE), (0.95, RED))


def gauge(metric, by="", labels=""):
    return f"max {f'by ({by}) ' if by else ''}(evenstep_{metric}{{{CHOSEN}{labels}}})"


def rate(metric, by="node"):
    return f"sum by ({by}) (rate(evenstep_{metric}{{{CHOSEN}}}[$__rate_interval]))"


def glance():
    return [
        firing(f', node=~"$node|"'),
        stat("Busy cores", "Share of all cores' time, excluding I/O wait.", RATIO, [query(gauge("node_cpu_ratio", labels=', mode="busy"'), "busy")],
             thresholds=steps((0.9, ORANGE), (0.98, RED)), decimals=0, width=3),
        stat("Waiting for a core", "Share of the time in which at least one task waited for a core. Contention slows workers down.", RATIO,
             [query(gauge("node_pressure_ratio", labels=', resource="cpu", tasks="some"'), "waiting")], thresholds=PRESSURE_STEPS, decimals=0, width=3),
        stat("Memory in use", "Share of memory that is not available.", RATIO, [query(gauge("node_memory_used_ratio"), "used")],
             thresholds=MEMORY_STEPS, decimals=0, width=3),
        stat("GPUs", "GPUs that the agent reads. The row GPUs below has their readings.", COUNT,
             [query(f"count(evenstep_gpu_info{{{CHOSEN}}}) or vector(0)", "GPUs")], thresholds=steps(), width=3, nothing="0"),
        stat("Telemetry age", "Time since the node's last sample arrived at the predictor.", SECONDS,
             [query(f"time() - {gauge('node_last_sample_timestamp_seconds')}", "age")], thresholds=steps((15, ORANGE), (60, RED)), width=3),
        stat("Spooled samples", "Samples in the agent's spool. The spool grows while the predictor is unreachable.", COUNT,
             [query(gauge("agent_spool_samples"), "samples")], thresholds=steps((60, ORANGE), (3600, RED)), width=3),
        stat("Agent", "1 while the predictor responds to the agent, 0 otherwise.", COUNT, [query(gauge("agent_uplink_up"), "up")],
             thresholds=steps((1, GREEN), base=RED), width=3),
    ]


def machine():
    return [
        lines("Cores", "Share of all cores' time: busy, I/O wait, or stolen by the hypervisor.", RATIO,
              [query(gauge("node_cpu_ratio", "mode"), "{{mode}}")], lowest=0, highest=1,
              overrides=[by_name("busy", **colored(BLUE)), by_name("iowait", **colored(ORANGE)), by_name("steal", **colored(RED))]),
        lines("Pressure (PSI)", "Share of the time in which some tasks (solid) or all tasks (dashed) waited for cores, memory or disks.", RATIO,
              [query(gauge("node_pressure_ratio", "resource", ', tasks="some"'), "{{resource}}, some"),
               query(gauge("node_pressure_ratio", "resource", ', tasks="full"'), "{{resource}}, all")],
              thresholds=PRESSURE_STEPS, lowest=0, highest=1, overrides=[by_query("B", **DASHED)]),
        lines("Memory", "Memory in use and total memory.", "bytes",
              [query(f"{gauge('node_memory_size_bytes')} - {gauge('node_memory_available_bytes')}", "used"),
               query(gauge("node_memory_size_bytes"), "size")], lowest=0,
              overrides=[by_query("A", **colored(BLUE)), by_query("B", **colored(GREY, **DASHED))]),
        lines("Tasks", "Runnable tasks, tasks blocked on I/O, 1-minute load average, and number of cores.", COUNT,
              [query(gauge("node_tasks", "state"), "{{state}}"), query(gauge("node_load1"), "load"), query(gauge("node_cores"), "cores")],
              lowest=0, overrides=[by_query("C", **DASHED)]),
    ]


def processes():
    return [
        lines("CPU by process", "CPU time in cores of the watched processes and of all other processes.", "none",
              [query(gauge("process_cpu_cores", "pid"), "{{pid}}"), query(gauge("process_other_cpu_cores"), "everything else")], lowest=0,
              overrides=[by_query("B", **DASHED)]),
        lines("Run-queue wait by process", "Time that the threads of a process waited for a core, per second. With several threads it can exceed 100 %.",
              RATIO, [query(gauge("process_run_queue_wait_ratio", "pid"), "{{pid}}")], thresholds=PRESSURE_STEPS, lowest=0),
        lines("Memory by process", "Resident memory of the watched processes.", "bytes", [query(gauge("process_resident_memory_bytes", "pid"), "{{pid}}")], lowest=0),
        lines("Context switches by process", "Context switches per second: voluntary (solid), and involuntary (dashed), in which another task takes the core.", "cps",
              [query(gauge("process_context_switches_per_second", "pid", ', kind="voluntary"'), "{{pid}}, voluntary"),
               query(gauge("process_context_switches_per_second", "pid", ', kind="involuntary"'), "{{pid}}, involuntary")], lowest=0,
              overrides=[by_query("B", **DASHED)]),
    ]


def gpus():
    """Returns a folded row: Grafana neither queries nor shows its panels until someone opens it, so nodes without GPUs have no empty
    panels. The title has the number of GPUs."""
    return row("GPUs ($gpus)", [
        states("GPU state", "Whether the agent can read the GPU. It cannot if the GPU is lost, hangs or is not permitted.",
               [query(gauge("gpu_up", "gpu"), "GPU {{gpu}}")], values(("Cannot be read", RED), ("Can be read", GREEN)), width=24, height=5),
        lines("GPU busy", "Share of the time in which a kernel ran. It does not show how much of the GPU the kernel used.", RATIO,
              [query(gauge("gpu_busy_ratio", "gpu"), "GPU {{gpu}}")], lowest=0, highest=1, width=8),
        lines("GPU memory in use", "Share of the memory of each GPU.", RATIO,
              [query(f"{gauge('gpu_memory_used_bytes', 'gpu')} / {gauge('gpu_memory_size_bytes', 'gpu')}", "GPU {{gpu}}")],
              thresholds=MEMORY_STEPS, lowest=0, highest=1, width=8),
        lines("GPU clocks", "Clock of the streaming multiprocessors. It falls under heat or at the power limit.", "hertz",
              [query(gauge("gpu_clock_hertz", "gpu", ', clock="sm"'), "GPU {{gpu}}")], lowest=0, width=8),
        lines("GPU power", "Power draw of each GPU.", "watt", [query(gauge("gpu_power_watts", "gpu"), "GPU {{gpu}}")], lowest=0, width=8),
        lines("GPU temperature", "Temperature as reported by the NVIDIA driver.", "celsius", [query(gauge("gpu_temperature_celsius", "gpu"), "GPU {{gpu}}")],
              thresholds=steps((80, ORANGE), (90, RED)), width=8),
        lines("GPU throttled", "1 while the driver lowers the clocks, by reason. The driver also lowers the clocks of idle GPUs.", "none",
              [query(gauge("gpu_throttled", "gpu, reason"), "GPU {{gpu}}: {{reason}}")], thresholds=steps((1, ORANGE)), lowest=0, highest=1, width=8, nothing="Not throttled"),
    ])


def agent():
    return [
        lines("Samples", "Samples per second that the agent took and that the predictor acknowledged.", "cps",
              [query(rate("agent_samples_taken_total"), "taken"), query(rate("agent_samples_sent_total"), "sent")], lowest=0, width=8),
        lines("Samples lost", "Samples per second that were skipped, dropped or rejected.", "cps",
              [query(rate("agent_samples_skipped_total"), "skipped"), query(rate("agent_samples_rejected_total"), "rejected"),
               query(rate("agent_samples_dropped_total", "reason"), "dropped: {{reason}}")], thresholds=steps((0.01, ORANGE), (1, RED)),
              lowest=0, width=8),
        lines("Spool", "Size of the unsent samples on disk, and the size limit of the spool.", "bytes",
              [query(gauge("agent_spool_bytes"), "unsent"), query(gauge("agent_spool_limit_bytes"), "limit")], lowest=0, width=8,
              overrides=[by_query("A", **colored(BLUE)), by_query("B", **colored(GREY, **DASHED))]),
        lines("Readings missing", "Failed readings per second, by name. Forecasts omit missing readings.", "cps",
              [query(rate("agent_readings_missing_total", "source, name"), "{{source}}: {{name}}")], lowest=0),
        lines("Uplink", "1 while the predictor responds to the agent, 0 otherwise; and failed send attempts per second.", "none",
              [query(gauge("agent_uplink_up"), "up"), query(rate("agent_send_failures_total"), "failures per second")],
              thresholds=steps((1, GREEN), base=RED), lowest=0),
    ]


def annotations():
    return [annotation("Throttling", f"max by (gpu, reason) (evenstep_gpu_throttled{{{CHOSEN}, reason=~\".*(thermal|power_brake).*\"}}) > 0", RED,
                       title="GPU {{gpu}} is throttled: {{reason}}", tags="reason"),
            annotation("Agent started", f"""max(evenstep_agent_info{{{CHOSEN}}})
                       unless max(evenstep_agent_info{{{CHOSEN}}} offset $__rate_interval)""", GREEN, title="The agent started")]


def build():
    return dashboard(
        NODE, "Evenstep: node", "One machine: cores, pressure, memory, watched processes, GPUs, and the agent.",
        glance() + [row("Machine")] + machine() + [row("Watched processes", processes()), gpus()] + [row("Agent")] + agent(),
        docs={"Alerts": "docs/how-to/alerts.md", "GPUs": "docs/how-to/gpu.md"},
        variables=[
            source_variable(),
            variable("node", "Node", "Nodes whose agents Prometheus scrapes.", "label_values(evenstep_node_info, node)"),
            variable("gpus", "GPUs", "Number of GPUs of the node.", f"query_result(count(evenstep_gpu_info{{{CHOSEN}}}) or vector(0))", hide=2,
                     pattern="/} ([0-9]+)/"),
        ],
        annotations=annotations())
