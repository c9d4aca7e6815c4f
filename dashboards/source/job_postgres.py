"""Dashboard of one job from the database: long history and details of every decision.

The queries use macros of Grafana's PostgreSQL data source and the tables of migrations/postgres. Arguments of macros must
not contain parentheses. The column `metric` names the series.
"""

from .panels import (BATCH, BLUE, DASHED, GREEN, MANY, ORANGE, POSTGRES, PURPLE, RATIO, RED, SECONDS, SPEED, by_name, by_pattern,
                     by_query, colored, dashboard, leveled, lines, link, row, source_variable, sql, sql_annotation, stat, steps, table,
                     to_dashboard, variable)
from .job import ABSOLUTE_ERROR_STEPS, ERROR_STEPS, GAIN_STEPS, WAIT_STEPS
from .uids import JOB_POSTGRES

JOB = "job_id = ${job_id:sqlstring}"
WORKER = "worker IN (${worker:sqlstring})"
IN_TIME = "$__timeFilter(at)"
TIME = "$__timeGroupAlias(at, $__interval)"
# Speeds with a report. `actual > 0` would let PostgreSQL turn the outer join of the view worker_speed into an inner join. In a
# database without statistics it would then parse the JSON of an allocation once for each report of the iteration.
MEASURED = "coalesce(actual, 0) > 0"
SHARES = "CROSS JOIN LATERAL json_array_elements(answer::json -> 'allocations') AS share"
DECISION = "answer::json -> 'decision'"
# If empty, the latest reported iteration with a decision: workers keep their shares if the predictor does not respond in time.
LATEST = f"SELECT max(iteration) FROM allocation WHERE {JOB} AND iteration <= (SELECT max(iteration) FROM report WHERE {JOB})"
ITERATION = f"coalesce(nullif(${{iteration:sqlstring}}, '')::bigint, ({LATEST}))"


# A reported iteration stands for those since the reported one before it: fast jobs report only some.
# The slowest worker of an iteration, by its measured speed, corrects the predicted time with even shares by its forecast error.
# docs/reference/page.md has the definition of the gain.
ITERATIONS = f"""
SELECT at, report.iteration, count, took, took - computed + even * predicted / actual AS even
FROM (SELECT iteration, min(at) AS at, max(compute_time_s + coalesce(barrier_wait_s, 0) + coalesce(loader_wait_s, 0)) AS took,
             max(compute_time_s) AS computed, coalesce(iteration - lag(iteration) OVER (ORDER BY iteration), 1) AS count
      FROM report WHERE {IN_TIME} AND {JOB} GROUP BY iteration) AS report
JOIN (SELECT DISTINCT ON (iteration) iteration, ({DECISION} ->> 'even_step_time_s')::float8 AS even
      FROM allocation WHERE {JOB} ORDER BY iteration, generation DESC) AS allocation ON allocation.iteration = report.iteration
JOIN (SELECT DISTINCT ON (iteration) iteration, actual, predicted FROM worker_speed
      WHERE {JOB} AND {MEASURED} AND predicted > 0 ORDER BY iteration, actual) AS slowest ON slowest.iteration = report.iteration
WHERE took > 0 AND computed > 0""".strip()


def by_worker(text, most="DESC"):
    """Returns the query and overrides of a panel that shows each worker or, if there are more than MANY, quantiles and the five most
    extreme workers. `text` selects time, worker and value, and ends with a GROUP BY clause of them."""
    many = f"(SELECT count(DISTINCT worker) FROM each) > {MANY}"
    quantiles = "\n".join(
        f"UNION ALL SELECT time, '{name}', percentile_cont({share}) WITHIN GROUP (ORDER BY value) FROM each WHERE {many} GROUP BY time"
        for share, name in ((0.1, "p10"), (0.9, "p90"), (0.5, "median")))
    area = colored(BLUE, custom__lineWidth=0, custom__fillOpacity=20)
    return sql(f"""
WITH each AS ({text.strip()})
SELECT time, worker AS metric, value FROM each
WHERE NOT {many} OR worker IN (SELECT worker FROM each GROUP BY worker ORDER BY avg(value) {most} LIMIT 5)
{quantiles}
ORDER BY 1"""), [by_name("p10", **area), by_name("p90", **area, custom__fillBelowTo="p10"), by_name("median", **colored(BLUE, custom__lineWidth=2))]


def glance():
    speed = f"FROM worker_speed WHERE {IN_TIME} AND {JOB} AND {WORKER} AND {MEASURED} AND predicted > 0"
    wait = "sum(barrier_wait_s) / sum(compute_time_s + coalesce(barrier_wait_s, 0) + coalesce(loader_wait_s, 0))"
    return [
        stat("Gain over even shares", """Estimated time of the iterations in the selected time range with even shares, relative to their measured
             time.""", RATIO, [sql(f'SELECT sum(count * even) / sum(count * took) - 1 AS "gain" FROM ({ITERATIONS}) AS iterations', table=True)],
             thresholds=GAIN_STEPS, decimals=1),
        stat("Time saved", "Time saved in the selected time range compared with even shares.", SECONDS,
             [sql(f'SELECT sum(count * (even - took)) AS "saved" FROM ({ITERATIONS}) AS iterations', table=True)], thresholds=GAIN_STEPS),
        stat("Time lost waiting", "Share of the workers' time that they waited for the slowest worker.", RATIO,
             [sql(f'SELECT {wait} AS "waiting" FROM report WHERE {IN_TIME} AND {JOB}', table=True)], thresholds=WAIT_STEPS, decimals=1),
        stat("Forecast error", "Mean of |actual - predicted| / predicted speed over all iterations in the selected time range.", RATIO,
             [sql(f'SELECT avg(abs(actual / predicted - 1)) AS "mean" {speed}', table=True)], thresholds=ABSOLUTE_ERROR_STEPS, decimals=1),
        stat("Worst forecast", "Worker with the largest mean forecast error in the selected time range.", RATIO,
             [sql(f"SELECT now() AS time, worker AS metric, avg(abs(actual / predicted - 1)) AS error {speed} GROUP BY 2 ORDER BY 3 DESC LIMIT 1")],
             thresholds=ABSOLUTE_ERROR_STEPS, decimals=1, text="value_and_name"),
        stat("Iterations", "Iterations with an allocation in the selected time range.", "none",
             [sql(f'SELECT count(DISTINCT iteration) AS "iterations" FROM allocation WHERE {IN_TIME} AND {JOB}', table=True)],
             thresholds=steps((1, GREEN), base=ORANGE)),
    ]


def speeds():
    def course(value, more="", most="ASC"):
        return by_worker(f"SELECT {TIME}, worker, {value} AS value FROM worker_speed\n"
                         f"WHERE {IN_TIME} AND {JOB} AND {WORKER}{more} GROUP BY 1, 2", most)
    actual, areas = course("avg(actual)", f" AND {MEASURED}")
    error, error_areas = course("avg(actual / predicted - 1)", f" AND predicted > 0 AND {MEASURED}")
    inside, inside_areas = course("avg((actual BETWEEN lower AND upper)::int)", f" AND {MEASURED} AND predicted > 0")
    predicted = sql(f"""
WITH each AS (SELECT {TIME}, worker, avg(predicted) AS value FROM worker_speed
WHERE {IN_TIME} AND {JOB} AND {WORKER} AND predicted > 0 GROUP BY 1, 2)
SELECT time, CASE WHEN (SELECT count(DISTINCT worker) FROM each) > {MANY} THEN 'median' ELSE worker END || ', predicted' AS metric,
       percentile_cont(0.5) WITHIN GROUP (ORDER BY value) AS value
FROM each GROUP BY 1, 2 ORDER BY 1""")
    return [
        lines("Predicted and actual speed, ${unit} per second", f"""Work per second of compute time, without waiting. Solid: measured. Dashed, in the
              same color: predicted for the same iterations. With more than {MANY} workers: median, p10 to p90, and the slowest five.""", SPEED,
              [actual, predicted], width=24, height=10, overrides=[*areas, by_query("B", **DASHED)]),
        lines("Forecast error by worker", "Mean of (actual - predicted) / predicted speed. Below 0, the worker was slower than predicted.", RATIO,
              [error], thresholds=ERROR_STEPS, band=True, decimals=0, lowest=-0.5, highest=0.5, overrides=error_areas),
        lines("Interval coverage", "Share of iterations whose speed was inside the predicted 90 % interval. The target is 90 %.", RATIO,
              [inside], thresholds=steps((0.8, GREEN), base=ORANGE), lowest=0, highest=1, decimals=0, overrides=inside_areas),
    ]


def shares():
    took = "max(compute_time_s + coalesce(barrier_wait_s, 0) + coalesce(loader_wait_s, 0))"
    share, share_areas = by_worker(f"""
SELECT time, worker, value FROM (
  SELECT {TIME}, worker, sum(local_batch)::float8 / sum(sum(local_batch)) OVER (PARTITION BY $__timeGroup(at, $__interval)) AS value
  FROM worker_speed WHERE {IN_TIME} AND {JOB} GROUP BY 1, 2
) AS shares WHERE {WORKER}""")
    finish, finish_areas = by_worker(f"""
SELECT {TIME}, share ->> 'worker' AS worker, avg((share ->> 'predicted_compute_time_s')::float8) AS value
FROM allocation {SHARES}
WHERE {IN_TIME} AND {JOB} AND share ->> 'worker' IN (${{worker:sqlstring}}) GROUP BY 1, 2""")
    waits, wait_areas = by_worker(f"""
SELECT {TIME}, worker, sum(barrier_wait_s) / sum(compute_time_s + coalesce(barrier_wait_s, 0) + coalesce(loader_wait_s, 0)) AS value
FROM report WHERE {IN_TIME} AND {JOB} AND {WORKER} GROUP BY 1, 2""", "ASC")
    return [
        lines("Shares of the batch", "Share of the samples that each worker computed.", RATIO, [share], lowest=0, highest=1, decimals=0,
              overrides=share_areas),
        lines("Predicted finish by worker", """Predicted compute time of each worker's share, from the start of the iteration. If the
              lines coincide, no worker waits.""", SECONDS, [finish], lowest=0, overrides=finish_areas),
        lines("Step time", "Median and p95 of the slowest worker's time.", SECONDS, [sql(f"""
SELECT {TIME}, percentile_cont(0.5) WITHIN GROUP (ORDER BY took) AS p50, percentile_cont(0.95) WITHIN GROUP (ORDER BY took) AS p95
FROM (SELECT min(at) AS at, {took} AS took FROM report WHERE {IN_TIME} AND {JOB} GROUP BY iteration) AS iterations
GROUP BY 1 ORDER BY 1""")], lowest=0, overrides=[by_name("p50", **colored(BLUE)), by_name("p95", **colored(PURPLE))]),
        lines("Time lost waiting by worker", "Share of each worker's time that it waited for the slowest worker.", RATIO, [waits],
              thresholds=WAIT_STEPS, lowest=0, highest=1, decimals=0, overrides=wait_areas),
    ]


def history():
    """Returns panels over raw rows and over the roll-ups of older rows, with the same sums."""
    def course(value, most="ASC"):
        return by_worker(f"""
SELECT {TIME}, worker, {value} AS value
FROM (SELECT at, worker, samples, compute_time_s, barrier_wait_s, loader_wait_s FROM worker_summary
      WHERE {IN_TIME} AND {JOB} AND {WORKER}
      UNION ALL
      SELECT at, worker, local_batch, compute_time_s, coalesce(barrier_wait_s, 0), coalesce(loader_wait_s, 0) FROM report
      WHERE {IN_TIME} AND {JOB} AND {WORKER}) AS every
GROUP BY 1, 2""", most)
    speed, speed_areas = course("sum(samples) / nullif(sum(compute_time_s), 0)")
    waiting, waiting_areas = course("sum(barrier_wait_s) / nullif(sum(compute_time_s + barrier_wait_s + loader_wait_s), 0)")
    driver, driver_areas = by_worker(f"""
SELECT {TIME}, worker, avg((drivers ->> ${{driver:sqlstring}})::float8) AS value
FROM report WHERE {IN_TIME} AND {JOB} AND {WORKER} AND drivers ? ${{driver:sqlstring}} GROUP BY 1, 2""")
    return [
        lines("Speed over months, ${unit} per second", "Work per second of compute time, from raw rows and from the roll-ups of older rows (minutes and hours).",
              SPEED, [speed], overrides=speed_areas),
        lines("Time lost waiting over months", "Share of each worker's time that it waited for the slowest worker, from the same rows.", RATIO,
              [waiting], thresholds=WAIT_STEPS, lowest=0, highest=1, decimals=0, overrides=waiting_areas),
        lines("Driver by worker", "The selected driver, read at the end of each iteration's compute; the forecast of the next iteration uses it.",
              "short", [driver], overrides=driver_areas),
        lines("Learning rate", "Multiplier of the learning rate.", "none", [sql(f"""
SELECT {TIME}, avg((answer::json -> 'optimizer' ->> 'lr_multiplier')::float8) AS multiplier
FROM allocation WHERE {IN_TIME} AND {JOB} GROUP BY 1 ORDER BY 1""")], overrides=[by_name("multiplier", **colored(BLUE))]),
    ]


def audit():
    to_one = link("Details of this decision", to_dashboard(JOB_POSTGRES, job_id="${job_id}", iteration="${__value.raw}"))
    return [
        table("Decisions", "Allocations of the selected kinds in the selected time range, the latest 500. The iteration links to the details below.",
              [sql(f"""
SELECT at AS "At", iteration AS "Iteration", generation AS "Generation", {DECISION} ->> 'kind' AS "Kind", {DECISION} ->> 'reason' AS "Reason",
       ({DECISION} ->> 'predicted_step_time_s')::float8 AS "Predicted step", ({DECISION} ->> 'even_step_time_s')::float8 AS "Even shares",
       (answer::json ->> 'global_batch')::bigint AS "Batch", (answer::json -> 'optimizer' ->> 'lr_multiplier')::float8 AS "Learning rate"
FROM allocation WHERE {IN_TIME} AND {JOB} AND {DECISION} ->> 'kind' IN (${{kind:sqlstring}})
ORDER BY iteration DESC, generation DESC LIMIT 500""", table=True)],
              overrides=[by_name("Iteration", links=[to_one]), by_name("Reason", custom__width=600),
                         by_pattern("Predicted step|Even shares", unit=SECONDS), by_name("Batch", unit=BATCH),
                         by_name("Learning rate", decimals=3)]),
        table("Decision details", """Allocation and result of each worker in the selected iteration (default: the latest). With a shared tail,
              workers are given less than planned and can claim more. A generation is void if a worker departed before the iteration ran.""", [sql(f"""
SELECT allocation.iteration AS "Iteration", allocation.generation AS "Generation", (share ->> 'rank')::bigint AS "Rank", share ->> 'worker' AS "Worker",
       coalesce(share ->> 'planned_batch', share ->> 'local_batch')::bigint AS "Planned", (share ->> 'local_batch')::bigint AS "Given", report.local_batch AS "Computed",
       (share ->> 'predicted_speed_samples_per_s')::float8 AS "Predicted", (share ->> 'speed_lower_samples_per_s')::float8 AS "Lower",
       (share ->> 'speed_upper_samples_per_s')::float8 AS "Upper", report.local_batch / nullif(report.compute_time_s, 0) AS "Actual",
       report.local_batch / nullif(report.compute_time_s, 0) / nullif((share ->> 'predicted_speed_samples_per_s')::float8, 0) - 1 AS "Forecast error",
       (share ->> 'predicted_compute_time_s')::float8 AS "Predicted finish", report.compute_time_s AS "Compute", report.barrier_wait_s AS "Waiting",
       report.drivers::text AS "Drivers"
FROM allocation {SHARES}
LEFT JOIN report ON report.job_id = allocation.job_id AND report.iteration = allocation.iteration AND report.worker = share ->> 'worker'
WHERE allocation.{JOB} AND allocation.iteration = {ITERATION}
ORDER BY 2 DESC, 3""", table=True)],
              overrides=[by_pattern("^(Planned|Given|Computed)$", unit=BATCH), by_pattern("^(Predicted|Lower|Upper|Actual)$", unit=SPEED),
                         by_name("Forecast error", **leveled(RATIO, ERROR_STEPS, decimals=1)),
                         by_pattern("^(Predicted finish|Compute|Waiting)$", unit=SECONDS)]),
        table("Events", "Worker events, out-of-memory events and operator overrides in the selected time range, the latest 500.", [sql(f"""
SELECT at AS "At", kind AS "What", worker AS "Worker", generation AS "Generation"
FROM event WHERE {IN_TIME} AND {JOB} ORDER BY id DESC LIMIT 500""", table=True)], overrides=[]),
    ]


def annotations():
    return [
        sql_annotation("Worker events", f"SELECT at AS time, kind || ': ' || worker AS text, kind AS tags FROM event WHERE {IN_TIME} AND {JOB} ORDER BY 1",
                       GREEN),
        sql_annotation("Decisions", f"SELECT at AS time, {DECISION} ->> 'reason' AS text, {DECISION} ->> 'kind' AS tags FROM allocation\n"
                       f"WHERE {IN_TIME} AND {JOB} AND {DECISION} ->> 'kind' <> 'held' ORDER BY 1 LIMIT 1000", BLUE),
        sql_annotation("Out of memory", f"SELECT at AS time, worker || ' ran out of memory' AS text, kind AS tags FROM event\n"
                       f"WHERE {IN_TIME} AND {JOB} AND kind = 'out_of_memory' ORDER BY 1", RED),
    ]


def variables():
    kinds = ["cold_start", "profiling", "rebalanced", "held"]
    chosen = kinds[:3]
    option = [{"selected": kind in chosen, "text": kind, "value": kind} for kind in kinds]
    return [
        source_variable(POSTGRES["type"]),
        variable("job_id", "Job", "All jobs in the store.", "SELECT job_id FROM job ORDER BY created_unix_ms DESC", source=POSTGRES),
        variable("worker", "Worker", "Workers that ever joined the job.", f"SELECT worker FROM worker WHERE {JOB} ORDER BY seat", many=True,
                 all_value=None, source=POSTGRES),
        variable("unit", "Unit", "Unit of the job's batches and speeds.", f"SELECT coalesce(spec::json ->> 'unit', 'samples') FROM job WHERE {JOB}",
                 source=POSTGRES, hide=2),
        variable("driver", "Driver", "Drivers in the latest reports of the job.", f"SELECT DISTINCT jsonb_object_keys(drivers) FROM (\n"
                 f"  SELECT drivers FROM report WHERE {JOB} ORDER BY iteration DESC LIMIT 64) AS latest ORDER BY 1", source=POSTGRES),
        {"type": "custom", "name": "kind", "label": "Decisions", "description": "Kinds of decisions in the audit.", "query": ",".join(kinds),
         "current": {"selected": True, "text": chosen, "value": chosen}, "hide": 0, "includeAll": True, "multi": True, "options": option,
         "skipUrlSync": False},
        {"type": "textbox", "name": "iteration", "label": "Iteration", "description": "Iteration in the details; empty selects the latest.",
         "query": "", "current": {"selected": True, "text": "", "value": ""}, "hide": 0,
         "options": [{"selected": True, "text": "", "value": ""}], "skipUrlSync": False},
    ]


def build():
    return dashboard(
        JOB_POSTGRES, "Evenstep: job (PostgreSQL)", """One job from the database: long history and an audit of every decision. Requires a
        predictor with a PostgreSQL store.""",
        glance() + [row("Predicted and actual")] + speeds() + [row("Shares and time")] + shares() + [row("Audit")] + audit()
        + [row("Long history")] + history(),
        docs={"Tables": "docs/reference/data-model.md", "PostgreSQL": "docs/how-to/postgresql.md"},
        variables=variables(), annotations=annotations(), since="now-6h", refresh="1m")
