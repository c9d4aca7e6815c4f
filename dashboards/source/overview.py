"""Overview dashboard of all jobs and nodes."""

from .job import ABSOLUTE_ERROR_STEPS, WAIT_STEPS
from .panels import (COLOURED_TEXT, COUNT, GREEN, ORANGE, RATIO, RED, SECONDS, SPEED, by_name, by_pattern, columns, dashboard, lines, link,
                     query, row, source_variable, stat, steps, table, to_dashboard, value_of, variable)
from .uids import JOB, NODE, OVERVIEW

CHOSEN = 'job_id=~"$job_id"'
SILENT_S = 60
BY_JOB = "by (job_id)"


def rate(metric, by=BY_JOB):
    """Returns the rate per second, summed over the workers of each job."""
    return f"sum {by} (rate(evenstep_worker_{metric}_total{{{CHOSEN}}}[$__rate_interval]))"


def waiting(by=BY_JOB):
    """Returns the share of the workers' time spent waiting for the slowest worker."""
    parts = " + ".join(rate(f"{part}_seconds", by) for part in ("compute", "barrier_wait", "loader_wait"))
    return f"{rate('barrier_wait_seconds', by)} / ({parts})"


ERROR = f"""abs(evenstep_worker_speed_samples_per_second{{{CHOSEN}}}
          / evenstep_worker_predicted_speed_samples_per_second{{{CHOSEN}}} - 1)"""
LIVE = f'max by (job_id) (evenstep_job_workers{{{CHOSEN}, state="live"}})'
STEP = f"""sum by (job_id) (rate(evenstep_iteration_duration_seconds_sum{{{CHOSEN}}}[$__rate_interval]))
         / sum by (job_id) (rate(evenstep_iteration_duration_seconds_count{{{CHOSEN}}}[$__rate_interval]))"""
GAIN = f"""max by (job_id) (evenstep_job_even_step_time_seconds{{{CHOSEN}}}
         / evenstep_job_predicted_step_time_seconds{{{CHOSEN}}}) - 1"""
AGE = "time() - max by (node) (evenstep_node_last_sample_timestamp_seconds)"


def glance():
    return [
        stat("Active jobs", "Jobs with an iteration reported in the last minute.", "none",
             [query(f"count(max by (job_id) (evenstep_worker_last_report_timestamp_seconds{{{CHOSEN}}}) > time() - 60) or vector(0)", "jobs")],
             thresholds=steps((1, GREEN), base=ORANGE)),
        stat("Live workers", "Live workers of the selected jobs.", "none", [query(f"sum({LIVE})", "live")],
             thresholds=steps((1, GREEN), base=ORANGE)),
        stat("Throughput", "Samples per second of the selected jobs.", SPEED, [query(rate("samples", ""), "samples/s")],
             thresholds=steps((0.1, GREEN), base=ORANGE), decimals=1),
        stat("Time lost to waiting", "Share of all workers' time spent waiting at the barrier for the slowest worker.", RATIO,
             [query(waiting(""), "waiting")], thresholds=WAIT_STEPS, decimals=1),
        stat("Mean forecast error", "Mean of |actual - predicted| / predicted speed over workers and the selected time range.", RATIO,
             [query(f"avg({ERROR})", "mean |error|")], thresholds=ABSOLUTE_ERROR_STEPS, calc="mean", decimals=1),
        stat("Oldest telemetry", f"""Longest time since the last sample of a node. An agent counts as silent above {SILENT_S} s. The
             predictor drops a node after one day without samples.""", SECONDS, [query(f"max({AGE})", "age")],
             thresholds=steps((15, ORANGE), (SILENT_S, RED)), decimals=0),
    ]


def jobs():
    names = {"job_id": "Job", value_of("A"): "Workers", value_of("B"): "Iteration", value_of("C"): "Step", value_of("D"): "Throughput",
             value_of("E"): "Waiting", value_of("F"): "Error", value_of("G"): "Gain over even shares", value_of("H"): "Last report"}
    questions = [
        LIVE, f"max by (job_id) (evenstep_job_iteration{{{CHOSEN}}})", STEP, rate("samples"), waiting(), f"avg by (job_id) ({ERROR})", GAIN,
        f"max by (job_id) (evenstep_worker_last_report_timestamp_seconds{{{CHOSEN}}}) * 1000"]
    to_job = link("This job", to_dashboard(JOB, job_id="${__value.text}"))
    return table(
        "Jobs", "Current state of each job. The name links to the dashboard of the job.", [query(text, instant=True, table=True) for text in questions],
        sort=("Waiting", True), transformations=columns(**names),
        overrides=[
            by_name("Job", links=[to_job]), by_pattern("Workers|Iteration", unit="none"), by_name("Step", unit=SECONDS, decimals=3),
            by_name("Throughput", unit=SPEED, decimals=1),
            by_name("Waiting", unit=RATIO, decimals=1, thresholds={"mode": "absolute", "steps": WAIT_STEPS},
                    custom__cellOptions=COLOURED_TEXT),
            by_name("Error", unit=RATIO, decimals=1, thresholds={"mode": "absolute", "steps": ABSOLUTE_ERROR_STEPS},
                    custom__cellOptions=COLOURED_TEXT),
            by_name("Gain over even shares", unit=RATIO, decimals=1), by_name("Last report", unit="dateTimeFromNow")])


def courses():
    to_job = [link("This job", to_dashboard(JOB, job_id="${__field.labels.job_id}"))]
    return [
        lines("Throughput by job", "Samples per second, summed over the workers of the job.", SPEED, [query(rate("samples"), "{{job_id}}")], lowest=0,
              links=to_job),
        lines("Iteration time", "Mean over iterations of the slowest worker's time.", SECONDS, [query(STEP, "{{job_id}}")], lowest=0,
              links=to_job),
        lines("Time lost to waiting by job", "Share of the workers' time spent waiting for the slowest worker.", RATIO,
              [query(waiting(), "{{job_id}}")], thresholds=WAIT_STEPS, lowest=0, decimals=1, links=to_job),
        lines("Forecast error", "Mean of |actual - predicted| / predicted speed over the workers of the job.", RATIO,
              [query(f"avg by (job_id) ({ERROR})", "{{job_id}}")], thresholds=ABSOLUTE_ERROR_STEPS, lowest=0, decimals=1, links=to_job),
    ]


def nodes():
    to_node = [link("This node", to_dashboard(NODE, node="${__field.labels.node}"))]
    return [
        lines("Age of telemetry", "Time since the last sample of each node arrived at the predictor.", SECONDS, [query(AGE, "{{node}}")],
              thresholds=steps((15, ORANGE), (SILENT_S, RED)), lowest=0, width=8, links=to_node),
        lines("Busy cores", "Share of all cores' time, as reported by the agent of each node.", RATIO,
              [query('max by (node) (evenstep_node_cpu_ratio{mode="busy"})', "{{node}}")], lowest=0, highest=1, width=8, links=to_node),
        lines("Worker restarts", "Number of workers that launchers restarted, per rate interval.", COUNT,
              [query("sum by (instance) (increase(evenstep_launcher_restarts_total[$__rate_interval]))", "{{instance}}")],
              thresholds=steps((1, ORANGE)), lowest=0, width=8),
    ]


def build():
    return dashboard(
        OVERVIEW, "Evenstep: overview", "All jobs: training speed, time lost to waiting, and forecast errors.",
        glance() + [jobs(), row("Over time")] + courses() + [row("Nodes and launchers")] + nodes(),
        variables=[
            source_variable("prometheus"),
            variable("job_id", "Job", "Jobs in the selected time range.", "label_values(evenstep_job_workers, job_id)", many=True),
        ])
