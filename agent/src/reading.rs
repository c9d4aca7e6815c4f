//! What one look at a source gives: readings by name, and for each name that could not be read, the reason.

use std::collections::BTreeMap;

use evenstep_protocol::Readings;

/// What a source said at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reading {
    /// How long the window was that shares and rates were taken over, in seconds; absent in a reader's first reading.
    pub window_s: Option<f64>,
    /// What was read, all finite.
    pub readings: Readings,
    /// What could not be read, by name, and why. A name is never in both maps.
    pub missing: BTreeMap<String, String>,
}

impl Reading {
    /// Puts a value under its name, or the reason why there is none.
    pub fn put(&mut self, name: &str, value: Result<f64, Gap>) {
        match value {
            Ok(value) if value.is_finite() => {
                self.readings.insert(name.to_owned(), value);
            }
            Ok(value) => {
                self.missing.insert(name.to_owned(), format!("not a finite number: {value}"));
            }
            Err(gap) => {
                self.missing.insert(name.to_owned(), gap.to_string());
            }
        }
    }

    /// Takes in everything that another source said; its window is not taken over.
    pub fn extend(&mut self, other: Self) {
        self.readings.extend(other.readings);
        self.missing.extend(other.missing);
    }
}

/// Why a reading is absent.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Gap {
    /// Shares and rates need two readings.
    #[error("first reading: no window yet")]
    First,
    /// A counter that only rises was lower than before: it began again, so the difference means nothing.
    #[error("the counter went back")]
    WentBack,
    /// Two readings at the same moment.
    #[error("the window is empty")]
    EmptyWindow,
    /// The process that was watched is gone; a later process of the same number is another one.
    #[error("process {0} has ended")]
    Ended(u32),
    /// The kernel has no such file: it was built without, or what the file belongs to is gone.
    #[error("there is no {path}")]
    NotThere {
        /// Which file.
        path: String,
    },
    /// A file of the kernel's could not be read.
    #[error("cannot read {path}: {message}")]
    Unreadable {
        /// Which file.
        path: String,
        /// What the system said.
        message: String,
    },
    /// The text was not what the kernel documents.
    #[error("cannot find {field} in {path}")]
    Unexpected {
        /// Which field was looked for.
        field: &'static str,
        /// Which file.
        path: String,
    },
    /// The system or the driver does not say.
    #[error("{0}")]
    Unsupported(String),
}
