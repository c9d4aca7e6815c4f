"""Dashboard of one job: gain, slow workers, forecast error, and the reasons for changes.

Values over a time range have the definitions of the predictor's page: sums over iterations, divided by sums.
"""

from .panels import (BATCH, BLUE, CAUSES, COUNT, DASHED, GREEN, GREY, MANY, ORANGE, PURPLE, RATIO, RED, SECONDS, SPEED, TIMES, annotation, band, by_name,
                     by_pattern, by_query, by_worker, colored, columns, dashboard, firing, leveled, lines, link, query, row,
                     source_variable, stat, states, steps, table, to_dashboard, value_of, variable)
from .uids import JOB, NODE

JOB_ONLY = 'job_id="$job_id"'
CHOSEN = 'job_id="$job_id", worker=~"$worker"'
FOCUS = 'job_id="$job_id", worker="$focus"'
RANGE, NOW = "$__range", "$__rate_interval"


def of_worker(metric, labels=CHOSEN):
    """Returns a gauge by worker, from any predictor."""
    return f"max by (worker) (evenstep_worker_{metric}{{{labels}}})"


def increase(metric, labels, by="", over=NOW):
    """Returns the increase of a counter over the time range or, by default, around each moment."""
    return f"sum {by} (increase(evenstep_{metric}{{{labels}}}[{over}]))"


def ratio(part, whole):
    """Returns a ratio without the moments at which nothing happened."""
    return f"{part} / ({whole} > 0)"


def lost_share(labels, by="", over=NOW):
    """Returns the share of the step times that workers waited for the slowest worker, in the mean over the workers."""
    waited, stepped = (increase(f"job_{what}_seconds_total", labels, by, over) for what in ("waited", "step"))
    return ratio(waited, stepped)


def worker_lost_share(labels, by="", over=NOW):
    """Returns the share of each worker's time that it waited for the slowest worker."""
    parts = (increase(f"worker_{part}_seconds_total", labels, by, over) for part in ("compute", "barrier_wait", "loader_wait"))
    return ratio(increase("worker_barrier_wait_seconds_total", labels, by, over), " + ".join(parts))


def forecast_error(labels, by="", over=NOW):
    """Returns the mean of |actual - predicted| / predicted speed over forecasts."""
    return ratio(increase("worker_forecast_error_ratio_total", labels, by, over), increase("worker_forecasts_total", labels, by, over))


def gain(labels, by="", over=NOW):
    """Returns the estimated time with even shares over the measured time."""
    even, measured = (increase(f"job_{what}_seconds_total", labels, by, over) for what in ("even_shares", "measured"))
    return ratio(even, measured)


def time_saved(labels, by="", over=NOW):
    even, measured = (increase(f"job_{what}_seconds_total", labels, by, over) for what in ("even_shares", "measured"))
    return f"{even} - {measured}"


def step_time(labels, by="", over=NOW):
    """Returns the mean step time."""
    total, count = (increase(f"iteration_duration_seconds_{part}", labels, by, over) for part in ("sum", "count"))
    return ratio(total, count)


def throughput(labels, by="", over=NOW):
    """Returns the work of all workers per second of step time."""
    return ratio(increase("worker_samples_total", labels, by, over), increase("iteration_duration_seconds_sum", labels, by, over))


def quantile(share, histogram, labels):
    buckets = f"sum by (le) (rate(evenstep_{histogram}_duration_seconds_bucket{{{labels}}}[$__rate_interval]))"
    return f"histogram_quantile({share}, {buckets}) >= 0"


SPEED_OF = of_worker("speed_samples_per_second")
PREDICTED = of_worker("predicted_speed_samples_per_second")
ERROR = f"{SPEED_OF} / {PREDICTED} - 1"
AGAINST_EXPECTED = of_worker("expected_speed_ratio")
WORKERS = f"count(evenstep_worker_info{{{CHOSEN}}})"

REPORT_AGE = f"time() - {of_worker('last_report_timestamp_seconds')}"
SILENT_S = 60

ERROR_STEPS = steps((-0.1, GREEN), (0.1, ORANGE), base=ORANGE)
ABSOLUTE_ERROR_STEPS = steps((0.1, ORANGE), (0.25, RED))
WAIT_STEPS = steps((0.1, ORANGE), (0.25, RED))
GAIN_STEPS = steps((0.98, GREEN), base=ORANGE)
SAVED_STEPS = steps((0, GREEN), base=ORANGE)
EXPECTED_STEPS = steps((0, RED), (0.75, ORANGE), (0.9, GREEN), base=GREY)
SLOW_STEPS = steps((1, ORANGE))
STATES = ("starting", "running", "paused", "stalled", "finished", "failed", "unreadable")
STATE_COLORS = {"running": GREEN, "paused": ORANGE, "stalled": ORANGE, "failed": RED, "unreadable": RED}

TO_WORKER = link("This worker", to_dashboard(JOB, job_id="${job_id}", worker="${__value.text}", focus="${__value.text}"))


def happened(metric, labels, by):
    """Returns the increases of a counter, including its first appearance, which `increase` misses."""
    now = f"sum by ({by}) ({metric}{{{labels}}})"
    return f"{now} - (sum by ({by}) ({metric}{{{labels}}} offset $__rate_interval) or {now} * 0) > 0"


def glance():
    return [
        firing(', job_id=~"$job_id|"'),
        stat("State", "State of the job, as on the predictor's page: starting, running, paused, stalled, finished, failed or unreadable.", "none",
             [query(f"max by (state) (evenstep_job_state{{{JOB_ONLY}}})", "{{state}}", instant=True)], thresholds=steps(), text="name", width=3,
             overrides=[by_name(name, **colored(STATE_COLORS.get(name, GREY))) for name in STATES]),
        stat("Gain", """Estimated time with even shares over the measured time of the iterations in the selected time range. Near 1x, all
             workers are equally fast.""", TIMES,
             [query(gain(JOB_ONLY, over=RANGE), "gain", instant=True)], thresholds=GAIN_STEPS, decimals=2, width=3),
        stat("Time saved", "Time saved in the selected time range compared with even shares.", SECONDS,
             [query(time_saved(JOB_ONLY, over=RANGE), "saved", instant=True)], thresholds=SAVED_STEPS, width=3),
        stat("Time lost waiting", """Share of the step times in the selected time range that workers waited for the slowest worker.""", RATIO,
             [query(lost_share(JOB_ONLY, over=RANGE), "waiting", instant=True)], thresholds=WAIT_STEPS, decimals=1, width=3),
        stat("Forecast error", """Mean of |actual - predicted| / predicted speed over the selected workers and time range. Below 10 %, the
             shares are about right.""", RATIO,
             [query(forecast_error(CHOSEN, over=RANGE), "mean", instant=True)], thresholds=ABSOLUTE_ERROR_STEPS, decimals=1, width=3),
        stat("Slow workers", "Workers that are slower than they were, or than others on the same kind of GPU.", COUNT,
             [query(f"max(evenstep_job_stragglers{{{JOB_ONLY}}})", "slow")], thresholds=SLOW_STEPS, width=3),
        stat("Live workers", "Live workers of the job. Below the job's minimum, the job is paused.", COUNT,
             [query(f'max(evenstep_job_workers{{{JOB_ONLY}, state="live"}})', "live")], thresholds=steps((1, GREEN), base=RED), width=3),
    ]


def who():
    names = {"worker": "Worker", "reason": "Cause", value_of("A"): "Of usual speed", value_of("B"): "Since iteration"}
    against, _ = by_worker(AGAINST_EXPECTED, WORKERS, most="bottomk")
    # Workers without new reports have the value -1.
    reporting = f"({AGAINST_EXPECTED} and on (worker) ({REPORT_AGE} <= {SILENT_S})) or (0 * ({REPORT_AGE} > {SILENT_S}) - 1)"
    against[0] = query(f"({reporting}) and on () ({WORKERS} <= {MANY})", "{{worker}}")
    return [
        table("Slow workers by name", """Workers that are slower than they were, or than others on the same kind of GPU, and the likely cause. The name
              links to this dashboard with only this worker.""",
              [query(f"max by (worker, reason) (evenstep_worker_straggler_speed_ratio{{{JOB_ONLY}}})", instant=True, table=True),
               query(f"max by (worker) (evenstep_worker_straggler_since_iteration{{{JOB_ONLY}}})", instant=True, table=True)],
              width=8, height=8, sort=("Of usual speed", False), transformations=columns(**names), nothing="No slow worker",
              overrides=[by_name("Worker", links=[TO_WORKER]), by_name("Cause", mappings=CAUSES), by_name("Of usual speed", **leveled(RATIO, EXPECTED_STEPS, decimals=0)),
                         by_name("Since iteration", unit="none")]),
        states("Speed against usual", f"""Speed of each worker as a share of its usual speed: its best speed so far or, on GPUs, the
               median of the same device. Green: at least 90 %. Red: below 75 %. Grey: no report for {SILENT_S} s. With more than {MANY} workers: the slowest five, and
               quantiles.""",
               against, [{"type": "value", "options": {"-1": {"color": GREY, "index": 0, "text": "silent"}}}], unit=RATIO, thresholds=EXPECTED_STEPS, width=8, decimals=0),
        lines("Gain over time", "Estimated time with even shares over the measured time.", TIMES,
              [query(gain(JOB_ONLY), "gain")], thresholds=GAIN_STEPS, width=8, decimals=2, overrides=[by_name("gain", **colored(GREEN))]),
    ]


def speeds():
    actual, areas = by_worker(SPEED_OF, WORKERS, most="bottomk")
    # The same name gives the same color as the actual speed.
    predicted = [query(f"({PREDICTED}) and on () ({WORKERS} <= {MANY})", "{{worker}}"),
                 query(f"quantile(0.5, {PREDICTED}) and on () ({WORKERS} > {MANY})", "median, predicted")]
    errors, error_areas = by_worker(ERROR, WORKERS, most="bottomk")
    return [
        lines("Predicted and actual speed, ${unit} per second", f"""Work per second of compute time, without waiting. Solid: measured. Dashed, in
              the same color: predicted for the same iteration. With more than {MANY} workers: median, p10 to p90, and the slowest five.""",
              SPEED, [*actual, *predicted], width=24, height=10,
              overrides=[*areas, by_query("F", **DASHED, custom__hideFrom={"legend": True, "tooltip": False, "viz": False}), by_query("G", **colored(BLUE, **DASHED))]),
        lines("Forecast error by worker", """(actual - predicted) / predicted speed of each worker. Below 0, the worker was slower than
              predicted. Between the orange areas, within 10 %, the shares are about right.""", RATIO, errors,
              thresholds=ERROR_STEPS, band=True, lowest=-0.5, highest=0.5, overrides=error_areas),
        lines("Forecast error over time", "Mean of |actual - predicted| / predicted speed over the selected workers.", RATIO,
              [query(forecast_error(CHOSEN), "mean")], thresholds=ABSOLUTE_ERROR_STEPS, decimals=1, lowest=0, highest=0.5,
              overrides=[by_name("mean", **colored(BLUE))]),
        lines("Prediction interval of $focus, ${unit} per second", """Measured speed (solid) and the predicted 90 % interval for the same
              iteration (area). Select the worker above.""", SPEED,
              [query(of_worker("speed_samples_per_second", FOCUS), "actual"),
               query(of_worker("predicted_speed_samples_per_second", FOCUS), "predicted"),
               query(of_worker("predicted_speed_samples_per_second_lower", FOCUS), "lower"),
               query(of_worker("predicted_speed_samples_per_second_upper", FOCUS), "upper")], width=24, height=9,
              overrides=[by_query("A", **colored(BLUE)), by_query("B", **colored(BLUE, **DASHED)), *band("C", "D", "lower")]),
    ]


def shares():
    whole = f"scalar(max(evenstep_job_global_batch_samples{{{JOB_ONLY}}}))"
    share, share_areas = by_worker(f"{of_worker('local_batch_samples')} / {whole}", WORKERS)
    finish, finish_areas = by_worker(of_worker("predicted_compute_time_seconds"), WORKERS)
    waits, wait_areas = by_worker(worker_lost_share(CHOSEN, "by (worker)"), WORKERS, most="bottomk")
    stack = {"custom__stacking": {"group": "A", "mode": "normal"}, "custom__fillOpacity": 60, "custom__lineWidth": 0}
    return [
        lines("Shares of the batch", f"""Share of the global batch by worker in the latest allocation, stacked; the rest is the shared tail, which
              workers claim on demand. With more than {MANY} workers: quantiles and the largest five, not stacked.""", RATIO,
              [*share, query(f"max(evenstep_job_tail_samples{{{JOB_ONLY}}}) / {whole}", "claimed on demand")],
              lowest=0, highest=1,
              overrides=[*share_areas, by_query("A", **stack), by_query("F", **colored(GREY, **stack))]),
        lines("Predicted finish by worker", """Predicted compute time of each worker's share, from the start of the
              iteration. If the lines coincide, no worker waits.""", SECONDS, finish, lowest=0, overrides=finish_areas),
        lines("Step time", """Median and p95 from the histogram; expected time of the slowest worker; and the estimated mean with
              even shares.""", SECONDS,
              [query(quantile(0.5, "iteration", JOB_ONLY), "p50"), query(quantile(0.95, "iteration", JOB_ONLY), "p95"),
               query(f"max(evenstep_job_predicted_step_time_seconds{{{JOB_ONLY}}})", "expected"),
               query(f"{step_time(JOB_ONLY)} * {gain(JOB_ONLY)}", "even shares")],
              overrides=[by_query("A", **colored(BLUE)), by_query("B", **colored(PURPLE)), by_query("C", **colored(BLUE, **DASHED)),
                         by_query("D", **colored(GREY, **DASHED))], lowest=0),
        lines("Time lost waiting by worker", """Share of each worker's time that it waited for the slowest worker. A worker that hardly waits
              while all others do is the bottleneck.""", RATIO, waits,
              thresholds=WAIT_STEPS, lowest=0, highest=1, overrides=wait_areas),
        lines("Learning rate", "Multiplier of the learning rate that the predictor plans.", "none",
              [query(f"max(evenstep_job_learning_rate_multiplier_ratio{{{JOB_ONLY}}})", "planned")],
              overrides=[by_query("A", **colored(BLUE))]),
    ]


def workers():
    names = {"worker": "Worker", "device": "Device", value_of("A"): None, value_of("B"): "Of usual speed", value_of("C"): "Batch",
             value_of("D"): "Predicted", value_of("E"): "Actual", value_of("F"): "Forecast error", value_of("G"): "Waiting",
             value_of("H"): "Last report"}
    questions = [
        f"max by (worker, device) (evenstep_worker_info{{{CHOSEN}}})", AGAINST_EXPECTED, of_worker("local_batch_samples"), PREDICTED,
        SPEED_OF, ERROR, worker_lost_share(CHOSEN, "by (worker)", RANGE), f"{of_worker('last_report_timestamp_seconds')} * 1000"]
    to_node = link("Its node, if the worker's name is NODE/SLOT", to_dashboard(NODE, node="${__data.fields.Node}"))
    node = f'max by (worker, node) (label_replace(evenstep_worker_info{{{CHOSEN}}}, "node", "$1", "worker", "(.+)/.*"))'
    names |= {"node": "Node", value_of("I"): None}
    return [table(
        "Workers, ${unit}", "Current state of each worker, slowest first. The name links to this dashboard with only this worker.",
        [query(text, instant=True, table=True) for text in [*questions, node]], sort=("Of usual speed", False),
        transformations=columns(**names),
        overrides=[
            by_name("Worker", links=[TO_WORKER]), by_name("Node", links=[to_node]), by_name("Batch", unit=BATCH),
            by_name("Of usual speed", **leveled(RATIO, EXPECTED_STEPS, decimals=0)),
            by_pattern("Predicted|Actual", unit=SPEED), by_name("Forecast error", **leveled(RATIO, ERROR_STEPS, decimals=1)),
            by_name("Waiting", **leveled(RATIO, WAIT_STEPS, decimals=1)), by_name("Last report", unit="dateTimeFromNow")])]


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
        JOB, "Evenstep: job", """One job: what it gains, who is slow, forecast errors, shares of the batch, and the reasons for changes.""",
        glance() + who() + [row("Predicted and actual")] + speeds() + [row("Shares and time")] + shares() + workers(),
        docs={"Slow workers": "docs/how-to/stragglers.md", "Statistics": "docs/reference/page.md"},
        variables=[
            source_variable(),
            variable("job_id", "Job", "Jobs in the selected time range.", "label_values(evenstep_job_workers, job_id)"),
            variable("worker", "Worker", "Workers of the job.", f"label_values(evenstep_worker_info{{{JOB_ONLY}}}, worker)", many=True),
            variable("focus", "Interval of", "Worker whose prediction interval is shown.", f"label_values(evenstep_worker_info{{{JOB_ONLY}}}, worker)"),
            variable("unit", "Unit", "Unit of the job's batches and speeds.", f"label_values(evenstep_job_info{{{JOB_ONLY}}}, unit)", hide=2),
        ],
        annotations=annotations())
