//! The HTML page: heading, text, notices, key numbers, tables, and the data of charts with the script that draws
//! them.

mod assets;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use self::assets::{POLICY, SCRIPT, STYLE, UPLOT};
use crate::chart::Chart;
use crate::data::Data;
use crate::number::{decimals, fixed, time_unit};
use crate::{Cell, Figure, Report, Section, Table};

/// Maximum number of decimals: the precision of an `f64`.
const MAX_DECIMALS: usize = 17;
const DASH: &str = "–";
/// Number of headings from which on a page has contents.
const CONTENTS_MIN: usize = 3;
/// Significant digits of the largest time of a column.
const TIME_DIGITS: i32 = 3;

impl Report {
    /// Returns the page as one HTML document.
    ///
    /// Control characters that HTML and XML forbid are replaced by U+FFFD.
    pub fn to_html(&self) -> String {
        html(self)
    }
}

fn html(report: &Report) -> String {
    // The contents come after the verdict, before the first heading.
    let first = report
        .sections
        .iter()
        .position(|section| matches!(section, Section::Text { heading, .. } if !heading.is_empty()));
    let page = html! {
        (DOCTYPE)
        html lang="en" data-theme="light" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(*POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (report.title) }
                style { (PreEscaped(STYLE)) }
                script { (PreEscaped(UPLOT)) }
                // Module scripts run after the page has been parsed.
                script type="module" { (PreEscaped(SCRIPT.as_str())) }
            }
            body {
                main {
                    header {
                        h1 { (report.title) }
                        @if !report.subtitle.is_empty() { p.lead { (report.subtitle) } }
                    }
                    noscript { p.notice { "This page draws its charts with JavaScript, which is disabled \
                        in this browser." } }
                    @for place in 0..report.sections.len() {
                        @if first == Some(place) { (contents(&report.sections)) }
                        (part(&report.sections, place))
                    }
                }
            }
        }
    };
    replace_forbidden(page.into_string())
}

/// Links to the headings; nothing for a short page.
fn contents(sections: &[Section]) -> Markup {
    let heading = |(place, section): (usize, &Section)| match section {
        Section::Text { heading, .. } if !heading.is_empty() => Some((place, heading.clone())),
        _ => None,
    };
    let headings: Vec<(usize, String)> = sections.iter().enumerate().filter_map(heading).collect();
    html! {
        @if headings.len() >= CONTENTS_MIN {
            nav.contents aria-label="Contents" {
                ul { @for (place, heading) in &headings { li { a href=(format!("#part-{place}")) { (heading) } } } }
            }
        }
    }
}

/// Returns the name of a table for assistive technology: its title, numbered if earlier tables have the same.
fn label(sections: &[Section], place: usize) -> String {
    let title = |section: &Section| match section {
        Section::Table(table) if table.title.is_empty() => Some("Table".to_owned()),
        Section::Table(table) => Some(table.title.clone()),
        _ => None,
    };
    let own = sections.get(place).and_then(title).unwrap_or_default();
    let before = sections.iter().take(place).filter(|section| title(section).as_ref() == Some(&own)).count();
    if before == 0 { own } else { format!("{own} ({})", before + 1) }
}

fn part(sections: &[Section], place: usize) -> Markup {
    match &sections[place] {
        Section::Verdict(words) => html! { p.verdict { (words) } },
        Section::Text { heading, paragraphs } => html! {
            section.words id=(format!("part-{place}")) {
                @if !heading.is_empty() { h2 { (heading) } }
                @for paragraph in paragraphs { p { (paragraph) } }
            }
        },
        Section::Notice(words) => html! { p.notice role="note" { (words) } },
        Section::Figures(figures) => html! { dl.figures { @for figure in figures { (key_number(figure)) } } },
        Section::Table(rows) => table(rows, &label(sections, place)),
        Section::Charts(charts) => html! { div.charts { @for chart in charts { (figure(chart)) } } },
    }
}

fn figure(chart: &Chart) -> Markup {
    html! {
        figure.chart.card.figure {
            h3 { (chart.title) }
            @if !chart.description.is_empty() { p.how { (chart.description) } }
            @match Data::of(chart) {
                // A data block, which browsers do not execute.
                Some(data) => script type="application/json" { (PreEscaped(json(&data))) },
                None => p.nodata { "no data" },
            }
        }
    }
}

/// Writes JSON that is valid inside HTML and XML: characters that could be markup are escaped.
fn json(data: &Data<'_>) -> String {
    // The data are numbers and strings, so serialization does not fail.
    let text = serde_json::to_string(data).unwrap_or_default();
    text.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

fn key_number(figure: &Figure) -> Markup {
    html! {
        div {
            dt { (figure.label) }
            dd { (figure.value) }
            @if !figure.note.is_empty() { dd.note { (figure.note) } }
        }
    }
}

fn table(table: &Table, label: &str) -> Markup {
    let width = table.rows.iter().map(Vec::len).max().unwrap_or(0).max(table.columns.len());
    let columns: Vec<Column<'_>> = (0..width).map(|place| Column::of(table, place)).collect();
    html! {
        section.card.table {
            @if !table.title.is_empty() { h3 { (table.title) } }
            @if !table.description.is_empty() { p.how { (table.description) } }
            div.scroll tabindex="0" role="region" aria-label=(label) {
                table {
                    thead { tr {
                        @for column in &columns {
                            th scope="col" class=[column.numbers.then_some("number")] {
                                (column.name)
                                @if let Some((_, unit)) = column.time { " (" (unit) ")" }
                            }
                        }
                    } }
                    tbody {
                        @for row in &table.rows {
                            tr { @for (place, column) in columns.iter().enumerate() { (cell(row.get(place), column)) } }
                        }
                        @if table.rows.is_empty() { tr { td.missing colspan=(width.max(1)) { "no data" } } }
                    }
                }
            }
        }
    }
}

/// Common properties of the cells in a column.
struct Column<'a> {
    name: &'a str,
    /// Whether the column holds numbers, so its name is aligned with them.
    numbers: bool,
    /// Factor, unit and digits after the decimal point of times.
    time: Option<(f64, &'static str)>,
    decimals: usize,
}

impl<'a> Column<'a> {
    fn of(table: &'a Table, place: usize) -> Self {
        let cells = || table.rows.iter().filter_map(move |row| row.get(place));
        let times = cells().filter_map(|cell| match cell {
            Cell::Seconds(time) if time.is_finite() => Some(time.abs()),
            _ => None,
        });
        let largest = times.reduce(f64::max);
        let time = largest.map(time_unit);
        Self {
            name: table.columns.get(place).map_or("", String::as_str),
            numbers: cells()
                .any(|cell| matches!(cell, Cell::Number { .. } | Cell::Best { .. } | Cell::Seconds(_))),
            time,
            decimals: largest
                .zip(time)
                .map_or(0, |(largest, (factor, _))| decimals(largest * factor, TIME_DIGITS)),
        }
    }
}

fn cell(cell: Option<&Cell>, column: &Column<'_>) -> Markup {
    match cell {
        Some(Cell::Text(text)) => html! { td { (text) } },
        Some(Cell::Number { value, decimals }) if value.is_finite() => {
            html! { td.number { (fixed(*value, (*decimals).min(MAX_DECIMALS))) } }
        }
        Some(Cell::Best { value, decimals }) if value.is_finite() => {
            html! { td.number { b { (fixed(*value, (*decimals).min(MAX_DECIMALS))) " ★" } } }
        }
        Some(Cell::Seconds(time)) if time.is_finite() => {
            let factor = column.time.map_or(1.0, |(factor, _)| factor);
            html! { td.number { (fixed(time * factor, column.decimals)) } }
        }
        Some(Cell::Number { .. } | Cell::Best { .. } | Cell::Seconds(_) | Cell::Missing) | None => {
            html! { td.missing.number[column.numbers] { (DASH) } }
        }
    }
}

/// Replaces characters that HTML and XML forbid even if escaped.
fn replace_forbidden(page: String) -> String {
    let forbidden = |c: char| matches!(c, '\0'..='\x08' | '\x0b' | '\x0c' | '\x0e'..='\x1f' | '\x7f'..='\u{9f}' | '\u{fffe}' | '\u{ffff}');
    if page.contains(forbidden) { page.replace(forbidden, "\u{fffd}") } else { page }
}
