//! What a reader sees on pointing at a place of a chart: the readings there, exact, not as thinned for drawing.

use maud::{Markup, html};

use crate::chart::Chart;
use crate::scale::{Scale, number, plottable};
use crate::shape::{Plan, Shape};

/// Places of one chart that show their readings: a long series offers one reading in each of so many columns.
pub const MAX_TIPS: usize = 60;

/// A place: the x whose readings are shown, and the strip of the plot that shows them.
#[derive(Debug, PartialEq)]
struct Place {
    x: f64,
    from: f64,
    to: f64,
}

pub(crate) fn tips(chart: &Chart, plan: &Plan<'_>, x: &Scale) -> Markup {
    html! {
        @for place in places(plan, x) {
            @let rows = rows(plan, place.x);
            @if !rows.is_empty() {
                div.strip style=(format!("left:{:.2}%;width:{:.2}%", place.from * 100.0, (place.to - place.from) * 100.0)) {
                    i style=(format!("left:{:.2}%", within(&place, x) * 100.0)) {}
                    div.tip.west[x.share(place.x) > 0.5] {
                        b { (heading(chart, plan, place.x)) }
                        @for (slot, reading) in rows {
                            span { i.swatch.(colour(slot)) {} (plan.names.list[slot]) " " b { (reading) } }
                        }
                    }
                }
            }
        }
    }
}

pub(crate) fn colour(slot: usize) -> String {
    format!("c{}", slot % 8)
}

fn within(place: &Place, x: &Scale) -> f64 {
    let width = place.to - place.from;
    if width > 0.0 { ((x.share(place.x) - place.from) / width).clamp(0.0, 1.0) } else { 0.5 }
}

fn heading(chart: &Chart, plan: &Plan<'_>, x: f64) -> String {
    match plan.categories.list.get(x.round() as usize) {
        Some(category) => (*category).to_owned(),
        None => format!("{} {} {}", chart.x.label, number(x), chart.x.unit).trim().to_owned(),
    }
}

/// One x for each column that has any, and the plot shared out between neighbours.
fn places(plan: &Plan<'_>, scale: &Scale) -> Vec<Place> {
    let mut xs: Vec<f64> = Vec::new();
    for shape in &plan.shapes {
        match shape {
            Shape::Line { series, .. } => xs.extend(series.iter().map(|(x, _)| x)),
            Shape::Band { series, .. } => xs.extend(series.iter().map(|(x, _)| x)),
            Shape::Area { thickness, .. } => xs.extend(thickness.iter().map(|(x, _)| x)),
            Shape::Bars { heights, .. } => xs.extend(heights.keys().map(|category| *category as f64)),
            Shape::Spans { .. } | Shape::Rule { .. } => {}
        }
    }
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    if xs.len() > MAX_TIPS {
        let column = |x: f64| ((scale.share(x) * MAX_TIPS as f64) as usize).min(MAX_TIPS - 1);
        xs = xs.chunk_by(|a, b| column(*a) == column(*b)).map(|part| part[part.len() / 2]).collect();
    }
    let edges: Vec<f64> =
        xs.windows(2).map(|pair| (scale.share(pair[0]) + scale.share(pair[1])) / 2.0).collect();
    xs.iter()
        .enumerate()
        .map(|(index, x)| Place {
            x: *x,
            from: if index == 0 { 0.0 } else { edges[index - 1] },
            to: edges.get(index).copied().unwrap_or(1.0),
        })
        .collect()
}

/// The reading of each series at exactly this x, in the order of the legend, a value before its range.
fn rows(plan: &Plan<'_>, x: f64) -> Vec<(usize, String)> {
    let mut rows: Vec<(usize, String)> = plan
        .shapes
        .iter()
        // Lines are drawn after bands, and read before them.
        .rev()
        .filter_map(|shape| match shape {
            Shape::Line { slot, series, .. } => at(series, x).map(|y| (*slot, number(y))),
            Shape::Area { slot, thickness, .. } => at(thickness, x).map(|y| (*slot, number(y))),
            Shape::Band { slot, series } => {
                at(series, x).map(|(low, high)| (*slot, format!("{} … {}", number(low), number(high))))
            }
            Shape::Bars { slot, heights } => heights
                .get(&(x as usize))
                .filter(|height| x.fract() == 0.0 && plottable(**height))
                .map(|height| (*slot, number(*height))),
            Shape::Spans { .. } | Shape::Rule { .. } => None,
        })
        .collect();
    rows.sort_by_key(|(slot, _)| *slot);
    rows
}

fn at<T: Copy>(series: &[(f64, Option<T>)], x: f64) -> Option<T> {
    let after = series.partition_point(|(at, _)| *at <= x);
    series[..after].last().filter(|(at, _)| *at == x).and_then(|(_, reading)| *reading)
}
