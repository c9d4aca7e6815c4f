//! One chart as a picture of its own: an SVG file for documents, with text as text.

use maud::{Markup, PreEscaped, html};

use crate::chart::{Chart, RuleAt};
use crate::draw::{self, MAX_LANE_CHARS};
use crate::page::printable;
use crate::scale::{Scale, number, plottable};
use crate::shape::{Plan, Shape};

const MARKS: &str = include_str!("marks.css");
const STYLE: &str = include_str!("picture.css");

const WIDTH: f64 = 760.0;
/// With one row of names in the legend; each further row adds its own height.
const HEIGHT: f64 = 300.0;
const MARGIN: f64 = 22.0;
/// From the top to the middle of the first row of the legend.
const LEGEND_TOP: f64 = 52.0;
const ROW: f64 = 20.0;
/// From the last row of the legend to the plot; the caption of the vertical axis stands between them.
const OVER_PLOT: f64 = 40.0;
/// For the ticks and the caption of the horizontal axis.
const UNDER_PLOT: f64 = 52.0;
const SWATCH: f64 = 28.0;
/// A character at the size of labels, on the wide side: a picture cannot measure its text.
const CHARACTER: f64 = 7.1;

impl Chart {
    /// The chart as a standalone SVG document of fixed size, for documents that show pictures.
    ///
    /// It brings its style, follows the reader's light or dark scheme on a ground of its own, and needs no network, script
    /// or font. Text past the room that it has ends in an ellipsis, and is whole on hover.
    pub fn to_svg(&self) -> String {
        let plan = Plan::new(self);
        let names = legend_places(&plan);
        let rows = names.last().map_or(0.0, |(_, row)| *row);
        let height = HEIGHT + rows * ROW;
        let markup = html! {
            svg xmlns="http://www.w3.org/2000/svg" viewBox={ "0 0 " (WIDTH) " " (height) } width=(WIDTH) height=(height) {
                style { (PreEscaped(MARKS)) (PreEscaped(STYLE)) }
                rect.card x="0.5" y="0.5" width=(WIDTH - 1.0) height=(height - 1.0) rx="10" {}
                text.title x=(MARGIN) y="31" { (fitted(&self.title, characters((WIDTH - 2.0 * MARGIN) / 1.25))) }
                @match &plan.scales {
                    Some((x, y)) => {
                        (legend(&plan, &names))
                        (plotted(self, &plan, x, y, LEGEND_TOP + rows * ROW + OVER_PLOT, height - UNDER_PLOT))
                    },
                    None => text.middle x=(WIDTH / 2.0) y=(height / 2.0) { "no data" },
                }
            }
        };
        printable(markup.into_string())
    }
}

/// Where each name of the legend begins, and in which row.
fn legend_places(plan: &Plan<'_>) -> Vec<(f64, f64)> {
    let (mut left, mut row) = (MARGIN, 0.0);
    let place = |name: &&str| {
        let width = SWATCH + CHARACTER * name.chars().count() as f64;
        if left > MARGIN && left + width > WIDTH - MARGIN {
            (left, row) = (MARGIN, row + 1.0);
        }
        let at = (left, row);
        left += width + 18.0;
        at
    };
    plan.names.list.iter().map(place).collect()
}

fn legend(plan: &Plan<'_>, places: &[(f64, f64)]) -> Markup {
    html! {
        @for (slot, ((left, row), name)) in places.iter().zip(&plan.names.list).enumerate() {
            @let middle = LEGEND_TOP + row * ROW;
            svg x=(px(*left)) y=(middle - 6.0) width="22" height="12" { (draw::swatch(plan, slot)) }
            text.ink x=(px(left + SWATCH)) y=(middle + 4.5) { (fitted(name, characters(WIDTH - MARGIN - SWATCH - left))) }
        }
    }
}

fn plotted(chart: &Chart, plan: &Plan<'_>, x: &Scale, y: &Scale, top: f64, bottom: f64) -> Markup {
    let longest =
        y.ticks.iter().map(|tick| tick.label.chars().count()).max().unwrap_or(0).min(MAX_LANE_CHARS);
    let (left, right) = (MARGIN + CHARACTER * longest as f64 + 10.0, WIDTH - MARGIN);
    let across = |share: f64| px(left + share * (right - left));
    let up = |share: f64| px(bottom - share * (bottom - top));
    let stride = draw::label_stride(plan);
    let room = (right - left) * stride as f64 / x.ticks.len().max(1) as f64;
    html! {
        text x=(MARGIN) y=(top - 14.0) { (fitted(&chart.y.caption(), characters(right - MARGIN))) }
        svg x=(px(left)) y=(top) width=(px(right - left)) height=(bottom - top) { (draw::svg(chart, plan, x, y, 1)) }
        @for tick in &y.ticks {
            text.end x=(px(left - 10.0)) y=(up(y.share(tick.at)) + 4.5) { (fitted(&tick.label, longest)) }
        }
        @for tick in x.ticks.iter().step_by(stride) {
            text.middle x=(across(x.share(tick.at))) y=(bottom + 19.0) { (fitted(&tick.label, characters(room))) }
        }
        text.middle x=(across(0.5)) y=(bottom + 40.0) { (fitted(&chart.x.caption(), characters(right - left))) }
        @for word in draw::words(plan, x, y).filter(|word| word.text.chars().count() < characters(word.room * (right - left))) {
            text.middle.inside x=(across(word.left)) y=(up(word.up) + 4.5) { (word.text) }
        }
        (rule_names(plan, x, y, &across, &up))
        @for (category, height) in draw::bar_values(plan) {
            text.middle.ink x=(across(x.share(category))) y=(up(y.share(height)) + if height < 0.0 { 15.0 } else { -5.0 }) {
                (number(height))
            }
        }
    }
}

/// Names of rules: those of vertical ones under each other, so that near ones can be read.
fn rule_names(
    plan: &Plan<'_>,
    x: &Scale,
    y: &Scale,
    across: &dyn Fn(f64) -> f64,
    up: &dyn Fn(f64) -> f64,
) -> Markup {
    let mut line = 0.0;
    html! {
        @for shape in &plan.shapes {
            @match shape {
                Shape::Rule { name, at: RuleAt::X(at) } if plottable(*at) => {
                    @let share = x.share(*at);
                    @let baseline = (up(1.0) + 12.0 + line * 16.0, { line += 1.0; }).0;
                    text.ink.halo.end[share > 0.6] x=(across(share) + if share > 0.6 { -6.0 } else { 6.0 }) y=(baseline) { (name) }
                },
                Shape::Rule { name, at: RuleAt::Y(at) } if plottable(*at) => {
                    text.ink.halo x=(across(0.0) + 6.0) y=(up(y.share(*at)) - 5.0) { (name) }
                },
                _ => {},
            }
        }
    }
}

fn characters(room: f64) -> usize {
    (room / CHARACTER).max(1.0) as usize
}

/// What is longer ends in an ellipsis; the whole of it is shown on hover, and read to those who listen.
fn fitted(text: &str, most: usize) -> Markup {
    if text.chars().count() <= most {
        return html! { (text) };
    }
    let head: String = text.chars().take(most.saturating_sub(1)).collect();
    html! { (head) "…" title { (text) } }
}

/// Tenths of a pixel are enough, and keep files small.
fn px(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}
