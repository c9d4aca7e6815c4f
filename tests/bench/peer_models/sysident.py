"""SysIdentPy: polynomial NARX by forward regression (FROLS), with terms by BIC."""

import warnings

import numpy as np
from sysidentpy.basis_function import Polynomial
from sysidentpy.model_structure_selection import FROLS
from sysidentpy.parameter_estimation import LeastSquares

from .features import Inputs

LAGS = 2
DEGREE = 2
TERMS_MAX = 15


class Frols:
    """Polynomial NARX model. FROLS lags inputs by at least one row, so readings are shifted one row forward."""

    def fit(self, y, drivers, log_batch, names):
        self.inputs = Inputs(drivers, log_batch, names)
        y = np.asarray(y)
        self.mean = y.mean()
        rows = self.inputs.select(y, self.inputs.rows(drivers, log_batch))
        has_inputs = self.inputs.width > 0
        self.model = FROLS(
            ylag=LAGS,
            xlag=[[1]] * self.inputs.width if has_inputs else 1,
            basis_function=Polynomial(degree=DEGREE),
            model_type="NARMAX" if has_inputs else "NAR",
            estimator=LeastSquares(),
            info_criteria="bic",
            n_info_values=TERMS_MAX,
        )
        self.y, self.x = list(y[-LAGS:] - self.mean), list(rows[-LAGS + 1 :])
        ahead = np.vstack([rows[1:], rows[-1:]]) if has_inputs else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.model.fit(X=ahead, y=(y - self.mean)[:, None])

    def predict(self, drivers, log_batch):
        self.row = self.inputs.row(drivers, log_batch)
        window = np.array([*self.y, 0.0])[:, None]
        x = np.array([*self.x, self.row, self.row]) if self.inputs.width else None
        return self.mean + self.model.predict(X=x, y=window, steps_ahead=1)[-1, 0]

    def observe(self, y, drivers, log_batch):
        self.y = self.y[1:] + [y - self.mean]
        self.x = self.x[1:] + [self.row]
