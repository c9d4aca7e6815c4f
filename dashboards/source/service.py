"""Dashboard of the predictor: response times, telemetry intake and store."""

from .panels import (BLUE, COUNT, DASHED, GREEN, GREY, ORANGE, PURPLE, RED, SECONDS, by_name, by_pattern, by_query, colored, columns, dashboard, firing, heatmap, lines,
                     query, row, source_variable, stat, steps, table, value_of, variable)
from .uids import SERVICE

CHOSEN = 'instance=~"$instance"'


def quantile(share, histogram, labels=CHOSEN):
    buckets = f"sum by (le) (rate(evenstep_{histogram}_duration_seconds_bucket{{{labels}}}[$__rate_interval]))"
    # Without a response in the interval there is no quantile.
    return f"histogram_quantile({share}, {buckets}) >= 0"


def rate(metric, by, labels=CHOSEN):
    return f"sum by ({by}) (rate(evenstep_{metric}{{{labels}}}[$__rate_interval]))"


NEW = f'{CHOSEN}, answer="new"'
ALLOCATE_STEPS = steps((0.05, ORANGE), (0.25, RED))
COMMIT_STEPS = steps((0.1, ORANGE), (1, RED))


def glance():
    return [
        firing(', instance=~"$instance|"'),
        stat("Predictors", "Predictors that Prometheus scrapes successfully.", "none", [query(f"count(evenstep_build_info{{{CHOSEN}}})", "predictors")],
             thresholds=steps((1, GREEN), base=RED), width=3),
        stat("/allocate, p99", "99th percentile of the time of new allocations, including the durable commit, as measured in the service.", SECONDS,
             [query(quantile(0.99, "allocate", NEW), "p99")], thresholds=ALLOCATE_STEPS, width=4),
        stat("Telemetry", "Stored telemetry samples per second.", "cps", [query(f"sum({rate('telemetry_samples_total', 'instance')})", "samples")],
             thresholds=steps(), width=4),
        stat("Failed refits", "Failed fits of networks in the selected time range. After a failed fit, the previous model stays in use.", COUNT,
             [query(f'sum(increase(evenstep_model_refits_total{{{CHOSEN}, outcome="failed"}}[$__range]))', "failed", instant=True)],
             thresholds=steps((1, ORANGE), (10, RED)), decimals=0, width=3),
        stat("Failed commits", "Groups of writes that the store rejected in the selected time range.", COUNT,
             [query(f"sum(increase(evenstep_store_commit_failures_total{{{CHOSEN}}}[$__range]))", "failed", instant=True)],
             thresholds=steps((1, RED)), decimals=0, width=3),
        stat("Up since", "Start time of the most recently started predictor.", "dateTimeFromNow",
             [query(f'max(process_start_time_seconds{{{CHOSEN}}} and on (instance) evenstep_build_info) * 1000', "began")], thresholds=steps()),
    ]


def answers():
    return [
        lines("Time of /allocate", "Median and 99th percentile of new allocations, including the durable commit, and 99th percentile of repeated ones.", SECONDS,
              [query(quantile(0.5, "allocate", NEW), "new, p50"), query(quantile(0.99, "allocate", NEW), "new, p99"),
               query(quantile(0.99, "allocate", f'{CHOSEN}, answer="repeated"'), "repeated, p99")],
              thresholds=ALLOCATE_STEPS, lowest=0,
              overrides=[by_query("A", **colored(BLUE)), by_query("B", **colored(PURPLE)), by_query("C", **colored(GREY, **DASHED))]),
        heatmap("Time of /allocate, distribution", "Number of responses by duration.", SECONDS,
                [query(f"sum by (le) (increase(evenstep_allocate_duration_seconds_bucket{{{CHOSEN}}}[$__rate_interval]))", "{{le}}", heatmap=True)]),
        lines("Allocations", "Responses of /allocate per second: new, repeated or refused.", "reqps",
              [query(rate("allocate_duration_seconds_count", "answer"), "{{answer}}")], lowest=0),
        lines("Requests", "All requests per second by status class. 5xx are errors of the predictor.", "reqps",
              [query(rate("http_requests_total", "status"), "{{status}}")], lowest=0,
              overrides=[by_name("2xx", **colored(GREEN)), by_name("4xx", **colored(ORANGE)), by_name("5xx", **colored(RED))]),
    ]


def learning():
    return [
        lines("Telemetry accepted", "Stored telemetry samples per second.", "cps", [query(rate("telemetry_samples_total", "instance"), "{{instance}}")],
              lowest=0),
        lines("Telemetry rejected", "Rejected batches per second by reason: busy (the agent retries), invalid, too large, or store failure.", "cps",
              [query(rate("telemetry_rejected_total", "reason"), "{{reason}}")], thresholds=steps((0.1, ORANGE)), lowest=0),
        lines("Time of a refit", "Median and 99th percentile of the time to fit networks, on background threads.", SECONDS,
              [query(quantile(0.5, "model_refit"), "p50"), query(quantile(0.99, "model_refit"), "p99")], lowest=0,
              overrides=[by_name("p50", **colored(BLUE)), by_name("p99", **colored(PURPLE))]),
        lines("Refits", "Network fits per second, successful and failed.", "cps", [query(rate("model_refits_total", "outcome"), "{{outcome}}")], lowest=0,
              overrides=[by_name("failed", **colored(RED)), by_name("fitted", **colored(GREEN))]),
    ]


def store():
    return [
        lines("Time of a commit", "Median and 99th percentile of the time to commit one group of writes durably.", SECONDS,
              [query(quantile(0.5, "store_commit"), "p50"), query(quantile(0.99, "store_commit"), "p99")], thresholds=COMMIT_STEPS, lowest=0,
              width=8, overrides=[by_name("p50", **colored(BLUE)), by_name("p99", **colored(PURPLE))]),
        lines("Queued writes", "Writes waiting for the store. Urgent: writes that training waits for. Bulk: telemetry.", COUNT,
              [query(f"sum by (queue) (evenstep_store_queue_writes{{{CHOSEN}}})", "{{queue}}")], lowest=0, width=8),
        lines("Queued bytes", "Memory of the queued writes.", "bytes",
              [query(f"sum by (queue) (evenstep_store_queue_bytes{{{CHOSEN}}})", "{{queue}}")], lowest=0, width=8),
    ]


def process():
    mine = f"{{{CHOSEN}}} and on (instance) evenstep_build_info"
    names = {"instance": "Predictor", "version": "Version", value_of("A"): None, value_of("B"): "Jobs", value_of("C"): "Requests"}
    return [
        lines("Memory", "Resident memory of the predictor's process.", "bytes", [query(f"process_resident_memory_bytes{mine}", "{{instance}}")],
              lowest=0, width=8),
        lines("Processor", "CPU time of the predictor's process, in cores.", "none",
              [query(f"rate(process_cpu_seconds_total{{{CHOSEN}}}[$__rate_interval]) and on (instance) evenstep_build_info", "{{instance}}")],
              lowest=0, width=8),
        lines("Open files", "Open connections and files, and the limit of the process.", COUNT,
              [query(f"process_open_fds{mine}", "{{instance}}"), query(f"process_max_fds{mine}", "{{instance}}, limit")], lowest=0, width=8,
              overrides=[by_query("B", **DASHED)]),
        table("Predictors and their jobs", "Version, number of owned jobs and requests per second of each predictor.",
              [query(f"max by (instance, version) (evenstep_build_info{{{CHOSEN}}})", instant=True, table=True),
               query(f"count by (instance) (evenstep_job_iteration{{{CHOSEN}}})", instant=True, table=True),
               query(rate("http_requests_total", "instance"), instant=True, table=True)],
              transformations=columns(**names), height=6, sort=("Predictor", False),
              overrides=[by_pattern("Jobs", unit="none"), by_name("Requests", unit="reqps", decimals=1)]),
    ]


def build():
    return dashboard(
        SERVICE, "Evenstep: service", "The predictor: response times, telemetry intake, background fits and the store.",
        glance() + [row("Allocations and requests")] + answers() + [row("Telemetry and learning")] + learning() + [row("Store")] + store() + [row("Process")]
        + process(),
        docs={"Alerts": "docs/how-to/alerts.md", "Operation": "docs/how-to/operate.md"},
        variables=[
            source_variable(),
            variable("instance", "Predictor", "Predictors that Prometheus scrapes.", "label_values(evenstep_build_info, instance)", many=True),
        ])
