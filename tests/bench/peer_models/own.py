"""evenstep's own models, through `evenstep-predictor backtest`."""

import json
import os
import resource
import subprocess
import tempfile

MODELS = ["last", "ema_0.3", "ema_0.6", "arx", "mix"]


def _cpu_s():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(binary, path, columns):
    """Returns the RMSE and CPU time by model and series.

    Each model runs in a separate process, so that the operating system counts its CPU time. The time includes reading
    the table, the model `last` and the metrics."""
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "backtest.json")
        for model in MODELS:
            models = model if model == "last" else f"last,{model}"
            command = [binary, "backtest", "--trace", str(path), "--models", models, "--json", out, *columns.flags()]
            before = _cpu_s()
            ran = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            if ran.returncode != 0:
                raise SystemExit(f"peers: evenstep-predictor backtest: {ran.stderr.strip()}")
            process_cpu_s = _cpu_s() - before
            with open(out, encoding="utf-8") as file:
                series = json.load(file)["series"]
            for one in series:
                said = next(entry for entry in one["models"] if entry["model"] == model)
                results[model, one["unique_id"]] = {
                    "rmse": said["rmse"],
                    "fit_s": said["fit_s"],
                    "predict_s": said["predict_us"] * 1e-6 * one["rows"],
                    "predictions": one["rows"],
                    "fits": None,
                    "replaced": 0,
                    "process_cpu_s": process_cpu_s / len(series),
                }
    return results
