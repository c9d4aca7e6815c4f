//! Self-contained HTML reports: charts, tables and text in one file.
//!
//! A [`Report`] is data. [`Report::to_html`] writes it as one page that needs no network and no other file.
//! It can be mailed, printed, and stored next to the run that it describes.
//!
//! ```
//! use evenstep_report::{Axis, Chart, Mark, Report, Section};
//!
//! let chart = Chart {
//!     title: "Step time".into(),
//!     description: "Each point is one iteration.".into(),
//!     x: Axis::new("iteration", ""),
//!     y: Axis::new("step time", "ms").from_zero(),
//!     marks: vec![Mark::Line { name: "even".into(), points: vec![(0.0, 41.0), (1.0, 43.5)], dashed: false }],
//! };
//! // A report has any number of sections.
//! let report = Report {
//!     title: "Demo".into(),
//!     subtitle: "four workers, one machine".into(),
//!     sections: vec![Section::Charts(vec![chart])],
//! };
//! assert!(report.to_html().starts_with("<!DOCTYPE html>"));
//! ```
//!
//! Other modules serve other outputs of a command:
//!
//! - [`text`]: text on a terminal
//! - [`output`]: files and standard output
//! - [`values`]: bounds of flag values
//!
//! # Guarantees
//! - A missing value (NaN, infinite, or beyond [`MAX_MAGNITUDE`]) interrupts its line; it is never drawn as
//!   zero. A chart without any value shows "no data".
//! - A series longer than [`MAX_POINTS`] is thinned to the first, lowest, highest and last point of each of
//!   [`BUCKETS`] columns. Peaks remain, and the size of the file does not grow with the length of the run.
//! - A name has the same colour everywhere in a chart, in order of first appearance. After eight names the
//!   colours repeat.
//! - Each chart is also available as a table, and point by point with the arrow keys.
//! - All text is escaped. The content security policy allows only the page's own style and scripts, by their
//!   hashes: no network, and no other script.
//!
//! # Drawing of charts
//! A chart is written as data, and the page contains the modules that draw it: uPlot and the modules in the
//! folder `charts`, which the page of the service also uses. `src/page` adds the marks that only reports
//! have: bars, spans in lanes, points and rules.

pub mod output;
pub mod text;
pub mod values;

mod chart;
mod number;
mod series;

mod data;
mod page;

pub use chart::{Axis, Bar, Chart, Layer, Mark, RuleAt, Span};
pub use number::MAX_MAGNITUDE;
pub use series::{BUCKETS, MAX_POINTS};

/// A whole page.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Report {
    /// Heading of the page and title of the window.
    pub title: String,
    /// One line under the heading, such as program, machine and date.
    pub subtitle: String,
    /// Sections in reading order.
    pub sections: Vec<Section>,
}

/// A section of a page.
#[derive(Debug, Clone, PartialEq)]
pub enum Section {
    /// The result in one or two sentences, in large type: the first section of a page.
    Verdict(String),
    /// Paragraphs of text. The headings of a page with several of them are its contents.
    Text {
        /// Heading of the section; may be empty.
        heading: String,
        /// Paragraphs. Line breaks inside a paragraph are kept.
        paragraphs: Vec<String>,
    },
    /// A notice about the validity of the results, such as "speeds were imposed".
    Notice(String),
    /// The most important numbers, in large type.
    Figures(Vec<Figure>),
    /// A table.
    Table(Table),
    /// Charts, side by side if the page is wide enough. A single chart takes the whole width.
    Charts(Vec<Chart>),
}

/// A number in large type.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// Name of the number.
    pub label: String,
    /// Formatted number with its unit.
    pub value: String,
    /// Reference value or explanation; may be empty.
    pub note: String,
}

impl Figure {
    /// Creates a number with its name and a note.
    pub fn new(label: impl Into<String>, value: impl Into<String>, note: impl Into<String>) -> Self {
        Self { label: label.into(), value: value.into(), note: note.into() }
    }
}

/// A table. A row shorter than the header is filled with missing cells. The extra cells of a longer row get
/// unnamed columns.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Table {
    /// Title of the table.
    pub title: String,
    /// How to read the table; may be empty.
    pub description: String,
    /// Column names with units.
    pub columns: Vec<String>,
    /// The rows.
    pub rows: Vec<Vec<Cell>>,
}

impl Table {
    /// Creates a table with these columns.
    pub fn new(
        title: impl Into<String>,
        description: impl Into<String>,
        columns: &[&str],
        rows: Vec<Vec<Cell>>,
    ) -> Self {
        let columns = columns.iter().map(|name| (*name).to_owned()).collect();
        Self { title: title.into(), description: description.into(), columns, rows }
    }
}

/// One cell of a [`Table`].
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// Text, aligned left.
    Text(String),
    /// A number, aligned right. NaN and infinity are shown as missing.
    Number {
        /// The value.
        value: f64,
        /// Digits after the decimal point, at most 17, the precision of an `f64`.
        decimals: usize,
    },
    /// The best number of its row, in bold type with a star.
    Best {
        /// The value.
        value: f64,
        /// Digits after the decimal point, at most 17.
        decimals: usize,
    },
    /// A time in seconds, aligned right. The unit suits the largest time of the column and is added to the
    /// column name.
    Seconds(f64),
    /// A missing value, shown as a dash.
    Missing,
}

impl Cell {
    /// Creates a number with `decimals` digits after the decimal point.
    pub fn number(value: f64, decimals: usize) -> Self {
        Self::Number { value, decimals }
    }

    /// Creates a number with `digits` significant digits, and at most nine after the decimal point.
    pub fn significant(value: impl Into<Option<f64>>, digits: i32) -> Self {
        value.into().map_or(Self::Missing, |value| Self::number(value, number::decimals(value, digits)))
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}
