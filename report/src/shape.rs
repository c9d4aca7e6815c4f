//! A chart's marks made ready to draw: numbered names, series in order, layers stacked.

use std::collections::{BTreeMap, HashMap};

use crate::chart::{Chart, Layer, Mark, RuleAt, Span};
use crate::scale::{Extent, Scale, plottable};
use crate::thin::{Series, ordered};

/// Distinct names in order of first appearance; the place of a name is its colour, category or lane.
#[derive(Debug, Default)]
pub(crate) struct Names<'a> {
    pub list: Vec<&'a str>,
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

/// A mark, ready to draw. `slot` numbers its name among those of the chart.
#[derive(Debug)]
pub(crate) enum Shape<'a> {
    Line {
        slot: usize,
        series: Series<f64>,
        dashed: bool,
    },
    Band {
        slot: usize,
        series: Series<(f64, f64)>,
    },
    /// `top` is the layer's upper edge; its own thickness is kept for the reader.
    Area {
        slot: usize,
        top: Series<f64>,
        thickness: Series<f64>,
    },
    Bars {
        slot: usize,
        heights: BTreeMap<usize, f64>,
    },
    Spans {
        slot: usize,
        idle: bool,
        spans: Vec<Interval<'a>>,
    },
    Rule {
        name: &'a str,
        at: RuleAt,
    },
}

/// A span with its lane's number, the right way round.
#[derive(Debug)]
pub(crate) struct Interval<'a> {
    pub lane: usize,
    pub from: f64,
    pub to: f64,
    pub span: &'a Span,
}

/// All that is known before anything is drawn.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    /// In drawing order: what covers most comes first.
    pub shapes: Vec<Shape<'a>>,
    pub names: Names<'a>,
    pub categories: Names<'a>,
    pub lanes: Names<'a>,
    /// None where there is no reading at all.
    pub scales: Option<(Scale, Scale)>,
}

impl<'a> Plan<'a> {
    pub fn new(chart: &'a Chart) -> Self {
        let (mut names, mut categories, mut lanes) = (Names::default(), Names::default(), Names::default());
        let mut shapes = Vec::new();
        for mark in &chart.marks {
            match mark {
                Mark::Line { name, points, dashed } => shapes.push(Shape::Line {
                    slot: names.number(name),
                    series: ordered(points.iter().map(|(x, y)| (*x, plottable(*y).then_some(*y)))),
                    dashed: *dashed,
                }),
                Mark::Band { name, points } => shapes.push(Shape::Band {
                    slot: names.number(name),
                    series: ordered(points.iter().map(|(x, a, b)| {
                        (*x, (plottable(*a) && plottable(*b)).then_some((a.min(*b), a.max(*b))))
                    })),
                }),
                Mark::StackedArea { layers } => shapes.extend(stacked(layers, &mut names)),
                Mark::Bars { name, bars } => {
                    let slot = names.number(name);
                    let heights =
                        bars.iter().map(|bar| (categories.number(&bar.category), bar.value)).collect();
                    shapes.push(Shape::Bars { slot, heights });
                }
                Mark::Spans { name, idle, spans } => {
                    let slot = names.number(name);
                    let spans = spans
                        .iter()
                        .map(|span| (lanes.number(&span.lane), span))
                        .filter(|(_, span)| plottable(span.from) && plottable(span.to))
                        .map(|(lane, span)| Interval {
                            lane,
                            from: span.from.min(span.to),
                            to: span.from.max(span.to),
                            span,
                        })
                        .collect();
                    shapes.push(Shape::Spans { slot, idle: *idle, spans });
                }
                Mark::Rule { name, at } => shapes.push(Shape::Rule { name, at: *at }),
            }
        }
        // The topmost edge of a stack first: each lower layer then covers all but the strip of its neighbour above.
        shapes.sort_by_key(|shape| match shape {
            Shape::Area { slot, .. } => (0, usize::MAX - slot),
            Shape::Band { .. } => (1, 0),
            Shape::Bars { .. } => (2, 0),
            Shape::Spans { .. } => (3, 0),
            Shape::Line { .. } => (4, 0),
            Shape::Rule { .. } => (5, 0),
        });
        let scales = scales(chart, &shapes, &categories, &lanes);
        Self { shapes, names, categories, lanes, scales }
    }
}

fn scales(
    chart: &Chart,
    shapes: &[Shape<'_>],
    categories: &Names<'_>,
    lanes: &Names<'_>,
) -> Option<(Scale, Scale)> {
    let (mut xs, mut ys) = (Extent::default(), Extent::default());
    let mut from_zero = chart.y.from_zero;
    for shape in shapes {
        match shape {
            Shape::Line { series, .. } => series.iter().for_each(|(x, y)| {
                xs.add(*x);
                ys.add(y.unwrap_or(f64::NAN));
            }),
            Shape::Band { series, .. } => series.iter().for_each(|(x, range)| {
                xs.add(*x);
                let (low, high) = range.unwrap_or((f64::NAN, f64::NAN));
                ys.add(low);
                ys.add(high);
            }),
            Shape::Area { top, .. } => {
                from_zero = true;
                top.iter().for_each(|(x, y)| {
                    xs.add(*x);
                    ys.add(y.unwrap_or(f64::NAN));
                });
            }
            Shape::Bars { heights, .. } => {
                from_zero = true;
                heights.iter().for_each(|(category, height)| {
                    xs.add(*category as f64);
                    ys.add(*height);
                });
            }
            Shape::Spans { spans, .. } => spans.iter().for_each(|span| {
                xs.add(span.from);
                xs.add(span.to);
                ys.add(span.lane as f64);
            }),
            Shape::Rule { .. } => {}
        }
    }
    // A rule says where a limit is, not that anything was read: alone it makes no chart.
    if xs.range().is_none() || ys.range().is_none() {
        return None;
    }
    for shape in shapes {
        match shape {
            Shape::Rule { at: RuleAt::X(x), .. } => xs.add(*x),
            Shape::Rule { at: RuleAt::Y(y), .. } => ys.add(*y),
            _ => {}
        }
    }
    if chart.x.from_zero {
        xs.add(0.0);
    }
    if from_zero {
        ys.add(0.0);
    }
    let x =
        if categories.list.is_empty() { Scale::exact(xs.range()?) } else { Scale::names(&categories.list) };
    let y = if lanes.list.is_empty() {
        Scale::rounded(ys.range()?)
    } else {
        Scale::names(&lanes.list).reversed()
    };
    Some((x, y))
}

fn stacked<'a>(layers: &'a [Layer], names: &mut Names<'a>) -> Vec<Shape<'a>> {
    let parts: Vec<(usize, Series<f64>)> = layers
        .iter()
        .map(|layer| {
            let present = |y: f64| (plottable(y) && y >= 0.0).then_some(y);
            let points = layer.points.iter().filter(|(x, _)| plottable(*x));
            // Adding 0 turns -0 into 0, which would be another x to a search by total order.
            (names.number(&layer.name), ordered(points.map(|(x, y)| (*x + 0.0, present(*y)))))
        })
        .collect();
    let mut xs: Vec<f64> = parts.iter().flat_map(|(_, series)| series.iter().map(|(x, _)| *x)).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    let mut below: Vec<Option<f64>> = vec![None; xs.len()];
    parts
        .into_iter()
        .map(|(slot, series)| {
            for (edge, x) in below.iter_mut().zip(&xs) {
                let after = series.partition_point(|(at, _)| at <= x);
                let own = series[..after].last().filter(|(at, _)| at == x).and_then(|(_, y)| *y);
                if let Some(own) = own {
                    *edge = Some(edge.unwrap_or(0.0) + own).filter(|sum| plottable(*sum));
                }
            }
            Shape::Area {
                slot,
                top: xs.iter().copied().zip(below.iter().copied()).collect(),
                thickness: series,
            }
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
        let mut names = Names::default();
        let tops: Vec<Series<f64>> = stacked(&layers, &mut names)
            .into_iter()
            .filter_map(|shape| if let Shape::Area { top, .. } = shape { Some(top) } else { None })
            .collect();
        assert_eq!(tops[0], [(0.0, Some(1.0)), (1.0, Some(1.0)), (2.0, None), (3.0, None)]);
        assert_eq!(tops[1], [(0.0, Some(3.0)), (1.0, Some(1.0)), (2.0, Some(2.0)), (3.0, None)]);
        assert_eq!(tops[2], tops[1]);
    }
}
