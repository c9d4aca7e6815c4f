"""Table of all models. Uses only the standard library."""

import math


def _mean(values):
    values = list(values)
    return sum(values) / len(values) if values else math.nan


def summary(results, models):
    """Returns by model the RMSE relative to the last value, and the CPU time.

    The RMSE is by trace (mean over its series) and over all traces.

    `results[trace, series, model]` has rmse, fit_s, predict_s, predictions. A model without a result for a series is
    `None` on its trace.
    """
    traces = list(dict.fromkeys(trace for trace, _, _ in results))
    rows = []
    for model in models:
        relative = {}
        for trace in traces:
            series = [one for name, one, of in results if name == trace and of == "last"]
            if all((trace, one, model) in results for one in series):
                of_last = (results[trace, one, model]["rmse"] / results[trace, one, "last"]["rmse"] for one in series)
                relative[trace] = _mean(of_last)
        mine = [entry for (trace, _, of), entry in results.items() if of == model and trace in relative]
        predictions = sum(entry["predictions"] for entry in mine)
        own_process = [entry["process_cpu_s"] for entry in mine if entry.get("process_cpu_s") is not None]
        rows.append(
            {
                "model": model,
                "rmse_rel_last": relative,
                "mean": _mean(relative.values()) if len(relative) == len(traces) else None,
                "fit_ms_per_series": 1e3 * _mean(entry["fit_s"] for entry in mine),
                "predict_us": 1e6 * sum(entry["predict_s"] for entry in mine) / predictions if mine else math.nan,
                "total_ms_per_series": 1e3 * _mean(entry["fit_s"] + entry["predict_s"] for entry in mine),
                "process_ms_per_series": 1e3 * _mean(own_process) if own_process else None,
            }
        )
    return traces, rows


def figure(value):
    """Formats a value with three significant digits, or as an integer from 1000 on."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def markdown(traces, rows, skipped):
    """Returns the table, skipped peers included."""
    cells = ["model", *traces, "mean", "fits, ms", "a forecast, us", "all, ms", "whole process, ms"]
    lines = [f"| {' | '.join(cells)} |", f"|---|{'---:|' * (len(cells) - 1)}"]
    for row in rows:
        relative = [row["rmse_rel_last"].get(trace) for trace in traces] + [row["mean"]]
        accuracy = ["-" if value is None else f"{value:.3f}" for value in relative]
        keys = ["fit_ms_per_series", "predict_us", "total_ms_per_series", "process_ms_per_series"]
        lines.append(f"| {' | '.join([row['model'], *accuracy, *(figure(row[key]) for key in keys)])} |")
    for name, why in skipped.items():
        lines.append(f"| {name} | SKIPPED: {why} {'| ' * (len(cells) - 1)}|")
    return "\n".join(lines)
