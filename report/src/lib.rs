//! Self-contained HTML reports: charts, tables and text in one file.
//!
//! A [`Report`] is data; [`Report::to_html`] writes it as one page that needs no network and no other file: it can be mailed,
//! printed, and kept beside the run that it describes.
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
//! let report = Report {
//!     title: "Demo".into(),
//!     subtitle: "four workers, one machine".into(),
//!     sections: vec![Section::Charts(vec![chart])],
//! };
//! assert!(report.to_html().starts_with("<!DOCTYPE html>"));
//! ```
//!
//! [`Report::of_chart`] is a page with one chart, for pictures of it.
//!
//! Beside the page are the other results of a command: [`text`] for a terminal, [`output`] for files and standard output, [`values`] for
//! the bounds of its flags.
//!
//! # What a reader may rely on
//! - A reading that is missing (NaN, infinite, or past [`MAX_MAGNITUDE`]) breaks its line; it is never drawn as zero.
//!   A chart without one reading says "no data".
//! - A series longer than [`MAX_POINTS`] is thinned to the first, lowest, highest and last point of each of
//!   [`BUCKETS`] columns: peaks survive, and the size of the file does not grow with the length of the run.
//! - The same name has the same colour within a chart, in order of first appearance; past eight names colours repeat.
//! - Each chart can be read as a table, and point by point with the arrow keys.
//! - All text is escaped. The page's own policy allows its style and its scripts, by their hashes, and nothing else: no network,
//!   no other script.
//!
//! # How charts are drawn
//! A chart is written as data, and the page carries the modules that draw it: uPlot and those of the folder `charts`, which the
//! service's own page uses too. `src/page` adds what only reports have: bars, spans in lanes, points and rules.

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
    /// The page's heading and the window's title.
    pub title: String,
    /// One line under it: what, where, when.
    pub subtitle: String,
    /// In reading order.
    pub sections: Vec<Section>,
}

impl Report {
    /// A page with one chart.
    pub fn of_chart(chart: &Chart) -> Self {
        let sections = vec![Section::Charts(vec![chart.clone()])];
        Self { title: chart.title.clone(), subtitle: String::new(), sections }
    }

    /// The page as one HTML document.
    ///
    /// Control characters that no HTML or XML text may hold appear as U+FFFD.
    pub fn to_html(&self) -> String {
        page::html(self)
    }
}

/// One part of a page.
#[derive(Debug, Clone, PartialEq)]
pub enum Section {
    /// Words.
    Text {
        /// Starts a new part of the page; empty for none.
        heading: String,
        /// Line breaks inside a paragraph are kept.
        paragraphs: Vec<String>,
    },
    /// Something the reader must know before believing the rest, such as "speeds were imposed".
    Notice(String),
    /// The few numbers that answer the question, set large.
    Figures(Vec<Figure>),
    /// Rows and columns.
    Table(Table),
    /// Charts side by side where the page is wide enough; a single one takes the whole width.
    Charts(Vec<Chart>),
}

/// One number set large.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// What it is.
    pub label: String,
    /// The number as it should read, unit included.
    pub value: String,
    /// What to compare it with; empty for none.
    pub note: String,
}

impl Figure {
    /// A number with what it is and what to compare it with.
    pub fn new(label: impl Into<String>, value: impl Into<String>, note: impl Into<String>) -> Self {
        Self { label: label.into(), value: value.into(), note: note.into() }
    }
}

/// Rows and columns. A row shorter than the header ends in missing cells; a longer one keeps its cells under
/// unnamed columns.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Table {
    /// Heading of the table.
    pub title: String,
    /// How to read it; empty for none.
    pub description: String,
    /// Column names, units included.
    pub columns: Vec<String>,
    /// The rows.
    pub rows: Vec<Vec<Cell>>,
}

impl Table {
    /// A table with these columns.
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
    /// Words, aligned left.
    Text(String),
    /// A number, aligned right; a NaN or an infinity shows as missing.
    Number {
        /// The value.
        value: f64,
        /// Digits after the point; more than 17 say nothing more about an `f64` and are not written.
        decimals: usize,
    },
    /// A time, aligned right, in the unit that suits the largest of its column; the page adds that to the column's name.
    Seconds(f64),
    /// No reading: a dash.
    Missing,
}

impl Cell {
    /// A number with this many digits after the point.
    pub fn number(value: f64, decimals: usize) -> Self {
        Self::Number { value, decimals }
    }

    /// A number with this many significant digits, and at most nine after the point.
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
