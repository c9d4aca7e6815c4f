//! Charts as data: axes and marks.

use crate::number::plottable;

/// One chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// Title of the chart.
    pub title: String,
    /// How to read the chart: meaning of a point, source of the data.
    pub description: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// Marks of the chart. From back to front: areas, bands, bars and spans, lines and rules.
    pub marks: Vec<Mark>,
}

/// An axis with its name and unit. Its range is computed from the marks, unless it has an end.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Axis {
    /// Quantity on the axis.
    pub label: String,
    /// Unit; may be empty.
    pub unit: String,
    /// Whether the range includes zero even if all values are far from it. Bars and stacked areas always
    /// start at zero.
    pub from_zero: bool,
    /// End of the range instead of the largest value, so that charts side by side have equal scales. Larger values are cut off.
    pub up_to: Option<f64>,
}

impl Axis {
    /// Creates an axis whose range covers exactly the values.
    pub fn new(label: impl Into<String>, unit: impl Into<String>) -> Self {
        Self { label: label.into(), unit: unit.into(), ..Self::default() }
    }

    /// Returns the same axis with zero in its range.
    #[must_use]
    pub fn from_zero(self) -> Self {
        Self { from_zero: true, ..self }
    }

    /// Returns the same axis with this end of its range.
    #[must_use]
    pub fn up_to(self, end: f64) -> Self {
        Self { up_to: Some(end).filter(|end| plottable(*end)), ..self }
    }
}

/// A mark of a chart. Points are sorted by x. A point without a drawable x, or without a y, interrupts the
/// mark.
///
/// Categories (of bars) and lanes (of spans) are numbered from 0 in order of first appearance. A line or a
/// rule in the same chart can refer to them by number.
#[derive(Debug, Clone, PartialEq)]
pub enum Mark {
    /// Points connected by straight lines. An isolated point between gaps is a dot.
    Line {
        /// Name in the legend.
        name: String,
        /// (x, y); of several points at one x the last counts.
        points: Vec<(f64, f64)>,
        /// Whether the line is dashed, for predicted, planned or reference values.
        dashed: bool,
    },
    /// Points without lines. Several may share an x. They are not thinned.
    Points {
        /// Name in the legend.
        name: String,
        /// (x, y)
        points: Vec<(f64, f64)>,
    },
    /// Range between two curves, such as a prediction interval. The name of a line gives it the colour of
    /// that line.
    Band {
        /// Name in the legend.
        name: String,
        /// (x, lower, upper)
        points: Vec<(f64, f64, f64)>,
    },
    /// Parts of a whole as a function of x, the first at the bottom.
    StackedArea {
        /// The parts. They should share their values of x: a layer without a value at some x has zero
        /// thickness there.
        layers: Vec<Layer>,
    },
    /// One value per category. Several `Bars` in a chart are drawn side by side. They are not thinned, so use
    /// as many as are readable.
    Bars {
        /// Name in the legend.
        name: String,
        /// The bars, in reading order.
        bars: Vec<Bar>,
    },
    /// Timeline: intervals of x in named lanes, the first lane at the top.
    Spans {
        /// Name in the legend: the kind of interval.
        name: String,
        /// Whether the intervals are idle time, which is drawn faintly.
        idle: bool,
        /// The intervals, in any order.
        spans: Vec<Span>,
    },
    /// A straight line across the chart, for a limit, a target or an event.
    Rule {
        /// Label next to the line.
        name: String,
        /// Position of the line.
        at: RuleAt,
    },
}

/// One part of a [`Mark::StackedArea`].
#[derive(Debug, Clone, PartialEq)]
pub struct Layer {
    /// Name in the legend.
    pub name: String,
    /// (x, thickness). A negative thickness cannot be stacked and counts as missing. Of several points at one
    /// x the last counts.
    pub points: Vec<(f64, f64)>,
}

/// One bar of a [`Mark::Bars`].
#[derive(Debug, Clone, PartialEq)]
pub struct Bar {
    /// Category on the horizontal axis.
    pub category: String,
    /// Height of the bar. Of several values for one category the last counts.
    pub value: f64,
}

/// One interval of a [`Mark::Spans`].
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// Lane of the interval.
    pub lane: String,
    /// Start on the x axis.
    pub from: f64,
    /// End on the x axis. If it is before the start, the two are swapped.
    pub to: f64,
    /// Description, shown when the pointer is on the interval. Empty to show only the name of the mark.
    pub label: String,
    /// Short text inside the interval, shown if it fits. May be empty.
    pub inside: String,
}

/// Position of a [`Mark::Rule`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RuleAt {
    /// Vertical line at this x.
    X(f64),
    /// Horizontal line at this y.
    Y(f64),
}
