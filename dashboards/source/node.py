"""One machine: what its agent measures, and whether that reaches the predictor."""

from .panels import (COUNT, DASHED, GREEN, ORANGE, RATIO, RED, SECONDS, annotation, by_query, dashboard, lines, query, row, source_variable,
                     stat, steps, variable)
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
        stat("Busy cores", "Share of all cores' time, without waiting for disks.", RATIO, [query(gauge("node_cpu_ratio", labels=', mode="busy"'), "busy")],
             thresholds=steps((0.9, ORANGE), (0.98, RED)), decimals=0),
        stat("Waiting for a core", "Share of the time in which some task waited for a core: what slows workers beside others down.", RATIO,
             [query(gauge("node_pressure_ratio", labels=', resource="cpu", tasks="some"'), "waiting")], thresholds=PRESSURE_STEPS, decimals=0),
        stat("Memory in use", "Share of memory that is not available.", RATIO, [query(gauge("node_memory_used_ratio"), "used")],
             thresholds=MEMORY_STEPS, decimals=0),
        stat("Busy GPUs", "Mean over the GPUs of the share of time in which a kernel ran.", RATIO,
             [query(f"avg(evenstep_gpu_busy_ratio{{{CHOSEN}}})", "busy")], thresholds=steps((0.2, GREEN), base=ORANGE), decimals=0),
        stat("Age at the predictor", "Time since the node's latest sample arrived at the predictor.", SECONDS,
             [query(f"time() - {gauge('node_last_sample_timestamp_seconds')}", "age")], thresholds=steps((15, ORANGE), (60, RED)), decimals=0),
        stat("Waiting to be sent", "Samples in the agent's spool. It grows while the predictor is away, and empties afterwards.", COUNT,
             [query(gauge("agent_spool_samples"), "samples")], thresholds=steps((60, ORANGE), (3600, RED)), decimals=0),
    ]


def machine():
    return [
        lines("Cores", "Share of all cores' time: busy, waiting for disks, or taken by the hypervisor.", RATIO,
              [query(gauge("node_cpu_ratio", "mode"), "{{mode}}")], lowest=0),
        lines("Pressure (PSI)", "Share of the time in which some (solid) or all tasks (dashed) waited for cores, memory or disks.", RATIO,
              [query(gauge("node_pressure_ratio", "resource", ', tasks="some"'), "{{resource}}"),
               query(gauge("node_pressure_ratio", "resource", ', tasks="full"'), "{{resource}}")],
              thresholds=PRESSURE_STEPS, lowest=0, overrides=[by_query("B", **DASHED)]),
        lines("Memory", "What is in use, and what there is.", "bytes",
              [query(f"{gauge('node_memory_size_bytes')} - {gauge('node_memory_available_bytes')}", "used"),
               query(gauge("node_memory_size_bytes"), "size")], lowest=0, overrides=[by_query("B", **DASHED)]),
        lines("Tasks", "Tasks that run or wait for a core, tasks that disks block, the load of a minute, and the cores there are.", COUNT,
              [query(gauge("node_tasks", "state"), "{{state}}"), query(gauge("node_load1"), "load"), query(gauge("node_cores"), "cores")],
              lowest=0, overrides=[by_query("C", **DASHED)]),
    ]


def processes():
    return [
        lines("Cores of each process", "CPU time of the watched processes, and of everything else beside them.", "none",
              [query(gauge("process_cpu_cores", "pid"), "{{pid}}"), query(gauge("process_other_cpu_cores"), "everything else")], lowest=0,
              overrides=[by_query("B", **DASHED)]),
        lines("Processes that wait for a core", "Time that each process's threads waited for a core, over the time that passed; may pass 100 % with many threads.",
              RATIO, [query(gauge("process_run_queue_wait_ratio", "pid"), "{{pid}}")], thresholds=PRESSURE_STEPS, lowest=0),
        lines("Memory of each process", "Resident memory.", "bytes", [query(gauge("process_resident_memory_bytes", "pid"), "{{pid}}")], lowest=0),
        lines("Switches of each process", "Context switches a second: involuntary ones (dashed) are others taking the core.", "cps",
              [query(gauge("process_context_switches_per_second", "pid", ', kind="voluntary"'), "{{pid}}"),
               query(gauge("process_context_switches_per_second", "pid", ', kind="involuntary"'), "{{pid}}")], lowest=0,
              overrides=[by_query("B", **DASHED)]),
    ]


def gpus():
    return [
        lines("GPU busy", "Share of the time in which a kernel ran; says nothing about how much of the GPU it used.", RATIO,
              [query(gauge("gpu_busy_ratio", "gpu"), "GPU {{gpu}}")], lowest=0, highest=1, width=8),
        lines("GPU memory in use", "Share of each GPU's memory.", RATIO,
              [query(f"{gauge('gpu_memory_used_bytes', 'gpu')} / {gauge('gpu_memory_size_bytes', 'gpu')}", "GPU {{gpu}}")],
              thresholds=MEMORY_STEPS, lowest=0, highest=1, width=8),
        lines("GPU clocks", "Clock of the streaming multiprocessors: it gives way to heat and to the power limit.", "hertz",
              [query(gauge("gpu_clock_hertz", "gpu", ', clock="sm"'), "GPU {{gpu}}")], lowest=0, width=8),
        lines("GPU power", "What each GPU draws.", "watt", [query(gauge("gpu_power_watts", "gpu"), "GPU {{gpu}}")], lowest=0, width=8),
        lines("GPU temperature", "As the driver says.", "celsius", [query(gauge("gpu_temperature_celsius", "gpu"), "GPU {{gpu}}")],
              thresholds=steps((80, ORANGE), (90, RED)), width=8),
        lines("GPU throttled", "1 while clocks are lowered for a reason, in the driver's words. Idle GPUs are lowered too.", "none",
              [query(gauge("gpu_throttled", "gpu, reason"), "GPU {{gpu}}: {{reason}}")], thresholds=steps((1, ORANGE)), lowest=0, width=8),
    ]


def agent():
    return [
        lines("Samples", "Samples that were taken, and that the predictor acknowledged, a second.", "cps",
              [query(rate("agent_samples_taken_total"), "taken"), query(rate("agent_samples_sent_total"), "sent")], lowest=0, width=8),
        lines("Samples lost", "Samples a second that were skipped, dropped or refused.", "cps",
              [query(rate("agent_samples_skipped_total"), "skipped"), query(rate("agent_samples_rejected_total"), "refused"),
               query(rate("agent_samples_dropped_total", "reason"), "dropped: {{reason}}")], thresholds=steps((0.01, ORANGE), (1, RED)),
              lowest=0, width=8),
        lines("Spool", "Samples on disk that wait to be sent, in bytes, and the room for them.", "bytes",
              [query(gauge("agent_spool_bytes"), "waiting"), query(gauge("agent_spool_limit_bytes"), "room")], lowest=0, width=8,
              overrides=[by_query("B", **DASHED)]),
        lines("Readings missing", "Readings a second that could not be taken, by name. A forecast does without them.", "cps",
              [query(rate("agent_readings_missing_total", "source, name"), "{{source}}: {{name}}")], lowest=0),
        lines("Uplink", "1 while the predictor answers the agent, 0 while it does not; and attempts a second that led to nothing.", "none",
              [query(gauge("agent_uplink_up"), "up"), query(rate("agent_send_failures_total"), "failures a second")],
              thresholds=steps((1, GREEN), base=RED), lowest=0),
    ]


def annotations():
    return [annotation("Throttling", f"max by (gpu, reason) (evenstep_gpu_throttled{{{CHOSEN}, reason=~\".*(thermal|power_brake).*\"}}) > 0", RED,
                       title="GPU {{gpu}} is throttled: {{reason}}", tags="reason"),
            annotation("Agent started", f"""max(evenstep_agent_info{{{CHOSEN}}})
                       unless max(evenstep_agent_info{{{CHOSEN}}} offset $__rate_interval)""", GREEN, title="The agent is there")]


def build():
    return dashboard(
        NODE, "Evenstep: node", "One machine as its agent measures it: cores, pressure, memory, watched processes, GPUs, and the agent itself.",
        glance() + [row("Machine")] + machine() + [row("Watched processes")] + processes() + [row("GPUs")] + gpus() + [row("Agent")] + agent(),
        variables=[
            source_variable("prometheus"),
            variable("node", "Node", "Nodes whose agents Prometheus scrapes.", "label_values(evenstep_node_info, node)"),
        ],
        annotations=annotations())
