"""One job from the database: long history, and every decision in full.

Questions are macros of Grafana's PostgreSQL data source over the tables of migrations/postgres. No parenthesis may stand
inside a macro's arguments. A series is named by the column `metric`.
"""

from .panels import (BLUE, COLOURED_TEXT, DASHED, GREEN, ORANGE, POSTGRES, RATIO, RED, SAMPLES, SECONDS, SPEED, by_name, by_pattern,
                     by_query, dashboard, lines, link, row, source_variable, sql, sql_annotation, stat, steps, table, to_dashboard, variable)
from .job import ABSOLUTE_ERROR_STEPS, ERROR_STEPS, WAIT_STEPS
from .uids import JOB_POSTGRES

JOB = "job_id = ${job_id:sqlstring}"
WORKER = "worker IN (${worker:sqlstring})"
IN_TIME = "$__timeFilter(at)"
TIME = "$__timeGroupAlias(at, $__interval)"
SHARES = "CROSS JOIN LATERAL json_array_elements(answer::json -> 'allocations') AS share"
DECISION = "answer::json -> 'decision'"
# Empty: the latest that was reported.
ITERATION = f"coalesce(nullif(${{iteration:sqlstring}}, '')::bigint, (SELECT max(iteration) FROM report WHERE {JOB}))"


def glance():
    speed = f"FROM worker_speed WHERE {IN_TIME} AND {JOB} AND {WORKER} AND actual > 0 AND predicted > 0"
    wait = "sum(barrier_wait_s) / sum(compute_time_s + coalesce(barrier_wait_s, 0) + coalesce(loader_wait_s, 0))"
    return [
        stat("Mean error of the forecast", "Mean of |actual - predicted| / predicted speed over all iterations in the time shown.", RATIO,
             [sql(f'SELECT avg(abs(actual / predicted - 1)) AS "mean |error|" {speed}', table=True)], thresholds=ABSOLUTE_ERROR_STEPS,
             decimals=1, width=6),
        stat("Worst forecast", "The worker whose speed was furthest from its forecasts, on average over the time shown.", RATIO,
             [sql(f"SELECT now() AS time, worker AS metric, avg(abs(actual / predicted - 1)) AS error {speed} GROUP BY 2 ORDER BY 3 DESC LIMIT 1")],
             thresholds=ABSOLUTE_ERROR_STEPS, decimals=1, width=6, text="value_and_name"),
        stat("Time lost to waiting", "Share of the workers' time in which they waited at the barrier for the slowest.", RATIO,
             [sql(f'SELECT {wait} AS "waiting" FROM report WHERE {IN_TIME} AND {JOB}', table=True)], thresholds=WAIT_STEPS, decimals=1, width=6),
        stat("Iterations", "Iterations that were answered in the time shown.", "none",
             [sql(f'SELECT count(DISTINCT iteration) AS "iterations" FROM allocation WHERE {IN_TIME} AND {JOB}', table=True)],
             thresholds=steps((1, GREEN), base=ORANGE), width=6),
    ]


def speeds():
    def course(value, more=""):
        return sql(f"SELECT {TIME}, worker AS metric, {value} FROM worker_speed\n"
                   f"WHERE {IN_TIME} AND {JOB} AND {WORKER}{more}\nGROUP BY 1, 2 ORDER BY 1")
    return [
        lines("Predicted and actual speed", """Samples per second of compute time, without waiting. Solid: measured. Dashed, in the
              same colour: what had been predicted for those very iterations.""", SPEED,
              [course("avg(actual) AS actual"), course("avg(predicted) AS predicted")], width=24, height=10, overrides=[by_query("B", **DASHED)]),
        lines("Error of the forecast", "Mean of (actual - predicted) / predicted speed; below 0 a worker was slower than expected.", RATIO,
              [course("avg(actual / predicted - 1) AS error", " AND predicted > 0")], thresholds=ERROR_STEPS, band=True, decimals=1),
        lines("Inside the predicted band", "Share of iterations whose speed was inside the 90 % interval. 90 % is what it should be.", RATIO,
              [course("avg((actual BETWEEN lower AND upper)::int) AS inside", " AND actual > 0 AND predicted > 0")],
              thresholds=steps((0.8, GREEN), base=ORANGE), lowest=0, highest=1, decimals=0),
    ]


def shares():
    took = "max(compute_time_s + coalesce(barrier_wait_s, 0) + coalesce(loader_wait_s, 0))"
    return [
        lines("Shares of the batch", "What part of the samples each worker computed.", RATIO, [sql(f"""
SELECT time, worker AS metric, share FROM (
  SELECT {TIME}, worker, sum(local_batch)::float8 / sum(sum(local_batch)) OVER (PARTITION BY $__timeGroup(at, $__interval)) AS share
  FROM worker_speed WHERE {IN_TIME} AND {JOB} GROUP BY 1, 2
) AS shares WHERE {WORKER} ORDER BY 1""")], stacked=True, lowest=0, decimals=0),
        lines("Predicted finish of each worker", """When each was expected to have computed its share, from the start of an iteration. The
              lines should coincide.""", SECONDS, [sql(f"""
SELECT {TIME}, share ->> 'worker' AS metric, avg((share ->> 'predicted_compute_time_s')::float8) AS finish
FROM allocation {SHARES}
WHERE {IN_TIME} AND {JOB} AND share ->> 'worker' IN (${{worker:sqlstring}}) GROUP BY 1, 2 ORDER BY 1""")], lowest=0),
        lines("Time of an iteration", "Median and 99th percentile of the longest that any worker took.", SECONDS, [sql(f"""
SELECT {TIME}, percentile_cont(0.5) WITHIN GROUP (ORDER BY took) AS p50, percentile_cont(0.99) WITHIN GROUP (ORDER BY took) AS p99
FROM (SELECT min(at) AS at, {took} AS took FROM report WHERE {IN_TIME} AND {JOB} GROUP BY iteration) AS iterations
GROUP BY 1 ORDER BY 1""")], lowest=0),
        lines("Waiting at the barrier", "Share of its time in which each worker waited for the slowest.", RATIO, [sql(f"""
SELECT {TIME}, worker AS metric,
       sum(barrier_wait_s) / sum(compute_time_s + coalesce(barrier_wait_s, 0) + coalesce(loader_wait_s, 0)) AS waiting
FROM report WHERE {IN_TIME} AND {JOB} AND {WORKER} GROUP BY 1, 2 ORDER BY 1""")], thresholds=WAIT_STEPS, lowest=0, decimals=1),
    ]


def history():
    """Raw rows and what old ones left behind: the same sums."""
    def course(value):
        return sql(f"""
SELECT {TIME}, worker AS metric, {value}
FROM (SELECT at, worker, samples, compute_time_s, barrier_wait_s, loader_wait_s FROM worker_summary
      WHERE {IN_TIME} AND {JOB} AND {WORKER}
      UNION ALL
      SELECT at, worker, local_batch, compute_time_s, coalesce(barrier_wait_s, 0), coalesce(loader_wait_s, 0) FROM report
      WHERE {IN_TIME} AND {JOB} AND {WORKER}) AS every
GROUP BY 1, 2 ORDER BY 1""")
    return [
        lines("Speed over months", "Samples per second of compute time, from raw rows and from the minutes and hours that old ones became.",
              SPEED, [course("sum(samples) / nullif(sum(compute_time_s), 0) AS speed")]),
        lines("Waiting over months", "Share of its time in which each worker waited for the slowest, from the same rows.", RATIO,
              [course("sum(barrier_wait_s) / nullif(sum(compute_time_s + barrier_wait_s + loader_wait_s), 0) AS waiting")],
              thresholds=WAIT_STEPS, lowest=0, decimals=1),
        lines("Driver of each worker", "The chosen driver, as read at the end of each iteration's compute: what the forecast of the next one knew.",
              "none", [sql(f"""
SELECT {TIME}, worker AS metric, avg((drivers ->> ${{driver:sqlstring}})::float8) AS driver
FROM report WHERE {IN_TIME} AND {JOB} AND {WORKER} AND drivers ? ${{driver:sqlstring}} GROUP BY 1, 2 ORDER BY 1""")]),
        lines("Learning rate", "What the learning rate was multiplied by.", "none", [sql(f"""
SELECT {TIME}, avg((answer::json -> 'optimizer' ->> 'lr_multiplier')::float8) AS multiplier
FROM allocation WHERE {IN_TIME} AND {JOB} GROUP BY 1 ORDER BY 1""")]),
    ]


def audit():
    to_one = link("This decision in full", to_dashboard(JOB_POSTGRES, job_id="${job_id}", iteration="${__value.raw}"))
    return [
        table("Decisions", "Every answer of the chosen kinds in the time shown, the latest 500. An iteration's number leads to it in full, below.",
              [sql(f"""
SELECT at AS "At", iteration AS "Iteration", generation AS "Generation", {DECISION} ->> 'kind' AS "Kind", {DECISION} ->> 'reason' AS "Reason",
       ({DECISION} ->> 'predicted_step_time_s')::float8 AS "Predicted step", ({DECISION} ->> 'even_step_time_s')::float8 AS "Even shares",
       (answer::json ->> 'global_batch')::bigint AS "Samples", (answer::json -> 'optimizer' ->> 'lr_multiplier')::float8 AS "Learning rate"
FROM allocation WHERE {IN_TIME} AND {JOB} AND {DECISION} ->> 'kind' IN (${{kind:sqlstring}})
ORDER BY iteration DESC, generation DESC LIMIT 500""", table=True)],
              overrides=[by_name("Iteration", links=[to_one]), by_name("Reason", custom__width=600),
                         by_pattern("Predicted step|Even shares", unit=SECONDS, decimals=3), by_name("Samples", unit=SAMPLES),
                         by_name("Learning rate", decimals=3)]),
        table("One decision in full", """What each worker was told in the chosen iteration (the latest one where none is named), and what came of
              it. Where there is a tail less is given than planned, and who is free computes more. A generation is voided when a worker departed before it was carried out.""", [sql(f"""
SELECT allocation.iteration AS "Iteration", allocation.generation AS "Generation", (share ->> 'rank')::bigint AS "Rank", share ->> 'worker' AS "Worker",
       coalesce(share ->> 'planned_batch', share ->> 'local_batch')::bigint AS "Planned", (share ->> 'local_batch')::bigint AS "Given", report.local_batch AS "Computed",
       (share ->> 'predicted_speed_samples_per_s')::float8 AS "Predicted", (share ->> 'speed_lower_samples_per_s')::float8 AS "Lower",
       (share ->> 'speed_upper_samples_per_s')::float8 AS "Upper", report.local_batch / nullif(report.compute_time_s, 0) AS "Actual",
       report.local_batch / nullif(report.compute_time_s, 0) / nullif((share ->> 'predicted_speed_samples_per_s')::float8, 0) - 1 AS "Error",
       (share ->> 'predicted_compute_time_s')::float8 AS "Predicted finish", report.compute_time_s AS "Compute", report.barrier_wait_s AS "Waiting",
       report.drivers::text AS "Drivers"
FROM allocation {SHARES}
LEFT JOIN report ON report.job_id = allocation.job_id AND report.iteration = allocation.iteration AND report.worker = share ->> 'worker'
WHERE allocation.{JOB} AND allocation.iteration = {ITERATION}
ORDER BY 2 DESC, 3""", table=True)],
              overrides=[by_pattern("Planned|Given|Computed", unit=SAMPLES), by_pattern("Predicted|Lower|Upper|Actual", unit=SPEED, decimals=1),
                         by_name("Error", unit=RATIO, decimals=1, thresholds={"mode": "absolute", "steps": ERROR_STEPS},
                                 custom__cellOptions=COLOURED_TEXT),
                         by_pattern("Predicted finish|Compute|Waiting", unit=SECONDS, decimals=3)]),
        table("What happened to whom", "Comings and goings, memory that ran out, and operators' overrides in the time shown, the latest 500.", [sql(f"""
SELECT at AS "At", kind AS "What", worker AS "Worker", generation AS "Generation"
FROM event WHERE {IN_TIME} AND {JOB} ORDER BY id DESC LIMIT 500""", table=True)], overrides=[]),
    ]


def annotations():
    return [
        sql_annotation("Comings and goings", f"SELECT at AS time, kind || ': ' || worker AS text, kind AS tags FROM event WHERE {IN_TIME} AND {JOB} ORDER BY 1",
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
        variable("job_id", "Job", "All jobs of the store.", "SELECT job_id FROM job ORDER BY created_unix_ms DESC", source=POSTGRES),
        variable("worker", "Worker", "Workers that ever joined the job.", f"SELECT worker FROM worker WHERE {JOB} ORDER BY seat", many=True,
                 all_value=None, source=POSTGRES),
        variable("driver", "Driver", "What the job's latest reports carry.", f"SELECT DISTINCT jsonb_object_keys(drivers) FROM (\n"
                 f"  SELECT drivers FROM report WHERE {JOB} ORDER BY iteration DESC LIMIT 64) AS latest ORDER BY 1", source=POSTGRES),
        {"type": "custom", "name": "kind", "label": "Decisions", "description": "Which decisions the audit lists.", "query": ",".join(kinds),
         "current": {"selected": True, "text": chosen, "value": chosen}, "hide": 0, "includeAll": True, "multi": True, "options": option,
         "skipUrlSync": False},
        {"type": "textbox", "name": "iteration", "label": "Iteration", "description": "The decision to show in full; empty: the latest.",
         "query": "", "current": {"selected": True, "text": "", "value": ""}, "hide": 0,
         "options": [{"selected": True, "text": "", "value": ""}], "skipUrlSync": False},
    ]


def build():
    return dashboard(
        JOB_POSTGRES, "Evenstep: job (PostgreSQL)", """One job from the database: long history, and an audit of every decision. For
        predictors whose store is PostgreSQL.""",
        glance() + [row("Predicted and actual")] + speeds() + [row("Shares and time")] + shares() + [row("Audit")] + audit()
        + [row("Long history")] + history(),
        variables=variables(), annotations=annotations(), since="now-6h", refresh="1m")
