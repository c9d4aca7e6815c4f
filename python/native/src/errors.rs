//! Exceptions of the Python package.

use std::fmt::Display;

use evenstep_client::Error;
use pyo3::PyErr;

pyo3::import_exception!(evenstep.errors, DivergedError);
pyo3::import_exception!(evenstep.errors, EvenstepError);
pyo3::import_exception!(evenstep.errors, RejectedError);
pyo3::import_exception!(evenstep.errors, SettingError);

/// Returns a `SettingError`.
pub fn invalid_setting(error: impl Display) -> PyErr {
    SettingError::new_err(error.to_string())
}

/// Returns a `RejectedError` if repeating the request cannot succeed, else an `EvenstepError`.
pub fn request_failed(error: &Error) -> PyErr {
    if error.kind.is_permanent() {
        RejectedError::new_err(error.to_string())
    } else {
        EvenstepError::new_err(error.to_string())
    }
}
