//! Result of reading a source: values by name, and the reason for each missing value.

use std::collections::BTreeMap;

use evenstep_protocol::{GpuGap, Readings};

/// Length limit of a reason, in bytes. The predictor rejects longer ones.
const REASON_BYTES_MAX: usize = 256;

/// Readings of a source at one time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reading {
    /// Length of the window of shares and rates, in seconds; absent in a reader's first reading.
    pub window_s: Option<f64>,
    /// Values, all finite.
    pub readings: Readings,
    /// Reasons of missing values, by name. A name is never in both maps.
    pub missing: BTreeMap<String, String>,
}

impl Reading {
    /// Adds a value, or the reason why it is missing. A reason that is too long, such as one with a long path, is cut.
    pub fn put(&mut self, name: &str, value: Result<f64, MissingReason>) {
        let mut reason = match value {
            Ok(value) if value.is_finite() => {
                self.readings.insert(name.to_owned(), value);
                return;
            }
            Ok(value) => format!("not a finite number: {value}"),
            Err(gap) => gap.to_string(),
        };
        reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX));
        self.missing.insert(name.to_owned(), reason);
    }

    /// Returns a reading whose values are all missing for one reason.
    pub fn gap(names: &[&str], reason: &MissingReason) -> Self {
        let mut reading = Self::default();
        for name in names {
            reading.put(name, Err(reason.clone()));
        }
        reading
    }

    /// Adds the readings of another source; the window stays unchanged.
    pub fn extend(&mut self, other: Self) {
        self.readings.extend(other.readings);
        self.missing.extend(other.missing);
    }
}

/// Reason why a reading is missing.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum MissingReason {
    /// Shares and rates require two readings.
    #[error("first reading: no window yet")]
    First,
    /// A monotonic counter decreased, so it was reset and the difference is meaningless.
    #[error("the counter decreased")]
    CounterDecreased,
    /// Two readings have the same time.
    #[error("the window is empty")]
    EmptyWindow,
    /// The process has ended; a later process with the same id is a different one.
    #[error("process {0} has ended")]
    Ended(u32),
    /// The kernel has no such file: the feature is not built in, or the process or device no longer exists.
    #[error("{path} does not exist")]
    PathNotFound {
        /// The file.
        path: String,
    },
    /// A kernel file could not be read.
    #[error("cannot read {path}: {message}")]
    Unreadable {
        /// The file.
        path: String,
        /// Error of the operating system.
        message: String,
    },
    /// The text does not have the format that the kernel documents.
    #[error("cannot find {field} in {path}")]
    FieldNotFound {
        /// The missing field.
        field: &'static str,
        /// The file.
        path: String,
    },
    /// The kernel or the driver did not respond in time.
    #[error("timed out: the {source_name} source does not respond")]
    TimedOut {
        /// The source.
        source_name: &'static str,
    },
    /// Too many requests wait for the source.
    #[error("busy: too many requests wait for the {source_name} source")]
    Busy {
        /// The source.
        source_name: &'static str,
    },
    /// The GPU has fallen off the bus, needs a reset or has been removed.
    #[error("lost: {0}")]
    Lost(String),
    /// The user of the process may not read the value.
    #[error("no permission: {0}")]
    NoPermission(String),
    /// The driver failed.
    #[error("driver failed: {0}")]
    Driver(String),
    /// The system or the driver does not provide the value.
    #[error("{0}")]
    Unsupported(String),
}

impl MissingReason {
    /// Returns why a GPU cannot be read if none of its readings can, for this reason.
    pub fn gpu_gap(&self) -> GpuGap {
        match self {
            Self::Lost(_) => GpuGap::Lost,
            Self::NoPermission(_) => GpuGap::NoPermission,
            Self::Unsupported(_) => GpuGap::Unsupported,
            Self::TimedOut { .. } | Self::Busy { .. } => GpuGap::TimedOut,
            _ => GpuGap::DriverFailed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_reasons_are_cut_between_characters() {
        let mut reading = Reading::default();
        for (name, path) in
            [("a", "a".repeat(300)), ("b", "é".repeat(200)), ("c", format!("a{}", "é".repeat(200)))]
        {
            reading.put(name, Err(MissingReason::Unsupported(path)));
        }
        reading.put("short", Err(MissingReason::EmptyWindow));
        let lengths: Vec<_> = reading.missing.values().map(String::len).collect();
        assert_eq!(lengths, [256, 256, 255, "the window is empty".len()]);
    }
}
