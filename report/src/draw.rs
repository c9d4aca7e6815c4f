//! One chart as markup: a stretched SVG for the marks, HTML laid over it for all that must not stretch.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use maud::{Markup, html};

use crate::chart::{Axis, Chart, RuleAt};
use crate::scale::{Scale, number, plottable};
use crate::shape::{Interval, Plan, Shape};
use crate::thin::{self, BUCKETS, Run};
use crate::tips::{self, colour};

/// The SVG's own width and height; the page stretches it to the place it has.
const SIDE: f64 = 1000.0;
const PLOT_HEIGHT_PX: usize = 240;
const LANE_HEIGHT_PX: usize = 30;
/// Share of a category or lane that its bars or spans fill.
const FILLED: f64 = 0.72;
/// Category names and values are written only where they have room.
const MAX_CATEGORY_LABELS: usize = 24;
const MAX_BAR_LABELS: usize = 16;
/// A page's plot on a small screen, and a character in it: words stand inside spans only where they have room there too.
const NARROWEST_PX: f64 = 600.0;
const CHARACTER_PX: f64 = 7.5;
/// Lane names longer than this end in an ellipsis.
pub(crate) const MAX_LANE_CHARS: usize = 18;

/// `id` tells the charts of a page apart.
pub(crate) fn figure(chart: &Chart, id: usize) -> Markup {
    let plan = Plan::new(chart);
    html! {
        figure.chart {
            figcaption {
                h3 { (chart.title) }
                @if !chart.description.is_empty() { p { (chart.description) } }
            }
            @match &plan.scales {
                Some((x, y)) => (plotted(chart, &plan, x, y, id)),
                None => div.nodata { "no data" },
            }
        }
    }
}

fn plotted(chart: &Chart, plan: &Plan<'_>, x: &Scale, y: &Scale, id: usize) -> Markup {
    let height =
        if plan.lanes.list.is_empty() { PLOT_HEIGHT_PX } else { plan.lanes.list.len() * LANE_HEIGHT_PX + 8 };
    let gutter = y.ticks.iter().map(|tick| tick.label.chars().count()).max().unwrap_or(0).min(MAX_LANE_CHARS);
    let stride = label_stride(plan);
    let has_lanes = !plan.lanes.list.is_empty();
    html! {
        @if plan.names.list.len() > 1 || plan.shapes.len() > 1 { (legend(plan)) }
        div.ycaption { (chart.y.caption()) }
        div.frame style=(format!("--gutter:{gutter}ch;--height:{height}px")) {
            div.plot {
                (svg(chart, plan, x, y, id))
                @for tick in &y.ticks {
                    span.ytick title=[has_lanes.then_some(&tick.label)] style=(format!("bottom:{:.2}%", y.share(tick.at) * 100.0)) {
                        (tick.label)
                    }
                }
                @for tick in x.ticks.iter().step_by(stride) {
                    span.xtick.named[!plan.categories.list.is_empty()] style=(format!(
                        "left:{:.2}%;--room:{:.2}%", x.share(tick.at) * 100.0, 100.0 * stride as f64 / x.ticks.len() as f64
                    )) { (tick.label) }
                }
                (labels(plan, x, y))
                @if !has_lanes { (tips::tips(chart, plan, x)) }
            }
            div.xcaption { (chart.x.caption()) }
        }
    }
}

/// Every how many categories have their names written.
pub(crate) fn label_stride(plan: &Plan<'_>) -> usize {
    plan.categories.list.len().div_ceil(MAX_CATEGORY_LABELS).max(1)
}

fn legend(plan: &Plan<'_>) -> Markup {
    html! {
        ul.legend {
            @for (slot, name) in plan.names.list.iter().enumerate() {
                li {
                    (swatch(plan, slot))
                    (name)
                }
            }
        }
    }
}

/// A line, a bar or both: how the marks of one name look.
pub(crate) fn swatch(plan: &Plan<'_>, slot: usize) -> Markup {
    html! {
        svg viewBox="0 0 22 12" aria-hidden="true" class=(colour(slot)) {
            @for shape in &plan.shapes {
                @match shape {
                    Shape::Band { slot: of, .. } if *of == slot => rect.band width="22" height="12" {},
                    Shape::Line { slot: of, dashed, series } if *of == slot => {
                        @let dots = is_dots(&thin::line(series));
                        path.line.dashed[*dashed].dots[dots] d=(if dots { "M11 6h0" } else { "M1 6H21" }) {}
                    },
                    Shape::Area { slot: of, .. } | Shape::Bars { slot: of, .. } if *of == slot => {
                        rect.fill x="5" width="12" height="12" {}
                    },
                    Shape::Spans { slot: of, idle, .. } if *of == slot => {
                        rect.fill[!idle].band[*idle] x="5" width="12" height="12" {}
                    },
                    _ => {},
                }
            }
        }
    }
}

/// Points that no line joins show as dots.
fn is_dots(runs: &[Run<f64>]) -> bool {
    runs.iter().all(|run| run.len() == 1)
}

/// The marks alone, stretched to whatever they stand in.
pub(crate) fn svg(chart: &Chart, plan: &Plan<'_>, x: &Scale, y: &Scale, id: usize) -> Markup {
    let canvas = Canvas { x, y };
    let groups = plan.shapes.iter().filter(|shape| matches!(shape, Shape::Bars { .. })).count();
    let mut group = 0;
    html! {
        svg role="img" aria-labelledby={ "chart-" (id) "-desc" } viewBox={ "0 0 " (SIDE) " " (SIDE) } preserveAspectRatio="none" {
            desc id={ "chart-" (id) "-desc" } { (chart.title) ". " (chart.description) }
            @if plan.lanes.list.is_empty() {
                @for tick in &y.ticks { path.grid.zero[tick.at == 0.0] d={ "M0 " (coordinate(canvas.top(tick.at))) "H" (SIDE) } {} }
            } @else {
                @for tick in &x.ticks { path.grid d={ "M" (coordinate(canvas.left(tick.at))) " 0V" (SIDE) } {} }
            }
            @for shape in &plan.shapes {
                @match shape {
                    Shape::Area { slot, top, .. } => path.area.(colour(*slot)) d=(canvas.area(&thin::line(top))) {},
                    Shape::Band { slot, series } => path.band.(colour(*slot)) d=(canvas.band(&thin::band(series))) {},
                    Shape::Line { slot, series, dashed } => {
                        @let runs = thin::line(series);
                        path.line.dashed[*dashed].dots[is_dots(&runs)].(colour(*slot)) d=(canvas.line(&runs)) {}
                    },
                    Shape::Bars { slot, heights } => {
                        @let part = (group, groups, { group += 1; });
                        path.fill.(colour(*slot)) d=(canvas.bars(heights, part.0, part.1)) {}
                    },
                    Shape::Spans { slot, idle, spans } => g.idle[*idle] { (canvas.spans(plan.names.list[*slot], *slot, spans, &chart.x)) },
                    Shape::Rule { at: RuleAt::X(at), .. } if plottable(*at) => {
                        path.rule d={ "M" (coordinate(canvas.left(*at))) " 0V" (SIDE) } {}
                    },
                    Shape::Rule { at: RuleAt::Y(at), .. } if plottable(*at) => {
                        path.rule d={ "M0 " (coordinate(canvas.top(*at))) "H" (SIDE) } {}
                    },
                    Shape::Rule { .. } => {},
                }
            }
        }
    }
}

/// Words inside the plot: names of rules, and the values of bars while there are few.
fn labels(plan: &Plan<'_>, x: &Scale, y: &Scale) -> Markup {
    html! {
        @for shape in &plan.shapes {
            @if let Shape::Rule { name, at } = shape {
                @match at {
                    RuleAt::X(at) if plottable(*at) => {
                        span.rulename.west[x.share(*at) > 0.6] style=(format!("left:{:.2}%;top:0", x.share(*at) * 100.0)) { (name) }
                    },
                    RuleAt::Y(at) if plottable(*at) => {
                        span.rulename.west style=(format!("left:100%;bottom:{:.2}%", y.share(*at) * 100.0)) { (name) }
                    },
                    _ => {},
                }
            }
        }
        @for (category, height) in bar_values(plan) {
            span.value.under[height < 0.0] style=(format!(
                "left:{:.2}%;bottom:{:.2}%", x.share(category) * 100.0, y.share(height) * 100.0
            )) { (number(height)) }
        }
        @for word in words(plan, x, y).filter(|word| word.room * NARROWEST_PX >= CHARACTER_PX * (word.text.chars().count() as f64 + 1.0)) {
            span.inside style=(format!("left:{:.2}%;bottom:{:.2}%", word.left * 100.0, word.up * 100.0)) { (word.text) }
        }
    }
}

/// A word inside a span: its middle, and the room it has, as shares of the plot.
pub(crate) struct Word<'a> {
    pub text: &'a str,
    pub left: f64,
    pub up: f64,
    pub room: f64,
}

/// The words inside spans.
pub(crate) fn words<'a>(plan: &'a Plan<'_>, x: &Scale, y: &Scale) -> impl Iterator<Item = Word<'a>> {
    let spans = plan.shapes.iter().filter_map(|shape| match shape {
        Shape::Spans { spans, .. } => Some(spans),
        _ => None,
    });
    spans.flatten().filter(|span| !span.span.inside.is_empty()).map(|span| {
        let (from, to) = (x.share(span.from), x.share(span.to));
        let text = span.span.inside.as_str();
        Word { text, left: (from + to) / 2.0, up: y.share(span.lane as f64), room: to - from }
    })
}

/// The middle on the horizontal axis and the height of each bar; none where there are too many for words.
pub(crate) fn bar_values(plan: &Plan<'_>) -> Vec<(f64, f64)> {
    let bars: Vec<_> = plan
        .shapes
        .iter()
        .filter_map(|shape| match shape {
            Shape::Bars { heights, .. } => Some(heights),
            _ => None,
        })
        .collect();
    if bars.iter().map(|heights| heights.len()).sum::<usize>() > MAX_BAR_LABELS {
        return Vec::new();
    }
    let middle = |category: usize, group: usize| {
        let (from, to) = bar_sides(category, group, bars.len());
        (from + to) / 2.0
    };
    let values = bars.iter().enumerate().flat_map(|(group, heights)| {
        heights.iter().map(move |(category, height)| (*category, group, *height))
    });
    values
        .filter(|(.., height)| plottable(*height))
        .map(|(category, group, height)| (middle(category, group), height))
        .collect()
}

/// The x at which a bar starts and ends.
fn bar_sides(category: usize, group: usize, groups: usize) -> (f64, f64) {
    let width = FILLED / groups as f64;
    let from = category as f64 - FILLED / 2.0 + group as f64 * width;
    // A sliver of background keeps neighbours apart.
    (from + width * 0.03, from + width * 0.97)
}

fn coordinate(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

struct Canvas<'a> {
    x: &'a Scale,
    y: &'a Scale,
}

impl Canvas<'_> {
    fn left(&self, x: f64) -> f64 {
        self.x.share(x) * SIDE
    }

    fn top(&self, y: f64) -> f64 {
        (1.0 - self.y.share(y)) * SIDE
    }

    fn move_to(&self, path: &mut String, command: char, (x, y): (f64, f64)) {
        let (left, top) = (coordinate(self.left(x)), coordinate(self.top(y)));
        // Writing to a string cannot fail.
        let _ = write!(path, "{command}{left} {top}");
    }

    fn joined(&self, path: &mut String, points: impl IntoIterator<Item = (f64, f64)>) {
        for (index, point) in points.into_iter().enumerate() {
            self.move_to(path, if index == 0 { 'M' } else { 'L' }, point);
        }
    }

    fn line(&self, runs: &[Run<f64>]) -> String {
        let mut path = String::new();
        for run in runs {
            self.joined(&mut path, run.iter().copied());
            if run.len() == 1 {
                // A stroke without length draws its round cap: a dot.
                path.push_str("h0");
            }
        }
        path
    }

    fn area(&self, runs: &[Run<f64>]) -> String {
        let mut path = String::new();
        for run in runs.iter().map(|run| self.with_width(run)) {
            if let [first, .., last] = run.as_slice() {
                let ends = [(first.0, 0.0), (last.0, 0.0)];
                self.joined(&mut path, ends[..1].iter().chain(&run).chain(&ends[1..]).copied());
                path.push('Z');
            }
        }
        path
    }

    fn band(&self, runs: &[Run<(f64, f64)>]) -> String {
        let mut path = String::new();
        for run in runs.iter().map(|run| self.with_width(run)) {
            let upper = run.iter().map(|(x, (_, high))| (*x, *high));
            let lower = run.iter().rev().map(|(x, (low, _))| (*x, *low));
            self.joined(&mut path, upper.chain(lower));
            path.push('Z');
        }
        path
    }

    /// What is filled cannot be seen without a width: a reading alone gets a sliver.
    fn with_width<T: Copy>(&self, run: &Run<T>) -> Run<T> {
        let sliver = (self.x.high - self.x.low) * 0.002;
        match run.as_slice() {
            [(x, only)] => vec![(x - sliver, *only), (x + sliver, *only)],
            _ => run.clone(),
        }
    }

    fn bars(&self, heights: &BTreeMap<usize, f64>, group: usize, groups: usize) -> String {
        let mut path = String::new();
        for (category, height) in heights.iter().filter(|(_, height)| plottable(**height)) {
            let (from, to) = bar_sides(*category, group, groups);
            self.joined(&mut path, [(from, 0.0), (from, *height), (to, *height), (to, 0.0)]);
            path.push('Z');
        }
        path
    }

    /// Spans that start and end in the same pixel of a lane are drawn as one, once there are more than pixels.
    fn spans(&self, name: &str, slot: usize, spans: &[Interval<'_>], axis: &Axis) -> Markup {
        let column = |x: f64| (self.x.share(x) * BUCKETS as f64) as usize;
        let mut sorted: Vec<&Interval<'_>> = spans.iter().collect();
        sorted.sort_by_key(|span| (span.lane, column(span.from)));
        let long = sorted.len() > BUCKETS;
        let drawn = sorted.chunk_by(|a, b| {
            long && a.lane == b.lane && column(a.from) == column(b.from) && column(a.to) == column(b.to)
        });
        html! {
            g.span.(colour(slot)) {
                @for same in drawn {
                    @let (from, to) = same.iter().fold((f64::MAX, f64::MIN), |(from, to), span| (from.min(span.from), to.max(span.to)));
                    @let lane = same[0].lane as f64;
                    @let (left, right) = (self.left(from), self.left(to));
                    @let (top, bottom) = (self.top(lane - FILLED / 2.0), self.top(lane + FILLED / 2.0));
                    rect x=(coordinate(left)) width=(coordinate(right - left)) y=(coordinate(top)) height=(coordinate(bottom - top)) {
                        title {
                            (same[0].span.lane) ": " (name) " "
                            @if same.len() > 1 { "(" (same.len()) " intervals) " }
                            @else if !same[0].span.label.is_empty() { (same[0].span.label) " " }
                            (number(from)) " … " (number(to)) " " (axis.unit)
                        }
                    }
                }
            }
        }
    }
}
