"""Runs every peer, and evenstep's own models, on the same traces.

Started by `tests/bench/peers` in a separate environment.
"""

import argparse
import importlib
import json
import math
import pathlib
import sys
from importlib import metadata

from . import own, protocol, table

PEERS = {
    "arima": ("arima", "Arima", "statsmodels"),
    "arimax": ("arima", "Arimax", "statsmodels"),
    "lightgbm": ("trees", "LightGbm", "lightgbm"),
    "sysidentpy_frols": ("sysident", "Frols", "sysidentpy"),
    "lstm": ("lstm", "Lstm", "torch"),
}
"""Name: module, class and package."""


def say(text):
    print(f"peers: {text}", file=sys.stderr, flush=True)


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--traces", nargs="*", type=pathlib.Path, default=[])
    parser.add_argument("--pai", nargs="*", type=pathlib.Path, default=[])
    parser.add_argument("--peers", required=True)
    parser.add_argument("--predictor", required=True)
    parser.add_argument("--json", type=pathlib.Path)
    return parser.parse_args()


def load(names):
    """Returns the classes of the peers by name, and the reasons why others are skipped."""
    found, skipped = {}, {}
    for name in names:
        module, kind, package = PEERS[name]
        try:
            found[name] = getattr(importlib.import_module(f".{module}", __package__), kind)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            skipped[name] = f"{package} is not installed; --lstm installs it"
            say(f"SKIPPED {name}: {skipped[name]}")
    return found, skipped


def same_rows(series, of_binary):
    """Checks that both sides count the same rows of the same values. Otherwise the results cannot be compared."""
    ours = protocol.rmse_of(series, protocol.walk(series, protocol.Last()))
    if not math.isclose(ours, of_binary, rel_tol=1e-9):
        raise SystemExit(f"peers: {series.trace}/{series.id}: the RMSE of the last value is {ours} here and {of_binary} in the backtest")


def measure(path, columns, peers, binary, results):
    of_binary = own.run(binary, path, columns)
    for series in protocol.read(path, columns):
        # In the backtest too, a table of one series has the name of its file.
        same_rows(series, of_binary["last", series.id]["rmse"])
        for model in own.MODELS:
            results[series.trace, series.id, model] = of_binary[model, series.id]
        for name, kind in peers.items():
            if getattr(kind, "needs_inputs", False) and not series.has_inputs:
                continue
            say(f"{series.trace}/{series.id}: {name}")
            track = protocol.walk(series, kind())
            results[series.trace, series.id, name] = {
                "rmse": protocol.rmse_of(series, track),
                "fit_s": track.fit_cpu_s,
                "predict_s": track.predict_cpu_s,
                "predictions": len(track.log_forecasts),
                "fits": track.fits,
                "replaced": track.replaced,
            }
            if track.replaced:
                say(f"{series.trace}/{series.id}: {name}: {track.replaced} forecasts were not finite; replaced by the last value")


def tables(paths):
    """Returns the files, and the tables in the folders."""
    files = []
    for path in paths:
        found = sorted(path.glob("*.csv")) if path.is_dir() else [path]
        if not found:
            raise SystemExit(f"peers: {path} contains no *.csv")
        files += found
    return files


def main():
    given = arguments()
    peers, skipped = load(given.peers.split(","))
    sets = [("traces with drivers", protocol.Columns(), tables(given.traces)), ("PAI", protocol.PAI, tables(given.pai))]
    document = {"versions": {}, "skipped": skipped, "sets": []}
    for name in peers:
        document["versions"][PEERS[name][2]] = metadata.version(PEERS[name][2])
    for title, columns, paths in sets:
        if not paths:
            continue
        results = {}
        for path in paths:
            measure(path, columns, peers, given.predictor, results)
        traces, rows = table.summary(results, [*own.MODELS, *peers])
        print(f"\n{title}\n\n{table.markdown(traces, rows, skipped)}", flush=True)
        series = [
            {"trace": trace, "unique_id": one, "model": model, **entry} for (trace, one, model), entry in results.items()
        ]
        document["sets"].append({"title": title, "traces": traces, "models": rows, "series": series})
    versions = ", ".join(f"{package} {version}" for package, version in document["versions"].items())
    print("\nMilliseconds are per series, on one thread: CPU time for peers; elapsed time, and CPU time of a whole process, for evenstep.")
    print(f"Peers: {versions}.")
    if given.json:
        given.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        say(f"wrote {given.json}")


if __name__ == "__main__":
    try:
        main()
    except (protocol.BadTable, OSError) as error:
        raise SystemExit(f"peers: {error}") from None
