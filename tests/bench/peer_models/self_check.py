"""Self-check of the splits, the walk, the metric and the table. Requires no installed package."""

import math
import pathlib
import tempfile

from . import protocol, table


def run():
    """Raises AssertionError with the first broken rule."""
    for check in [columns, readings, splits, causal, guard, metric, summary]:
        check()
        print(f"self-check: {check.__name__} ok")


def _expect(got, wanted, rule):
    if got != wanted:
        raise AssertionError(f"{rule}: got {got!r}, expected {wanted!r}")


def _series(speeds):
    logs = [math.log(speed) for speed in speeds]
    return protocol.Series("t", "w", ["d"], logs, [0.0] * len(logs), [[float(k)] for k in range(len(logs))])


def _read(text, columns):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "t.csv"
        path.write_text(text, encoding="utf-8")
        return protocol.read(path, columns)


def columns():
    header = ["t_start", "iter", "batch", "iter_ms", "speed", "own_cpu", "", "truth_load", "other_cpu"]
    _expect(protocol.driver_columns(header, protocol.Columns()), ["own_cpu", "other_cpu"], "drivers")


def readings():
    """Checks series by worker, speed as batch over time, missing readings as None, and errors with their place."""
    lines = [f"{k % 2},{k},{4 if k % 2 else 2},{'' if k == 3 else k}" for k in range(120)]
    read = _read("worker,time,batch_time_norm,load\n" + "\n".join(lines), protocol.PAI)
    _expect([series.id for series in read], ["0", "1"], "one series for each worker")
    _expect(round(math.exp(read[1].log_speed[0]), 12), 0.25, "speed is batch over time")
    _expect([read[1].drivers[at] for at in (0, 1)], [[1.0], [None]], "a missing reading is None")
    try:
        _read("speed\n1\nfast\n", protocol.Columns())
    except protocol.BadTable as error:
        _expect("line 3, column speed: 'fast' is not a number" in str(error), True, "a bad cell is named")
    else:
        raise AssertionError("a speed that is not a number was accepted")


class _Spy(protocol.Last):
    """Records the data of each call."""

    def __init__(self):
        self.fitted, self.asked = [], []

    def fit(self, y, drivers, log_batch, names):
        super().fit(y, drivers, log_batch, names)
        self.fitted.append(len(y))
        self.seen = list(y)

    def predict(self, drivers, log_batch):
        self.asked.append((len(self.seen), drivers[0]))
        return self.value

    def observe(self, y, drivers, log_batch):
        super().observe(y, drivers, log_batch)
        self.seen.append(y)


def splits():
    _expect(_series([1.0] * 99).warmup, 39, "40 % of the rows, cut to whole rows, is warm-up")


def causal():
    """Checks that row k is forecast from the k rows before it and from its own drivers."""
    series, spy = _series(range(1, 301)), _Spy()
    track = protocol.walk(series, spy, clock=lambda: 0.0)
    _expect(spy.fitted, [120, 220], "fits after the warm-up and every 100 rows")
    for k, asked in enumerate(spy.asked, 120):
        _expect(asked, (k, float(k)), f"rows seen and drivers known at row {k}")
    _expect(track.log_forecasts == series.log_speed[119:299], True, "the last value is the forecast of each row")


def guard():
    _expect(protocol.guarded(9.0, [50.0] + [1.0] * 19 + [2.0]), 2.05, "at most 5 % over the last 20 values")
    _expect(protocol.guarded(-9.0, [1.0, 2.0]), 0.95, "at most 5 % under them")
    _expect(protocol.guarded(1.5, [1.0, 2.0]), 1.5, "values within the range are unchanged")
    _expect(protocol.guarded(math.nan, [1.0, 2.0]), None, "NaN is not a forecast")


def metric():
    """Compares with the result by hand for the errors -1, 0, 2."""
    _expect(protocol.rmse([2.0, 4.0, 6.0], [3.0, 4.0, 4.0]), math.sqrt(5.0 / 3.0), "rmse")


def summary():
    """Checks the mean over traces of the mean over series.

    A model without a result for a series has no value for the trace.
    """
    entry = {"fit_s": 0.002, "predict_s": 0.001, "predictions": 100}
    results = {(trace, one, "last"): {"rmse": 2.0, **entry} for trace, one in ["ax", "ay", "bx"]}
    results |= {(*"ax", "m"): {"rmse": 1.0, **entry}, (*"ay", "m"): {"rmse": 2.0, **entry}}
    traces, rows = table.summary(results, ["last", "m"])
    _expect(traces, ["a", "b"], "traces in order")
    _expect((rows[0]["mean"], rows[1]["rmse_rel_last"], rows[1]["mean"]), (1.0, {"a": 0.75}, None), "relative errors")
    _expect(round(rows[1]["predict_us"], 9), 10.0, "time of a forecast")
    text = table.markdown(traces, rows, {"lstm": "no torch"})
    _expect(text.splitlines()[3].startswith("| m | 0.750 | - | - | 2 | 10 | 3 |"), True, "a row of the table")
    _expect("| lstm | SKIPPED: no torch" in text, True, "skipped peers are listed")
