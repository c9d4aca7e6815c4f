"""Overview dashboard of all jobs and nodes."""

from .job import (ABSOLUTE_ERROR_STEPS, EXPECTED_STEPS, GAIN_STEPS, RANGE, SAVED_STEPS, SLOW_STEPS, WAIT_STEPS, forecast_error, gain, lost_share, step_time,
                  throughput, time_saved)
from .panels import (CAUSES, COUNT, GREEN, MANY, ORANGE, RATIO, RED, SECONDS, SPEED, TIMES, by_name, by_pattern, columns, dashboard, firing,
                     leveled, lines, link, query, row, source_variable, stat, steps, table, to_dashboard, value_of, variable)
from .uids import JOB, NODE, OVERVIEW

CHOSEN = 'job_id=~"$job_id"'
SILENT_S = 60
BY_JOB = "by (job_id)"

LIVE = f'max by (job_id) (evenstep_job_workers{{{CHOSEN}, state="live"}})'
LAST_REPORT = f"max by (job_id) (evenstep_worker_last_report_timestamp_seconds{{{CHOSEN}}})"
PREDICTED = f"max by (job_id) (evenstep_job_predicted_step_time_seconds{{{CHOSEN}}})"
UNIT = f"max by (job_id, unit) (evenstep_job_info{{{CHOSEN}}})"
AGE = "time() - max by (node) (evenstep_node_last_sample_timestamp_seconds)"
LATE_STEPS = steps((1.1, ORANGE), (1.25, RED))
AGE_STEPS = steps((15, ORANGE), (SILENT_S, RED))


def glance():
    by_unit = f"sum by (unit) (({throughput(CHOSEN, BY_JOB)}) * on (job_id) group_left (unit) {UNIT}) or on () vector(0)"
    return [
        firing(),
        stat("Active jobs", "Jobs with a report in the last minute.", COUNT, [query(f"count({LAST_REPORT} > time() - 60) or vector(0)", "jobs")],
             thresholds=steps((1, GREEN), base=ORANGE), width=3),
        stat("Gain", "Estimated time with even shares over the measured time of all iterations in the selected time range.", TIMES,
             [query(gain(CHOSEN, over=RANGE), "gain", instant=True)], thresholds=GAIN_STEPS, decimals=2, width=3),
        stat("Time saved", "Time saved by all selected jobs in the selected time range, compared with even shares.", SECONDS,
             [query(time_saved(CHOSEN, over=RANGE), "saved", instant=True)], thresholds=SAVED_STEPS, width=3),
        stat("Time lost waiting", """Share of the step times in the selected time range that workers waited for the slowest worker.""", RATIO,
             [query(lost_share(CHOSEN, over=RANGE), "waiting", instant=True)], thresholds=WAIT_STEPS, decimals=1, width=3),
        stat("Forecast error", "Mean of |actual - predicted| / predicted speed over all forecasts in the selected time range.", RATIO,
             [query(forecast_error(CHOSEN, over=RANGE), "mean", instant=True)], thresholds=ABSOLUTE_ERROR_STEPS, decimals=1, width=3),
        stat("Slow workers", "Workers that are slower than they were, or than others on the same kind of GPU.", COUNT,
             [query(f"sum(max {BY_JOB} (evenstep_job_stragglers{{{CHOSEN}}})) or vector(0)", "slow")], thresholds=SLOW_STEPS, width=3),
        stat("Throughput", "Work per second of step time, summed over the selected jobs, for each unit of batches.", SPEED,
             [query(by_unit, "{{unit}}")], thresholds=steps(), width=3, text="value_and_name"),
    ]


def jobs():
    names = {"job_id": "Job", "state": "State", value_of("A"): None, value_of("B"): "Workers", value_of("C"): "Slow", value_of("D"): "Iteration",
             value_of("E"): "Step time", value_of("F"): "Throughput", "unit": "Unit", value_of("G"): None, value_of("H"): "Gain",
             value_of("I"): "Time saved", value_of("J"): "Time lost waiting", value_of("K"): "Forecast error", value_of("L"): "Last report"}
    questions = [
        f"max by (job_id, state) (evenstep_job_state{{{CHOSEN}}})", LIVE, f"max {BY_JOB} (evenstep_job_stragglers{{{CHOSEN}}})",
        f"max {BY_JOB} (evenstep_job_iteration{{{CHOSEN}}})", step_time(CHOSEN, BY_JOB, RANGE), throughput(CHOSEN, BY_JOB, RANGE), UNIT,
        gain(CHOSEN, BY_JOB, RANGE), time_saved(CHOSEN, BY_JOB, RANGE), lost_share(CHOSEN, BY_JOB, RANGE),
        forecast_error(CHOSEN, BY_JOB, RANGE), f"{LAST_REPORT} * 1000"]
    to_job = link("This job", to_dashboard(JOB, job_id="${__value.text}"))
    return table(
        "Jobs", "Each job: its current state, and means over the selected time range. The name links to the dashboard of the job.",
        [query(text, instant=True, table=True) for text in questions], sort=("Last report", True), transformations=columns(**names), height=10,
        overrides=[
            by_name("Job", links=[to_job]), by_pattern("Workers|Iteration", unit="none"),
            by_name("Slow", **leveled("none", SLOW_STEPS)), by_pattern("Step time|Time saved", unit=SECONDS), by_name("Throughput", unit=SPEED),
            by_name("Time lost waiting", **leveled(RATIO, WAIT_STEPS, decimals=1)),
            by_name("Forecast error", **leveled(RATIO, ABSOLUTE_ERROR_STEPS, decimals=1)),
            by_name("Gain", **leveled(TIMES, GAIN_STEPS, decimals=2)), by_name("Last report", unit="dateTimeFromNow")])


def slow():
    """Returns the slow workers of all jobs, with the cause."""
    names = {"job_id": "Job", "worker": "Worker", "reason": "Cause", value_of("A"): "Of usual speed", value_of("B"): "Since iteration"}
    to_worker = link("This worker", to_dashboard(JOB, job_id="${__data.fields.Job}", worker="${__value.text}", focus="${__value.text}"))
    return table(
        "Slow workers by name", """Workers that are slower than they were, or than others on the same kind of GPU: at most 20, slowest first. The
        name links to the worker.""",
        [query(f"bottomk(20, max by (job_id, worker, reason) (evenstep_worker_straggler_speed_ratio{{{CHOSEN}}}))", instant=True, table=True),
         query(f"max by (job_id, worker) (evenstep_worker_straggler_since_iteration{{{CHOSEN}}})", instant=True, table=True)],
        width=12, height=8, sort=("Of usual speed", False), transformations=columns(**names), nothing="No slow worker",
        overrides=[by_name("Worker", links=[to_worker]), by_name("Cause", mappings=CAUSES), by_name("Of usual speed", **leveled(RATIO, EXPECTED_STEPS, decimals=0)),
                   by_name("Since iteration", unit="none")])


def top(expr, by, most="topk"):
    """Returns the MANY jobs or nodes with the most extreme means over the time range, so that a panel never has hundreds of lines."""
    return f"({expr}) and on ({by}) {most}({MANY}, avg_over_time(({expr})[$__range:$__interval] @ end()))"


def courses():
    to_job = [link("This job", to_dashboard(JOB, job_id="${__field.labels.job_id}"))]
    most = f"At most {MANY} jobs"
    return [
        lines("Gain by job", f"Estimated time with even shares over the measured time. {most}: the smallest gains.", TIMES,
              [query(top(gain(CHOSEN, BY_JOB), "job_id", "bottomk"), "{{job_id}}")], thresholds=GAIN_STEPS, decimals=2, links=to_job),
        lines("Actual over predicted step time by job", f"Mean step time over the predicted one. Above 1x, iterations took longer than predicted. {most}: the largest.",
              TIMES, [query(top(f"{step_time(CHOSEN, BY_JOB)} / {PREDICTED}", "job_id"), "{{job_id}}")], thresholds=LATE_STEPS, decimals=2, links=to_job),
        lines("Step time by job", f"Mean over iterations of the slowest worker's time. {most}: the longest.", SECONDS,
              [query(top(step_time(CHOSEN, BY_JOB), "job_id"), "{{job_id}}")], log=True, links=to_job),
        lines("Time lost waiting by job", f"Share of the step times that workers waited for the slowest worker. {most}: the largest shares.", RATIO,
              [query(top(lost_share(CHOSEN, BY_JOB), "job_id"), "{{job_id}}")], thresholds=WAIT_STEPS, lowest=0, highest=1, links=to_job),
        lines("Forecast error by job", f"Mean of |actual - predicted| / predicted speed over the workers of the job. {most}: the largest errors.",
              RATIO, [query(top(forecast_error(CHOSEN, BY_JOB), "job_id"), "{{job_id}}")], thresholds=ABSOLUTE_ERROR_STEPS, lowest=0, highest=0.5, links=to_job),
    ]


def nodes():
    to_node = [link("This node", to_dashboard(NODE, node="${__field.labels.node}"))]
    names = {"node": "Node", value_of("A"): "Telemetry age", value_of("B"): "Busy cores"}
    busy = 'max by (node) (evenstep_node_cpu_ratio{mode="busy"})'
    return [
        table("Nodes", "Age of the latest sample of each node at the predictor, and its busy cores. The name links to the node.",
              [query(AGE, instant=True, table=True), query(busy, instant=True, table=True)], width=8, height=8, sort=("Telemetry age", True),
              transformations=columns(**names),
              overrides=[by_name("Node", links=[link("This node", to_dashboard(NODE, node="${__value.text}"))]),
                         by_name("Telemetry age", **leveled(SECONDS, AGE_STEPS)), by_name("Busy cores", unit=RATIO, decimals=0)]),
        lines("Age of telemetry", f"""Time since the last sample of each node arrived at the predictor, for the {MANY} oldest. An agent is silent above
              {SILENT_S} s. The predictor drops a node after one day without samples.""", SECONDS, [query(top(AGE, "node"), "{{node}}")],
              thresholds=AGE_STEPS, lowest=0, width=16, links=to_node),
    ]


def build():
    return dashboard(
        OVERVIEW, "Evenstep: overview", "All jobs: what they gain, time lost waiting, forecast errors and slow workers.",
        glance() + [jobs(), slow()] + courses()[1:2] + [row("Over time")] + courses()[:1] + courses()[2:] + [row("Nodes")] + nodes(),
        docs={"Alerts": "docs/how-to/alerts.md", "Statistics": "docs/reference/page.md"},
        variables=[
            source_variable(),
            variable("job_id", "Job", "Jobs in the selected time range.", "label_values(evenstep_job_workers, job_id)", many=True),
        ])
