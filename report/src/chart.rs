//! What a chart is: axes and marks, as data.

/// One chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// What is shown.
    pub title: String,
    /// How to read it: what a point is, where the data come from.
    pub description: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// What is drawn; areas lie under bands, bands under bars and spans, these under lines and rules.
    pub marks: Vec<Mark>,
}

/// One axis: its name and unit. Its range follows from the marks.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Axis {
    /// The quantity.
    pub label: String,
    /// Its unit; empty for none.
    pub unit: String,
    /// Whether zero is shown even if all readings are far from it. Bars and stacked areas always start at zero.
    pub from_zero: bool,
}

impl Axis {
    /// An axis that spans just its readings.
    pub fn new(label: impl Into<String>, unit: impl Into<String>) -> Self {
        Self { label: label.into(), unit: unit.into(), from_zero: false }
    }

    /// The same axis, with zero in its range.
    #[must_use]
    pub fn from_zero(self) -> Self {
        Self { from_zero: true, ..self }
    }
}

/// What is drawn in a chart. Points belong in order of x; they are sorted if they are not. Points without an
/// x that can be drawn, and points whose y is missing, break what is drawn.
///
/// Categories (of bars) and lanes (of spans) are counted from 0 in order of first appearance, so that a line or a rule
/// in the same chart can refer to them by number.
#[derive(Debug, Clone, PartialEq)]
pub enum Mark {
    /// Points joined by straight lines; a point alone between breaks is a dot.
    Line {
        /// Name in the legend.
        name: String,
        /// (x, y); of several points at one x the last counts.
        points: Vec<(f64, f64)>,
        /// For what was predicted, planned or is only there to compare.
        dashed: bool,
    },
    /// Points that no line joins; several may share an x. They are not thinned.
    Points {
        /// Name in the legend.
        name: String,
        /// (x, y)
        points: Vec<(f64, f64)>,
    },
    /// The range between two curves, such as a prediction interval. Give it the name of its line to share the colour.
    Band {
        /// Name in the legend.
        name: String,
        /// (x, lower, upper)
        points: Vec<(f64, f64, f64)>,
    },
    /// Parts of a whole over x, the first at the bottom.
    StackedArea {
        /// The parts. They should share their x: where a layer has no point it takes no room.
        layers: Vec<Layer>,
    },
    /// One value per category; several `Bars` in a chart stand side by side. They are not thinned:
    /// give as many as a reader can tell apart.
    Bars {
        /// Name in the legend.
        name: String,
        /// In reading order.
        bars: Vec<Bar>,
    },
    /// A timeline: intervals of x in named lanes, the first lane at the top.
    Spans {
        /// Name in the legend: what kind of interval these are.
        name: String,
        /// For time in which nothing is done: drawn faint.
        idle: bool,
        /// In any order.
        spans: Vec<Span>,
    },
    /// A straight line across the chart: a limit, a target, an event.
    Rule {
        /// Written beside it.
        name: String,
        /// Where.
        at: RuleAt,
    },
}

/// One part of a [`Mark::StackedArea`].
#[derive(Debug, Clone, PartialEq)]
pub struct Layer {
    /// Name in the legend.
    pub name: String,
    /// (x, thickness); a negative thickness cannot be stacked and counts as missing.
    /// Of several points at one x the last counts.
    pub points: Vec<(f64, f64)>,
}

/// One bar of a [`Mark::Bars`].
#[derive(Debug, Clone, PartialEq)]
pub struct Bar {
    /// Its place on the horizontal axis.
    pub category: String,
    /// Its height; of several values for one category the last counts.
    pub value: f64,
}

/// One interval of a [`Mark::Spans`].
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// Its row.
    pub lane: String,
    /// Start on the x axis.
    pub from: f64,
    /// End on the x axis; an interval that ends before it starts is drawn the right way round.
    pub to: f64,
    /// What it is, shown when a reader points at it; empty for the name of the mark alone.
    pub label: String,
    /// A word written inside, where there is room for it; empty for none.
    pub inside: String,
}

/// Where a [`Mark::Rule`] stands.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RuleAt {
    /// Vertical, at this x.
    X(f64),
    /// Horizontal, at this y.
    Y(f64),
}
