"""Dashboard of one job: predicted and actual speeds, waiting times, and decisions."""

from .panels import (BLUE, COLOURED_TEXT, COUNT, DASHED, GREEN, GREY, ORANGE, RATIO, RED, SAMPLES, SECONDS, SPEED,
                     annotation, by_name, by_pattern, by_query, columns, dashboard, lines, link, query, row, source_variable, stat, states,
                     steps, table, to_dashboard, value_of, values, variable)
from .uids import JOB

JOB_ONLY = 'job_id="$job_id"'
CHOSEN = 'job_id="$job_id", worker=~"$worker"'


def of_worker(metric, labels=CHOSEN):
    """Returns a gauge by worker, from any predictor."""
    return f"max by (worker) (evenstep_worker_{metric}{{{labels}}})"


def spent(what, labels, by=""):
    """Returns the time per second spent in compute, barrier wait or loader wait."""
    return f"sum {by} (rate(evenstep_worker_{what}_seconds_total{{{labels}}}[$__rate_interval]))"


def share_of_time(what, labels, by=""):
    """Returns the share of the workers' time spent in compute, barrier wait or loader wait."""
    whole = " + ".join(spent(part, labels, by) for part in ("compute", "barrier_wait", "loader_wait"))
    return f"{spent(what, labels, by)} / ({whole})"


SPEED_OF = of_worker("speed_samples_per_second")
PREDICTED = of_worker("predicted_speed_samples_per_second")
ERROR = f"{SPEED_OF} / {PREDICTED} - 1"
# Forecast error of each worker, from its mean speeds over the whole range.
ERROR_OF_RANGE = f"""abs(
    max by (worker) (avg_over_time(evenstep_worker_speed_samples_per_second{{{CHOSEN}}}[$__range]))
  / max by (worker) (avg_over_time(evenstep_worker_predicted_speed_samples_per_second{{{CHOSEN}}}[$__range])) - 1)"""
REPORT_AGE = f"time() - {of_worker('last_report_timestamp_seconds')}"
SILENT_S = 60
SLOW = -0.1

ERROR_STEPS = steps((-0.1, GREEN), (0.1, ORANGE), base=ORANGE)
ABSOLUTE_ERROR_STEPS = steps((0.1, ORANGE), (0.25, RED))
WAIT_STEPS = steps((0.1, ORANGE), (0.25, RED))
AGE_STEPS = steps((30, ORANGE), (SILENT_S, RED))


def happened(metric, labels, by):
    """Returns the increases of a counter, including its first appearance, which `increase` misses."""
    now = f"sum by ({by}) ({metric}{{{labels}}})"
    return f"{now} - (sum by ({by}) ({metric}{{{labels}}} offset $__rate_interval) or {now} * 0) > 0"


def glance():
    return [
        stat("Mean forecast error", """Mean of |actual - predicted| / predicted speed over the selected workers and time range. Below
             10 %, the shares are about right.""", RATIO, [query(f"avg(abs({ERROR}))", "mean |error|")],
             thresholds=ABSOLUTE_ERROR_STEPS, calc="mean", decimals=1),
        stat("Worst forecast", "Worker with the largest mean forecast error in the selected time range.", RATIO,
             [query(f"topk(1, {ERROR_OF_RANGE})", "{{worker}}", instant=True)], thresholds=ABSOLUTE_ERROR_STEPS,
             text="value_and_name", decimals=1),
        stat("Live workers", "Live workers of the job. Below the job's minimum, the job is paused.", "none",
             [query(f'max(evenstep_job_workers{{{JOB_ONLY}, state="live"}})', "live")], thresholds=steps((1, GREEN), base=RED)),
        stat("Time lost to waiting", """Share of all workers' time spent waiting at the barrier for the slowest worker: the cost of
             stragglers.""", RATIO, [query(share_of_time("barrier_wait", JOB_ONLY), "waiting")], thresholds=WAIT_STEPS,
             decimals=1),
        stat("Gain over even shares", """Predicted extra time of the latest step with even shares. Near 0 %, all workers are equally
             fast.""", RATIO,
             [query(f"max(evenstep_job_even_step_time_seconds{{{JOB_ONLY}}} / "
                    f"evenstep_job_predicted_step_time_seconds{{{JOB_ONLY}}}) - 1", "gain")],
             thresholds=steps((-0.02, GREEN), base=ORANGE), decimals=1),
        stat("Oldest report", "Longest time since the last report of a worker.", SECONDS,
             [query(f"max({REPORT_AGE})", "age")], thresholds=AGE_STEPS, decimals=0),
    ]


def speeds():
    return [
        lines("Predicted and actual speed", """Samples per second of compute time, without waiting. Solid: measured. Dashed, in the
              same color: predicted for the same iteration.""", SPEED,
              [query(SPEED_OF, "{{worker}}"), query(PREDICTED, "{{worker}}")], width=24, height=10,
              overrides=[by_query("B", **DASHED)]),
        lines("Forecast error", """(actual - predicted) / predicted speed of each worker. Below 0, the worker was slower than
              predicted. Between the orange areas, within 10 %, the shares are about right.""", RATIO, [query(ERROR, "{{worker}}")],
              thresholds=ERROR_STEPS, band=True, decimals=1),
        states("State by worker", f"""Slow: over 10 % slower than predicted in the latest iteration. Silent: no report for
               {SILENT_S} s.""",
               [query(f"clamp_max(2 * ({REPORT_AGE} > bool {SILENT_S}) + (({ERROR} < bool {SLOW}) or 0 * {SPEED_OF}), 2)",
                      "{{worker}}")],
               values(("ok", GREEN), ("slow", ORANGE), ("silent", RED)), thresholds=steps((1, ORANGE), (2, RED))),
    ]


def shares():
    batch = of_worker("local_batch_samples")
    whole = f"max(evenstep_job_global_batch_samples{{{JOB_ONLY}}})"
    iteration = f"sum by (le) (rate(evenstep_iteration_duration_seconds_bucket{{{JOB_ONLY}}}[$__rate_interval]))"
    return [
        lines("Shares of the batch", """Share of the global batch by worker in the latest allocation. The shared tail is left for
              workers to claim during the iteration.""", RATIO,
              [query(f"{batch} / scalar({whole})", "{{worker}}"),
               query(f"max(evenstep_job_tail_samples{{{JOB_ONLY}}}) / scalar({whole})", "tail")],
              stacked=True, lowest=0, decimals=0, overrides=[by_name("tail", color={"fixedColor": GREY, "mode": "fixed"})]),
        lines("Predicted finish by worker", """Predicted compute time of each worker's share, from the start of the
              iteration. If the lines coincide, no worker waits.""", SECONDS,
              [query(of_worker("predicted_compute_time_seconds"), "{{worker}}")], lowest=0),
        lines("Iteration time", """Median and 99th percentile of the slowest worker's time, from the histogram; predicted
              time with these shares and with even shares.""", SECONDS,
              [query(f"histogram_quantile(0.5, {iteration})", "p50"), query(f"histogram_quantile(0.99, {iteration})", "p99"),
               query(f"max(evenstep_job_predicted_step_time_seconds{{{JOB_ONLY}}})", "predicted"),
               query(f"max(evenstep_job_even_step_time_seconds{{{JOB_ONLY}}})", "predicted, even shares")],
              overrides=[by_query("C", **DASHED), by_query("D", **DASHED)], lowest=0),
        lines("Waiting at the barrier", """Share of each worker's time spent waiting for the slowest worker. A worker that hardly waits
              while all others do is the straggler.""", RATIO, [query(share_of_time("barrier_wait", CHOSEN, "by (worker)"), "{{worker}}")],
              thresholds=WAIT_STEPS, lowest=0, decimals=1),
    ]


def workers():
    names = {"worker": "Worker", "device": "Device", value_of("A"): None, value_of("B"): "Batch", value_of("C"): "Predicted",
             value_of("D"): "Actual", value_of("E"): "Error", value_of("F"): "Waiting", value_of("G"): "Last report"}
    questions = [
        f"max by (worker, device) (evenstep_worker_info{{{CHOSEN}}})", of_worker("local_batch_samples"), PREDICTED, SPEED_OF,
        ERROR, share_of_time("barrier_wait", CHOSEN, "by (worker)"), f"{of_worker('last_report_timestamp_seconds')} * 1000"]
    return [table(
        "Workers", "Current state of each worker. The name links to this dashboard with only this worker.",
        [query(text, instant=True, table=True) for text in questions], sort=("Error", False), transformations=columns(**names),
        overrides=[
            by_name("Worker", links=[link("Only this worker", to_dashboard(JOB, job_id="${job_id}", worker="${__value.text}"))]),
            by_name("Batch", unit=SAMPLES), by_pattern("Predicted|Actual", unit=SPEED, decimals=1),
            by_name("Error", unit=RATIO, decimals=1, thresholds={"mode": "absolute", "steps": ERROR_STEPS},
                    custom__cellOptions=COLOURED_TEXT),
            by_name("Waiting", unit=RATIO, decimals=1, thresholds={"mode": "absolute", "steps": WAIT_STEPS},
                    custom__cellOptions=COLOURED_TEXT),
            by_name("Last report", unit="dateTimeFromNow")])]


def bands():
    """Returns a folded row with one panel per worker. Grafana queries the panels only when the row is open."""
    name = {"custom__fillOpacity": 15, "custom__lineWidth": 0}
    return row("Prediction interval by worker", [
        lines("$worker", "Measured speed (solid) and the predicted 90 % interval for the same iteration (area).", SPEED,
              [query(SPEED_OF, "actual"), query(PREDICTED, "predicted"),
               query(of_worker("predicted_speed_samples_per_second_lower"), "lower"),
               query(of_worker("predicted_speed_samples_per_second_upper"), "upper")],
              overrides=[by_query("B", **DASHED), by_query("C", **name), by_query("D", **name, custom__fillBelowTo="lower")],
              width=6, repeat="worker")])


def loop():
    """Returns the panels of metrics that only the training loop has, from the launcher's /metrics."""
    def rate(what):
        return f"sum(rate(evenstep_trainer_{what}_total{{{JOB_ONLY}}}[$__rate_interval]))"
    step = f"sum by (le) (rate(evenstep_trainer_step_duration_seconds_bucket{{{JOB_ONLY}}}[$__rate_interval]))"
    return row("The training loop", [
        lines("Training throughput", "Samples per second of the whole step, including waiting and communication, as reported by the launcher.", SPEED,
              [query(rate("samples"), "samples/s")], lowest=0),
        lines("Step time", "Median and 99th percentile of the time from the start of an iteration to the end of the optimizer step.",
              SECONDS, [query(f"histogram_quantile(0.5, {step})", "p50"), query(f"histogram_quantile(0.99, {step})", "p99")], lowest=0),
        lines("Allocation wait", "Share of the step time spent waiting for the allocation. Prefetching keeps it near 0.", RATIO,
              [query(f"{rate('request_seconds')} / sum(rate(evenstep_trainer_step_duration_seconds_sum{{{JOB_ONLY}}}[$__rate_interval]))",
                     "asking")], thresholds=steps((0.02, ORANGE), (0.1, RED)), lowest=0),
        lines("Missed allocations", "Iterations per second that reused the previous allocation because the predictor was unreachable or late.", "cps",
              [query(rate("allocations_missed"), "missed")], thresholds=steps((0.01, ORANGE), (1, RED)), lowest=0),
        lines("Loss", "Mean loss of the latest iteration.", COUNT, [query(f"max(evenstep_trainer_loss{{{JOB_ONLY}}})", "loss")]),
        lines("Learning rate", "Multiplier of the learning rate: planned by the predictor (dashed) and applied by the training loop.", "none",
              [query(f"max(evenstep_job_learning_rate_multiplier_ratio{{{JOB_ONLY}}})", "planned"),
               query(f"max(evenstep_trainer_learning_rate_multiplier_ratio{{{JOB_ONLY}}})", "done")],
              overrides=[by_query("A", **DASHED)]),
    ])


def annotations():
    changes = "evenstep_worker_membership_changes_total"
    return [
        annotation("Joined", happened(changes, f'{JOB_ONLY}, event="joined"', "event"), GREEN, title="A worker joined"),
        annotation("Left", happened(changes, f'{JOB_ONLY}, event=~"left|expired"', "event"), RED, title="A worker left: {{event}}",
                   tags="event"),
        annotation("Refit", f"max(evenstep_model_last_refit_timestamp_seconds{{{JOB_ONLY}}}) * 1000", GREY, title="Networks were refitted",
                   value_is_time=True, enable=False),
        annotation("Reallocation", happened("evenstep_reallocations_total", JOB_ONLY, "reason"), BLUE, title="Shares changed: {{reason}}",
                   tags="reason"),
    ]


def build():
    return dashboard(
        JOB, "Evenstep: job", """One job: predicted and actual speed of its workers, waiting times, shares of the batch, and the
        reasons for changes.""",
        glance() + [row("Predicted and actual")] + speeds() + [row("Shares and time")] + shares() + workers() + [bands(), loop()],
        variables=[
            source_variable("prometheus"),
            variable("job_id", "Job", "Jobs in the selected time range.", "label_values(evenstep_job_workers, job_id)"),
            variable("worker", "Worker", "Workers of the job.", f"label_values(evenstep_worker_info{{{JOB_ONLY}}}, worker)", many=True),
        ],
        annotations=annotations())
