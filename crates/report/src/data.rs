//! Data of a chart as the script of the page reads them: numbered names, sorted and thinned series, stacked
//! layers.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use crate::chart::{self, Chart, Layer, Mark, RuleAt, Span};
use crate::number::{Position, Rounded, Value, plottable};
use crate::series::{self, BUCKETS, Run, Series, ordered};

/// A chart with at least one mark to draw.
#[derive(Debug, Serialize)]
pub(crate) struct Data<'a> {
    x: Axis<'a>,
    y: Axis<'a>,
    names: Vec<&'a str>,
    categories: Vec<&'a str>,
    lanes: Vec<&'a str>,
    /// Values of x, stored once for all series that share them.
    xs: Vec<Vec<Position>>,
    /// Marks in drawing order: the largest areas first.
    marks: Vec<MarkData<'a>>,
}

#[derive(Debug, Serialize)]
struct Axis<'a> {
    label: &'a str,
    unit: &'a str,
    zero: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<Value>,
}

impl<'a> Axis<'a> {
    fn of(axis: &'a chart::Axis) -> Self {
        Self { label: &axis.label, unit: &axis.unit, zero: axis.from_zero, end: axis.up_to.map(Rounded) }
    }
}

/// A mark. `name` is an index into [`Data::names`], and `x` an index into [`Data::xs`].
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum MarkData<'a> {
    Line {
        name: usize,
        dashed: bool,
        x: usize,
        y: Vec<Option<Value>>,
    },
    Points {
        name: usize,
        x: usize,
        y: Vec<Value>,
    },
    Band {
        name: usize,
        x: usize,
        lower: Vec<Option<Value>>,
        upper: Vec<Option<Value>>,
    },
    /// `y` is the upper edge of the layer, `own` its thickness.
    Area {
        name: usize,
        x: usize,
        y: Vec<Option<Value>>,
        own: Vec<Option<Value>>,
    },
    /// Category and value of each bar.
    Bars {
        name: usize,
        bars: Vec<(usize, Value)>,
    },
    /// Lane, start, end, label and inner text of each span.
    Spans {
        name: usize,
        idle: bool,
        spans: Vec<(usize, Position, Position, String, &'a str)>,
    },
    Rule {
        label: &'a str,
        axis: &'static str,
        at: Position,
    },
}

/// Distinct names in order of first appearance. The index of a name determines its colour, category or lane.
#[derive(Debug, Default)]
struct Names<'a> {
    list: Vec<&'a str>,
    numbers: HashMap<&'a str, usize>,
}

impl<'a> Names<'a> {
    fn number(&mut self, name: &'a str) -> usize {
        *self.numbers.entry(name).or_insert_with(|| {
            self.list.push(name);
            self.list.len() - 1
        })
    }
}

impl<'a> Data<'a> {
    /// Converts a chart; `None` if it has no value. A rule is a limit, not a value.
    pub fn of(chart: &'a Chart) -> Option<Self> {
        let mut data = Self {
            x: Axis::of(&chart.x),
            y: Axis::of(&chart.y),
            names: Vec::new(),
            categories: Vec::new(),
            lanes: Vec::new(),
            xs: Vec::new(),
            marks: Vec::new(),
        };
        let (mut names, mut categories, mut lanes) = (Names::default(), Names::default(), Names::default());
        for mark in &chart.marks {
            match mark {
                Mark::Line { name, points, dashed } => {
                    let readings = points.iter().map(|(x, y)| (*x, plottable(*y).then_some(*y)));
                    data.line(names.number(name), *dashed, &series::line(&ordered(readings)));
                }
                Mark::Points { name, points } => {
                    let drawn = points.iter().filter(|(x, y)| plottable(*x) && plottable(*y));
                    data.points(names.number(name), drawn.copied().collect());
                }
                Mark::Band { name, points } => {
                    let range =
                        |a: f64, b: f64| (plottable(a) && plottable(b)).then_some((a.min(b), a.max(b)));
                    let ranges = ordered(points.iter().map(|(x, a, b)| (*x, range(*a, *b))));
                    data.band(names.number(name), &series::band(&ranges));
                }
                Mark::StackedArea { layers } => {
                    for (layer, top, thickness) in stacked(layers) {
                        data.area(names.number(layer), &series::line(&top), &thickness);
                    }
                }
                Mark::Bars { name, bars } => {
                    let heights: BTreeMap<usize, f64> =
                        bars.iter().map(|bar| (categories.number(&bar.category), bar.value)).collect();
                    data.bars(names.number(name), heights);
                }
                Mark::Spans { name, idle, spans } => {
                    let of_lanes = spans.iter().map(|span| (lanes.number(&span.lane), span)).collect();
                    data.spans(names.number(name), *idle, of_lanes);
                }
                Mark::Rule { name, at } => data.rule(name, *at),
            }
        }
        data.marks.iter().any(|mark| !matches!(mark, MarkData::Rule { .. })).then(|| {
            // The topmost edge of a stack is drawn first. Each lower layer then covers all but the strip of
            // the layer above it.
            data.marks.sort_by_key(|mark| match mark {
                MarkData::Area { name, .. } => (0, usize::MAX - name),
                MarkData::Band { .. } => (1, 0),
                MarkData::Bars { .. } => (2, 0),
                MarkData::Spans { .. } => (3, 0),
                MarkData::Line { .. } | MarkData::Points { .. } => (4, 0),
                MarkData::Rule { .. } => (5, 0),
            });
            (data.names, data.categories, data.lanes) = (names.list, categories.list, lanes.list);
            data
        })
    }

    fn line(&mut self, name: usize, dashed: bool, runs: &[Run<f64>]) {
        let isolated = !runs.is_empty() && runs.iter().all(|run| run.len() == 1);
        if isolated {
            return self.points(name, runs.concat());
        }
        let (x, y) = columns(runs);
        if !x.is_empty() {
            let y = y.into_iter().map(|y| y.map(Rounded)).collect();
            let x = self.x(x);
            self.marks.push(MarkData::Line { name, dashed, x, y });
        }
    }

    fn points(&mut self, name: usize, mut points: Vec<(f64, f64)>) {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        if !points.is_empty() {
            let y = points.iter().map(|(_, y)| Rounded(*y)).collect();
            let x = self.x(points.iter().map(|(x, _)| *x));
            self.marks.push(MarkData::Points { name, x, y });
        }
    }

    fn band(&mut self, name: usize, runs: &[Run<(f64, f64)>]) {
        let (x, ranges) = columns(runs);
        if !x.is_empty() {
            let end =
                |of: fn((f64, f64)) -> f64| ranges.iter().map(|range| range.map(of).map(Rounded)).collect();
            let (lower, upper) = (end(|range| range.0), end(|range| range.1));
            let x = self.x(x);
            self.marks.push(MarkData::Band { name, x, lower, upper });
        }
    }

    fn area(&mut self, name: usize, runs: &[Run<f64>], thickness: &Series<f64>) {
        let (x, y) = columns(runs);
        if !x.is_empty() {
            let own = x.iter().map(|x| at(thickness, *x).map(Rounded)).collect();
            let y = y.into_iter().map(|y| y.map(Rounded)).collect();
            let x = self.x(x);
            self.y.zero = true;
            self.marks.push(MarkData::Area { name, x, y, own });
        }
    }

    fn bars(&mut self, name: usize, heights: BTreeMap<usize, f64>) {
        let drawn = heights.into_iter().filter(|(_, height)| plottable(*height));
        let bars: Vec<_> = drawn.map(|(category, height)| (category, Rounded(height))).collect();
        if !bars.is_empty() {
            self.y.zero = true;
            self.marks.push(MarkData::Bars { name, bars });
        }
    }

    /// Adds spans. If there are more spans than pixels, spans that start and end in the same pixel of a lane
    /// are merged.
    fn spans(&mut self, name: usize, idle: bool, mut spans: Vec<(usize, &'a Span)>) {
        spans.retain(|(_, span)| plottable(span.from) && plottable(span.to));
        let ends = |span: &Span| (span.from.min(span.to), span.from.max(span.to));
        let low = spans.iter().fold(f64::MAX, |low, (_, span)| low.min(ends(span).0));
        let high = spans.iter().fold(f64::MIN, |high, (_, span)| high.max(ends(span).1));
        let column = |x: f64| ((x - low) / (high - low) * BUCKETS as f64) as usize;
        spans.sort_by_key(|(lane, span)| (*lane, column(ends(span).0)));
        let long = spans.len() > BUCKETS;
        let pixels = |span: &Span| (column(ends(span).0), column(ends(span).1));
        let drawn = spans.chunk_by(|a, b| long && a.0 == b.0 && pixels(a.1) == pixels(b.1));
        let spans: Vec<_> = drawn
            .map(|same| {
                let (lane, first) = same[0];
                let from = same.iter().fold(f64::MAX, |from, (_, span)| from.min(ends(span).0));
                let to = same.iter().fold(f64::MIN, |to, (_, span)| to.max(ends(span).1));
                let (label, inside) = match same.len() {
                    1 => (first.label.clone(), first.inside.as_str()),
                    several => (format!("{several} intervals"), ""),
                };
                (lane, Rounded(from), Rounded(to), label, inside)
            })
            .collect();
        if !spans.is_empty() {
            self.marks.push(MarkData::Spans { name, idle, spans });
        }
    }

    fn rule(&mut self, label: &'a str, at: RuleAt) {
        let (axis, at) = match at {
            RuleAt::X(x) => ("x", x),
            RuleAt::Y(y) => ("y", y),
        };
        if plottable(at) {
            self.marks.push(MarkData::Rule { label, axis, at: Rounded(at) });
        }
    }

    /// Returns the index of these values of x, and adds them if they are new.
    fn x(&mut self, x: impl IntoIterator<Item = f64>) -> usize {
        let x: Vec<Position> = x.into_iter().map(Rounded).collect();
        self.xs.iter().position(|known| *known == x).unwrap_or_else(|| {
            self.xs.push(x);
            self.xs.len() - 1
        })
    }
}

/// Converts runs to columns of distinct x. A `None` between two runs separates them.
fn columns<T: Copy>(runs: &[Run<T>]) -> (Vec<f64>, Vec<Option<T>>) {
    let (mut xs, mut readings): (Vec<f64>, Vec<Option<T>>) = (Vec::new(), Vec::new());
    for run in runs {
        if let (Some(last), Some((next, _))) = (xs.last().copied(), run.first()) {
            let between = last / 2.0 + next / 2.0;
            if last < between && between < *next {
                xs.push(between);
                readings.push(None);
            }
        }
        for (x, reading) in run {
            if xs.last() == Some(x) {
                xs.pop();
                readings.pop();
            }
            xs.push(*x);
            readings.push(Some(*reading));
        }
    }
    (xs, readings)
}

/// Returns the value at exactly this x.
fn at<T: Copy>(series: &Series<T>, x: f64) -> Option<T> {
    let after = series.partition_point(|(at, _)| *at <= x);
    series[..after].last().filter(|(at, _)| *at == x).and_then(|(_, reading)| *reading)
}

/// Returns the name, the upper edge and the thickness of each layer.
fn stacked(layers: &[Layer]) -> Vec<(&str, Series<f64>, Series<f64>)> {
    let parts: Vec<(&str, Series<f64>)> = layers
        .iter()
        .map(|layer| {
            let present = |y: f64| (plottable(y) && y >= 0.0).then_some(y);
            let points = layer.points.iter().filter(|(x, _)| plottable(*x));
            // Adding 0 turns -0 into 0. Otherwise the search by total order would treat them as different x.
            (layer.name.as_str(), ordered(points.map(|(x, y)| (*x + 0.0, present(*y)))))
        })
        .collect();
    let mut xs: Vec<f64> = parts.iter().flat_map(|(_, series)| series.iter().map(|(x, _)| *x)).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    let mut below: Vec<Option<f64>> = vec![None; xs.len()];
    parts
        .into_iter()
        .map(|(name, series)| {
            for (edge, x) in below.iter_mut().zip(&xs) {
                if let Some(own) = at(&series, *x) {
                    *edge = Some(edge.unwrap_or(0.0) + own).filter(|sum| plottable(*sum));
                }
            }
            (name, xs.iter().copied().zip(below.iter().copied()).collect(), series)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_stack_and_a_missing_one_takes_no_room() {
        let layer = |name: &str, points: &[(f64, f64)]| Layer { name: name.into(), points: points.to_vec() };
        let layers = [
            layer("a", &[(0.0, 1.0), (1.0, 1.0), (2.0, f64::NAN)]),
            layer("b", &[(0.0, 2.0), (2.0, 2.0)]),
            layer("c", &[(0.0, -1.0), (3.0, f64::NAN)]),
        ];
        let tops: Vec<Series<f64>> = stacked(&layers).into_iter().map(|(_, top, _)| top).collect();
        assert_eq!(tops[0], [(0.0, Some(1.0)), (1.0, Some(1.0)), (2.0, None), (3.0, None)]);
        assert_eq!(tops[1], [(0.0, Some(3.0)), (1.0, Some(1.0)), (2.0, Some(2.0)), (3.0, None)]);
        assert_eq!(tops[2], tops[1]);
    }

    #[test]
    fn runs_are_kept_apart_and_places_are_distinct() {
        let runs = [vec![(0.0, 1.0), (1.0, 2.0), (1.0, 3.0)], vec![(2.0, 4.0)]];
        let (x, y) = columns(&runs);
        assert_eq!((x, y), (vec![0.0, 1.0, 1.5, 2.0], vec![Some(1.0), Some(3.0), None, Some(4.0)]));
    }
}
