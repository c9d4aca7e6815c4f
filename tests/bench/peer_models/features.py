"""Inputs of the peers: the same past, drivers and batch as evenstep's own models."""

import numpy as np

BASE_ALPHA = 0.3
SELECTED_MAX = 6
LAGS_EXPLAINED = 3


class Inputs:
    """Drivers and batch of a row as standardized deviations.

    Constant columns are omitted. Missing readings have the mean value.
    """

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
        """Returns one row of inputs for each row of readings."""
        table = self._table(drivers, log_batch, len(self.mean) - 1)
        filled = np.where(np.isfinite(table), table, self.mean)
        scaled = (filled - self.mean)[:, self.kept] / self.spread[self.kept]
        return np.clip(scaled, -5.0, 5.0)

    def row(self, drivers, log_batch):
        """Returns the inputs of one row."""
        return self.rows([drivers], [log_batch])[0]

    def select(self, y, rows):
        """Keeps the columns with the largest correlation to the residuals of an autoregression.

        Models that fit each coefficient by a search, or have many coefficients, cannot use all columns."""
        if self.width > SELECTED_MAX:
            left = _unexplained(y)
            rows_left = rows[len(y) - len(left) :]
            going = [abs(np.corrcoef(left, rows_left[:, column])[0, 1]) for column in range(self.width)]
            best = np.sort(np.argsort(np.nan_to_num(going))[-SELECTED_MAX:])
            self.kept, self.width = self.kept[best], len(best)
            rows = rows[:, best]
        return rows


def _unexplained(y):
    """Returns the residuals of an autoregression by least squares."""
    lags = [y[LAGS_EXPLAINED - lag : len(y) - lag] for lag in range(1, LAGS_EXPLAINED + 1)]
    table = np.column_stack([*lags, np.ones(len(y) - LAGS_EXPLAINED)])
    target = y[LAGS_EXPLAINED:]
    return target - table @ np.linalg.lstsq(table, target, rcond=None)[0]


def levels(y):
    """Returns the EMA of log speed before each row; for row 0 it is the value of the row."""
    level = np.empty(len(y) + 1)
    level[0] = level[1] = y[0]
    for k in range(1, len(y)):
        level[k + 1] = level[k] + BASE_ALPHA * (y[k] - level[k])
    return level
