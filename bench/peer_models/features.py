"""What the peers are told: the same past, drivers and batch as evenstep's own models."""

import numpy as np

BASE_ALPHA = 0.3
SELECTED_MAX = 6
LAGS_EXPLAINED = 3


class Inputs:
    """Drivers and the batch of a row as numbers: constant columns left out, missing readings at their mean, in deviations."""

    def __init__(self, drivers, log_batch, names):
        table = self._table(drivers, log_batch, len(names))
        with np.errstate(invalid="ignore"):
            known = np.isfinite(table).any(axis=0)
            self.mean = np.where(known, np.nanmean(np.where(known, table, 0.0), axis=0), 0.0)
            filled = np.where(np.isfinite(table), table, self.mean)
        self.spread = filled.std(axis=0)
        self.kept = np.flatnonzero(self.spread > 1e-12 * np.maximum(1.0, np.abs(self.mean)))
        self.width = len(self.kept)

    @staticmethod
    def _table(drivers, log_batch, width):
        rows = [[np.nan if value is None else value for value in row] for row in drivers]
        return np.column_stack([np.array(rows, dtype=float).reshape(len(rows), width), log_batch])

    def rows(self, drivers, log_batch):
        """One row of inputs for each row of readings."""
        table = self._table(drivers, log_batch, len(self.mean) - 1)
        filled = np.where(np.isfinite(table), table, self.mean)
        scaled = (filled - self.mean)[:, self.kept] / self.spread[self.kept]
        return np.clip(scaled, -5.0, 5.0)

    def row(self, drivers, log_batch):
        """The inputs of one row."""
        return self.rows([drivers], [log_batch])[0]

    def select(self, y, rows):
        """Keeps the columns that go most with what an autoregression leaves unexplained: models that fit each coefficient
        by a search, or have many of them, cannot take them all."""
        if self.width > SELECTED_MAX:
            left = _unexplained(y)
            rows_left = rows[len(y) - len(left) :]
            going = [abs(np.corrcoef(left, rows_left[:, column])[0, 1]) for column in range(self.width)]
            best = np.sort(np.argsort(np.nan_to_num(going))[-SELECTED_MAX:])
            self.kept, self.width = self.kept[best], len(best)
            rows = rows[:, best]
        return rows


def _unexplained(y):
    """Residuals of an autoregression by least squares."""
    lags = [y[LAGS_EXPLAINED - lag : len(y) - lag] for lag in range(1, LAGS_EXPLAINED + 1)]
    table = np.column_stack([*lags, np.ones(len(y) - LAGS_EXPLAINED)])
    target = y[LAGS_EXPLAINED:]
    return target - table @ np.linalg.lstsq(table, target, rcond=None)[0]


def levels(y):
    """EMA of log speed before each row; that of row 0 is its own value."""
    level = np.empty(len(y) + 1)
    level[0] = level[1] = y[0]
    for k in range(1, len(y)):
        level[k + 1] = level[k] + BASE_ALPHA * (y[k] - level[k])
    return level
