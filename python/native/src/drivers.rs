//! Readings of this process and its machine, without an agent.

use std::time::Instant;

use evenstep_sensors::Boundary;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict};

use crate::reports::DRIVERS;

/// Reads this process and its machine from `/proc`.
#[pyclass(module = "evenstep._native")]
pub struct Sensors(Boundary);

#[pymethods]
impl Sensors {
    #[new]
    fn new() -> Self {
        Self(Boundary::new(std::process::id()))
    }

    /// Returns the available readings by name, in the order of forecasts. Shares and rates cover the window since the
    /// last call.
    fn read<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        // The kernel may block a reading of a large process.
        let reading = py.detach(|| self.0.read(Instant::now()));
        let available = DRIVERS.into_iter().filter_map(|name| Some((name, *reading.readings.get(name)?)));
        available.into_py_dict(py)
    }
}
