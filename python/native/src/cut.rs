//! The order of an epoch, and the cut of an iteration whose samples differ in cost.

use std::num::NonZeroU64;

use evenstep_rules::{self as rules, GLOBAL_BATCH_MAX, PassRules};
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::invalid_setting;

/// A pseudorandom permutation of samples.
#[pyclass(frozen, module = "evenstep._native")]
pub struct Shuffle(rules::Shuffle);

#[pymethods]
impl Shuffle {
    #[new]
    fn new(samples: u64, seed: u64) -> PyResult<Self> {
        let count = NonZeroU64::new(samples);
        let count = count.ok_or_else(|| invalid_setting(format!("samples {samples}: must be at least 1")))?;
        Ok(Self(rules::Shuffle::new(count, seed)))
    }

    fn indices<'py>(&self, py: Python<'py>, begin: u64, end: u64) -> PyResult<Bound<'py, PyBytes>> {
        let samples = self.0.samples();
        if begin > end || end > samples {
            return Err(invalid_setting(format!(
                "positions {begin} to {end}: must be in order and at most {samples}, the number of samples"
            )));
        }
        if end - begin > GLOBAL_BATCH_MAX {
            return Err(invalid_setting(format!(
                "positions {begin} to {end}: must be at most {GLOBAL_BATCH_MAX} in one call"
            )));
        }
        let bytes: Vec<u8> = py.detach(|| {
            let indices = (begin..end).filter_map(|position| self.0.index(position));
            indices.flat_map(u64::to_le_bytes).collect()
        });
        Ok(PyBytes::new(py, &bytes))
    }
}

/// The samples of each part of an iteration, by pass.
#[pyclass(frozen, module = "evenstep._native")]
pub struct Cut(rules::Cut);

#[pymethods]
impl Cut {
    #[new]
    #[pyo3(signature = (
        costs, weights, *, lengths = None, max_tokens = None, padded = false, least = 1, passes = 1, is_equal = true
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    #[expect(clippy::needless_pass_by_value, reason = "the values come from Python")]
    fn new(
        py: Python<'_>,
        costs: Vec<f64>,
        weights: Vec<u64>,
        lengths: Option<Vec<u64>>,
        max_tokens: Option<u64>,
        padded: bool,
        least: usize,
        passes: usize,
        is_equal: bool,
    ) -> PyResult<Self> {
        let lengths = lengths.as_deref();
        let limits = PassRules { lengths, max_tokens, is_padded: padded, least, passes, is_equal };
        py.detach(|| rules::Cut::new(&costs, &weights, &limits)).map(Self).map_err(invalid_setting)
    }

    #[getter]
    fn passes(&self) -> usize {
        self.0.passes()
    }

    #[getter]
    fn excess(&self) -> f64 {
        self.0.excess()
    }

    fn part(&self, index: usize) -> PyResult<Vec<Vec<usize>>> {
        Ok(self.get(index)?.passes.clone())
    }

    fn cost(&self, index: usize) -> PyResult<f64> {
        Ok(self.get(index)?.cost)
    }
}

impl Cut {
    fn get(&self, index: usize) -> PyResult<&rules::Part> {
        let parts = self.0.parts();
        let error = || PyIndexError::new_err(format!("part {index}: must be below {}", parts.len()));
        parts.get(index).ok_or_else(error)
    }
}
