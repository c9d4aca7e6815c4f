"""ARIMA and ARIMAX of statsmodels on log speed. Between fits the Kalman filter keeps the coefficients."""

import warnings

import numpy as np
from statsmodels.tsa.arima.model import ARIMA

from .features import Inputs

ORDERS = [(1, 0, 0), (2, 0, 0), (1, 0, 1), (2, 0, 1), (0, 1, 1), (1, 1, 1), (2, 1, 1)]
"""Candidate orders; the first fit selects one by AIC."""


class Arima:
    """ARIMA; the order is selected by AIC on the warm-up."""

    order = None

    def fit(self, y, drivers, log_batch, names):
        self._fit(np.asarray(y))

    def _fit(self, y, exog=None):
        orders = [self.order] if self.order else ORDERS
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted = {order: ARIMA(y, exog=exog, order=order).fit() for order in orders}
        self.order = min(fitted, key=lambda order: fitted[order].aic)
        self.state = fitted[self.order]

    def predict(self, drivers, log_batch):
        return self.state.forecast(1)[0]

    def observe(self, y, drivers, log_batch):
        self.state = self.state.extend([y])


class Arimax(Arima):
    """ARIMA with the drivers (or the batch) that explain most beyond the lags."""

    needs_inputs = True

    def fit(self, y, drivers, log_batch, names):
        self.inputs = Inputs(drivers, log_batch, names)
        y = np.asarray(y)
        self._fit(y, self.inputs.select(y, self.inputs.rows(drivers, log_batch)))

    def predict(self, drivers, log_batch):
        self.exog = self.inputs.rows([drivers], [log_batch])
        return self.state.forecast(1, exog=self.exog)[0]

    def observe(self, y, drivers, log_batch):
        self.state = self.state.extend([y], exog=self.exog)
