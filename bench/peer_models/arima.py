"""ARIMA and ARIMAX of statsmodels on log speed. Between fits the Kalman filter goes on with the coefficients as they are."""

import warnings

import numpy as np
from statsmodels.tsa.arima.model import ARIMA

from .features import Inputs

ORDERS = [(1, 0, 0), (2, 0, 0), (1, 0, 1), (2, 0, 1), (0, 1, 1), (1, 1, 1), (2, 1, 1)]
"""The first fit picks one by AIC."""

ORDER_WITH_DRIVERS = (2, 0, 1)


class Arima:
    """Order by AIC on the warm-up."""

    order = None

    def fit(self, y, drivers, log_batch, names):
        orders = [self.order] if self.order else ORDERS
        fitted = {order: self._fit(np.asarray(y), order) for order in orders}
        self.order = min(fitted, key=lambda order: fitted[order].aic)
        self.state = fitted[self.order]

    @staticmethod
    def _fit(y, order, exog=None):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ARIMA(y, exog=exog, order=order).fit()

    def predict(self, drivers, log_batch):
        return self.state.forecast(1)[0]

    def observe(self, y, drivers, log_batch):
        self.state = self.state.extend([y])


class Arimax(Arima):
    """With the batch and the drivers that go most with changes of speed."""

    needs_drivers = True

    def fit(self, y, drivers, log_batch, names):
        self.inputs = Inputs(drivers, log_batch, names)
        y = np.asarray(y)
        exog = self.inputs.select(y, self.inputs.rows(drivers, log_batch))
        self.state = self._fit(y, ORDER_WITH_DRIVERS, exog)

    def predict(self, drivers, log_batch):
        self.exog = self.inputs.rows([drivers], [log_batch])
        return self.state.forecast(1, exog=self.exog)[0]

    def observe(self, y, drivers, log_batch):
        self.state = self.state.extend([y], exog=self.exog)
