"""LightGBM: the deviation of log speed from its EMA, from lags, level, every driver and the batch."""

import lightgbm
import numpy as np

from .features import BASE_ALPHA, Inputs, levels

LAGS = 5
ROUNDS = 150
PARAMETERS = {
    "objective": "regression",
    "learning_rate": 0.05,
    "num_leaves": 15,
    "min_data_in_leaf": 20,
    "lambda_l2": 5.0,
    "num_threads": 1,
    "seed": 1,
    "deterministic": True,
    "verbose": -1,
}


class LightGbm:
    def fit(self, y, drivers, log_batch, names):
        self.inputs = Inputs(drivers, log_batch, names)
        y = np.asarray(y)
        level, rows = levels(y), self.inputs.rows(drivers, log_batch)
        self.recent, self.level = list(y[-LAGS:]), level[-1]
        lags = np.column_stack([y[LAGS - lag : len(y) - lag] for lag in range(1, LAGS + 1)])
        base = level[LAGS : len(y)]
        table = np.column_stack([lags - base[:, None], base, rows[LAGS:]])
        self.model = lightgbm.train(PARAMETERS, lightgbm.Dataset(table, y[LAGS:] - base), ROUNDS)

    def predict(self, drivers, log_batch):
        lags = np.array(self.recent[::-1]) - self.level
        row = np.concatenate([lags, [self.level], self.inputs.row(drivers, log_batch)])
        return self.level + self.model.predict(row[None, :], num_threads=1)[0]

    def observe(self, y, drivers, log_batch):
        self.recent = self.recent[1:] + [y]
        self.level += BASE_ALPHA * (y - self.level)
