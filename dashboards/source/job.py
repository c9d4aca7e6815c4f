"""One job: what was predicted, what came, who waits for whom, and what was decided."""

from .panels import (BLUE, COLOURED_TEXT, COUNT, DASHED, GREEN, GREY, ORANGE, RATIO, RED, SAMPLES, SECONDS, SPEED,
                     annotation, by_name, by_pattern, by_query, columns, dashboard, lines, link, query, row, source_variable, stat, states,
                     steps, table, to_dashboard, value_of, values, variable)
from .uids import JOB

JOB_ONLY = 'job_id="$job_id"'
CHOSEN = 'job_id="$job_id", worker=~"$worker"'


def of_worker(metric, labels=CHOSEN):
    """A gauge of each worker, whichever predictor says it."""
    return f"max by (worker) (evenstep_worker_{metric}{{{labels}}})"


def spent(what, labels, by=""):
    """Seconds a second that went into compute, barrier wait or loader wait."""
    return f"sum {by} (rate(evenstep_worker_{what}_seconds_total{{{labels}}}[$__rate_interval]))"


def share_of_time(what, labels, by=""):
    """Share of the workers' time that went into something."""
    whole = " + ".join(spent(part, labels, by) for part in ("compute", "barrier_wait", "loader_wait"))
    return f"{spent(what, labels, by)} / ({whole})"


SPEED_OF = of_worker("speed_samples_per_second")
PREDICTED = of_worker("predicted_speed_samples_per_second")
ERROR = f"{SPEED_OF} / {PREDICTED} - 1"
# Over the whole range: of worker w, how far it was from what was predicted, on average.
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
    """Where a counter has risen, its first appearance included: `increase` knows no value before the first."""
    now = f"sum by ({by}) ({metric}{{{labels}}})"
    return f"{now} - (sum by ({by}) ({metric}{{{labels}}} offset $__rate_interval) or {now} * 0) > 0"


def glance():
    return [
        stat("Mean error of the forecast", """Mean over the chosen workers and the time shown of |actual - predicted| / predicted
             speed. Below 10 % shares are about right.""", RATIO, [query(f"avg(abs({ERROR}))", "mean |error|")],
             thresholds=ABSOLUTE_ERROR_STEPS, calc="mean", decimals=1),
        stat("Worst forecast", "The worker whose speed was furthest from its forecasts, on average over the time shown.", RATIO,
             [query(f"topk(1, {ERROR_OF_RANGE})", "{{worker}}", instant=True)], thresholds=ABSOLUTE_ERROR_STEPS,
             text="value_and_name", decimals=1),
        stat("Live workers", "Workers that take part. Below the job's minimum it is paused.", "none",
             [query(f'max(evenstep_job_workers{{{JOB_ONLY}, state="live"}})', "live")], thresholds=steps((1, GREEN), base=RED)),
        stat("Time lost to waiting", """Share of all workers' time in which they waited at the barrier for the slowest: what
             stragglers cost.""", RATIO, [query(share_of_time("barrier_wait", JOB_ONLY), "waiting")], thresholds=WAIT_STEPS,
             decimals=1),
        stat("Gain over even shares", """How much longer the latest step would take with even shares, as predicted. Near 0 % all
             workers are alike.""", RATIO,
             [query(f"max(evenstep_job_even_step_time_seconds{{{JOB_ONLY}}} / "
                    f"evenstep_job_predicted_step_time_seconds{{{JOB_ONLY}}}) - 1", "gain")],
             thresholds=steps((-0.02, GREEN), base=ORANGE), decimals=1),
        stat("Oldest report", "Time since the worker that was heard of least recently reported an iteration.", SECONDS,
             [query(f"max({REPORT_AGE})", "age")], thresholds=AGE_STEPS, decimals=0),
    ]


def speeds():
    return [
        lines("Predicted and actual speed", """Samples per second of compute time, without waiting. Solid: measured. Dashed, in the
              same colour: what had been predicted for that very iteration.""", SPEED,
              [query(SPEED_OF, "{{worker}}"), query(PREDICTED, "{{worker}}")], width=24, height=10,
              overrides=[by_query("B", **DASHED)]),
        lines("Error of the forecast", """(actual - predicted) / predicted speed of each worker; below 0 it was slower than
              expected. Between the orange areas, within 10 %, shares are about right.""", RATIO, [query(ERROR, "{{worker}}")],
              thresholds=ERROR_STEPS, band=True, decimals=1),
        states("State of each worker", f"""Slow: over 10 % slower than predicted in its latest iteration. Silent: no report for
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
        lines("Shares of the batch", """What part of the samples each worker was given in the latest answer, and what is left to a
              tail, which whoever is free computes.""", RATIO,
              [query(f"{batch} / scalar({whole})", "{{worker}}"),
               query(f"max(evenstep_job_tail_samples{{{JOB_ONLY}}}) / scalar({whole})", "tail")],
              stacked=True, lowest=0, decimals=0, overrides=[by_name("tail", color={"fixedColor": GREY, "mode": "fixed"})]),
        lines("Predicted finish of each worker", """When each is expected to have computed its share, from the start of the
              iteration. The lines should coincide: then nobody waits.""", SECONDS,
              [query(of_worker("predicted_compute_time_seconds"), "{{worker}}")], lowest=0),
        lines("Time of an iteration", """Median and 99th percentile of the longest that any worker took, from the histogram, and
              what is predicted with these shares and with even ones.""", SECONDS,
              [query(f"histogram_quantile(0.5, {iteration})", "p50"), query(f"histogram_quantile(0.99, {iteration})", "p99"),
               query(f"max(evenstep_job_predicted_step_time_seconds{{{JOB_ONLY}}})", "predicted"),
               query(f"max(evenstep_job_even_step_time_seconds{{{JOB_ONLY}}})", "predicted, even shares")],
              overrides=[by_query("C", **DASHED), by_query("D", **DASHED)], lowest=0),
        lines("Waiting at the barrier", """Share of its time in which each worker waited for the slowest. Who hardly waits while all
              others do is the straggler.""", RATIO, [query(share_of_time("barrier_wait", CHOSEN, "by (worker)"), "{{worker}}")],
              thresholds=WAIT_STEPS, lowest=0, decimals=1),
    ]


def workers():
    names = {"worker": "Worker", "device": "Device", value_of("A"): None, value_of("B"): "Batch", value_of("C"): "Predicted",
             value_of("D"): "Actual", value_of("E"): "Error", value_of("F"): "Waiting", value_of("G"): "Last report"}
    questions = [
        f"max by (worker, device) (evenstep_worker_info{{{CHOSEN}}})", of_worker("local_batch_samples"), PREDICTED, SPEED_OF,
        ERROR, share_of_time("barrier_wait", CHOSEN, "by (worker)"), f"{of_worker('last_report_timestamp_seconds')} * 1000"]
    return [table(
        "Workers", "Each worker now. Its name leads to this dashboard with this worker alone.",
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
    """Asked only when somebody unfolds it: a panel for each worker."""
    name = {"custom__fillOpacity": 15, "custom__lineWidth": 0}
    return row("Each worker in its predicted band", [
        lines("$worker", "Measured speed (solid) against the 90 % interval that had been predicted for each iteration (area).", SPEED,
              [query(SPEED_OF, "actual"), query(PREDICTED, "predicted"),
               query(of_worker("predicted_speed_samples_per_second_lower"), "lower"),
               query(of_worker("predicted_speed_samples_per_second_upper"), "upper")],
              overrides=[by_query("B", **DASHED), by_query("C", **name), by_query("D", **name, custom__fillBelowTo="lower")],
              width=6, repeat="worker")])


def loop():
    """What only the training loop knows; from the launcher's own page."""
    def rate(what):
        return f"sum(rate(evenstep_trainer_{what}_total{{{JOB_ONLY}}}[$__rate_interval]))"
    step = f"sum by (le) (rate(evenstep_trainer_step_duration_seconds_bucket{{{JOB_ONLY}}}[$__rate_interval]))"
    return row("The training loop", [
        lines("Throughput of training", "Samples over the whole step, waiting and communication included, as the launcher says.", SPEED,
              [query(rate("samples"), "samples/s")], lowest=0),
        lines("Step, with all that is in it", "Median and 99th percentile from the begin of an iteration to the end of the optimizer step.",
              SECONDS, [query(f"histogram_quantile(0.5, {step})", "p50"), query(f"histogram_quantile(0.99, {step})", "p99")], lowest=0),
        lines("Share of the steps spent asking", "Time in which a step waited for its allocation. Asking ahead keeps it near 0.", RATIO,
              [query(f"{rate('ask_seconds')} / sum(rate(evenstep_trainer_step_duration_seconds_sum{{{JOB_ONLY}}}[$__rate_interval]))",
                     "asking")], thresholds=steps((0.02, ORANGE), (0.1, RED)), lowest=0),
        lines("Iterations without an answer of their own", "They ran with the last answer: the predictor was away or late.", "cps",
              [query(rate("allocations_missed"), "missed")], thresholds=steps((0.01, ORANGE), (1, RED)), lowest=0),
        lines("Loss", "Mean loss of the latest iteration.", COUNT, [query(f"max(evenstep_trainer_loss{{{JOB_ONLY}}})", "loss")]),
        lines("Learning rate", "What the learning rate is multiplied by: as planned, and as the training loop did.", "none",
              [query(f"max(evenstep_job_learning_rate_multiplier_ratio{{{JOB_ONLY}}})", "planned"),
               query(f"max(evenstep_trainer_learning_rate_multiplier_ratio{{{JOB_ONLY}}})", "done")],
              overrides=[by_query("A", **DASHED)]),
    ])


def annotations():
    changes = "evenstep_worker_membership_changes_total"
    return [
        annotation("Joined", happened(changes, f'{JOB_ONLY}, event="joined"', "event"), GREEN, title="A worker joined"),
        annotation("Left", happened(changes, f'{JOB_ONLY}, event=~"left|expired"', "event"), RED, title="A worker is gone: {{event}}",
                   tags="event"),
        annotation("Refit", f"max(evenstep_model_last_refit_timestamp_seconds{{{JOB_ONLY}}}) * 1000", GREY, title="Networks were fitted anew",
                   value_is_time=True, enable=False),
        annotation("Reallocation", happened("evenstep_reallocations_total", JOB_ONLY, "reason"), BLUE, title="Shares changed: {{reason}}",
                   tags="reason"),
    ]


def build():
    return dashboard(
        JOB, "Evenstep: job", """One job: predicted against actual speed of its workers, who waits for whom, how the batch is
        shared, and why that changed.""",
        glance() + [row("Predicted and actual")] + speeds() + [row("Shares and time")] + shares() + workers() + [bands(), loop()],
        variables=[
            source_variable("prometheus"),
            variable("job_id", "Job", "Jobs that were there in the time shown.", "label_values(evenstep_job_workers, job_id)"),
            variable("worker", "Worker", "Workers of the job.", f"label_values(evenstep_worker_info{{{JOB_ONLY}}}, worker)", many=True),
        ],
        annotations=annotations())
