"""Tables, splits, the walk and its metric. Uses only the standard library, so that the self-check installs nothing.

The protocol is the same as in `evenstep-predictor backtest`: rolling origin, one step ahead, and the first 40 % of a
series is warm-up. Before a row, its drivers and its batch are known, but not its speed. Forecasts stay within the range
of the last 20 values, with a margin of 5 %. The result is the RMSE over the rows after the warm-up, divided by the RMSE
of the last value.
"""

import csv
import math
import time
from dataclasses import dataclass

WARMUP_SHARE = 0.4
REFIT_ROWS = 100
RANGE_ROWS = 20
RANGE_MARGIN = 0.05
"""Margin in log speed: about 5 %."""

NO_DRIVERS = {"iter", "iter_ms", "speed"}
TRUTH = "truth_"


class BadTable(Exception):
    """Invalid table; the message names file, line, column and rule."""


@dataclass
class Columns:
    """Names of the columns; the defaults are for evenstep's traces."""

    target: str = "speed"
    target_time: str | None = None
    batch: str = "batch"
    time: str = "t_start"
    id: str | None = None

    def flags(self):
        """Returns the flags of `evenstep-predictor backtest` for these columns."""
        flags = []
        if self.target_time:
            flags += ["--target-time", self.target_time, "--time", self.time]
        if self.id:
            flags += ["--id", self.id]
        return flags


PAI = Columns(target_time="batch_time_norm", time="time", id="worker")


@dataclass
class Series:
    """Rows of one worker. `drivers[k]` was read before row k; a missing reading is None."""

    trace: str
    id: str
    names: list
    log_speed: list
    log_batch: list
    drivers: list

    @property
    def warmup(self):
        return int(len(self.log_speed) * WARMUP_SHARE)

    @property
    def has_inputs(self):
        """Whether any driver, or the batch, ever changes."""
        columns = [*zip(*self.drivers, strict=True), self.log_batch]
        return any(len(set(column) - {None}) > 1 for column in columns)

    @property
    def speed(self):
        return [math.exp(value) for value in self.log_speed]


def driver_columns(header, columns):
    """Returns the columns without another role whose values are known before the iteration."""
    taken = {columns.target_time or columns.target, columns.batch, columns.time, columns.id}
    return [
        name
        for name in header
        if name and name not in taken and name not in NO_DRIVERS and not name.startswith(TRUTH)
    ]


def read(path, columns):
    """Returns the series of a table, in the order of their first rows."""
    with open(path, newline="", encoding="utf-8") as file:
        table = csv.DictReader(file)
        header = table.fieldnames or []
        target = columns.target_time or columns.target
        for needed in filter(None, [target, columns.id]):
            if needed not in header:
                raise BadTable(f"{path}: has no column {needed!r}")
        names = driver_columns(header, columns)
        series = {}
        for row in table:

            def positive(name):
                value = number(path, table.line_num, name, row[name])
                if value is None or value <= 0.0:
                    raise BadTable(f"{path}, line {table.line_num}, column {name}: {row[name]!r} is not positive")
                return value

            worker = row[columns.id] if columns.id else path.stem
            if worker not in series:
                series[worker] = Series(path.stem, worker, names, [], [], [])
            batch = positive(columns.batch) if columns.batch in header else 1.0
            measured = positive(target)
            of = series[worker]
            of.log_speed.append(math.log(batch / measured if columns.target_time else measured))
            of.log_batch.append(math.log(batch))
            of.drivers.append([number(path, table.line_num, name, row[name]) for name in names])
    for of in series.values():
        if of.warmup < RANGE_ROWS or len(of.log_speed) < of.warmup + 2:
            raise BadTable(f"{path}, series {of.id}: {len(of.log_speed)} rows; the warm-up needs at least {RANGE_ROWS}")
    return list(series.values())


def number(path, line, name, text):
    """Returns the value of a cell, or None if the reading is missing."""
    if text is None or text.strip().lower() in {"", "nan", "na", "null"}:
        return None
    try:
        value = float(text)
    except ValueError:
        raise BadTable(f"{path}, line {line}, column {name}: {text!r} is not a number") from None
    return value if math.isfinite(value) else None


def guarded(forecast, recent):
    """Clips a forecast of log speed to the range of the recent values. Returns None if it is not finite."""
    if not math.isfinite(forecast):
        return None
    window = recent[-RANGE_ROWS:]
    return min(max(forecast, min(window) - RANGE_MARGIN), max(window) + RANGE_MARGIN)


@dataclass
class Track:
    """Forecasts of a model for the rows after the warm-up, and their CPU time."""

    log_forecasts: list
    fits: int = 0
    fit_cpu_s: float = 0.0
    predict_cpu_s: float = 0.0
    replaced: int = 0
    """Number of forecasts that were not finite and were replaced by the last value."""


def walk(series, peer, clock=time.process_time):
    """Runs a peer on a series: fits it on the warm-up, and again every REFIT_ROWS rows on all earlier rows."""
    track = Track([])
    y = series.log_speed
    for k in range(series.warmup, len(y)):
        if (k - series.warmup) % REFIT_ROWS == 0:
            began = clock()
            peer.fit(y[:k], series.drivers[:k], series.log_batch[:k], series.names)
            track.fit_cpu_s += clock() - began
            track.fits += 1
        began = clock()
        forecast = guarded(float(peer.predict(series.drivers[k], series.log_batch[k])), y[:k])
        track.predict_cpu_s += clock() - began
        if forecast is None:
            forecast = y[k - 1]
            track.replaced += 1
        track.log_forecasts.append(forecast)
        began = clock()
        peer.observe(y[k], series.drivers[k], series.log_batch[k])
        track.predict_cpu_s += clock() - began
    return track


def rmse(actual, forecast):
    """Returns the root mean squared error."""
    return math.sqrt(sum((y - f) ** 2 for y, f in zip(actual, forecast, strict=True)) / len(actual))


def rmse_of(series, track):
    """Returns the RMSE in speed over the rows after the warm-up."""
    return rmse(series.speed[series.warmup :], [math.exp(value) for value in track.log_forecasts])


class Last:
    """Last-value forecast: the reference of all models, and the proof that both sides count the same rows."""

    def fit(self, y, drivers, log_batch, names):
        self.value = y[-1]

    def predict(self, drivers, log_batch):
        return self.value

    def observe(self, y, drivers, log_batch):
        self.value = y
