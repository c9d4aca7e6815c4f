//! The page around the charts: heading, words, notices, figures and tables.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::draw;
use crate::scale::fixed;
use crate::{Cell, Figure, Report, Section, Table};

const STYLE: &str = concat!(include_str!("marks.css"), include_str!("page.css"));
/// An `f64` holds no more.
const MAX_DECIMALS: usize = 17;
const DASH: &str = "–";

pub(crate) fn html(report: &Report) -> String {
    let mut charts = 0;
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (report.title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                main {
                    header {
                        h1 { (report.title) }
                        @if !report.subtitle.is_empty() { p { (report.subtitle) } }
                    }
                    @for section in &report.sections { (part(section, &mut charts)) }
                }
            }
        }
    };
    printable(page.into_string())
}

fn part(section: &Section, charts: &mut usize) -> Markup {
    match section {
        Section::Text { heading, paragraphs } => html! {
            section.words {
                @if !heading.is_empty() { h2 { (heading) } }
                @for paragraph in paragraphs { p { (paragraph) } }
            }
        },
        Section::Notice(words) => html! { p.notice role="note" { (words) } },
        Section::Figures(figures) => html! { dl.figures { @for figure in figures { (large(figure)) } } },
        Section::Table(rows) => table(rows),
        Section::Charts(grid) => html! {
            div.charts {
                @for chart in grid {
                    (draw::figure(chart, { *charts += 1; *charts }))
                }
            }
        },
    }
}

fn large(figure: &Figure) -> Markup {
    html! {
        div {
            dt { (figure.label) }
            dd { (figure.value) }
            @if !figure.note.is_empty() { dd.note { (figure.note) } }
        }
    }
}

fn table(table: &Table) -> Markup {
    let width = table.rows.iter().map(Vec::len).max().unwrap_or(0).max(table.columns.len());
    // A column's name stands over its numbers.
    let is_number =
        |column: usize| table.rows.iter().any(|row| matches!(row.get(column), Some(Cell::Number { .. })));
    html! {
        section.table {
            @if !table.title.is_empty() { h3 { (table.title) } }
            @if !table.description.is_empty() { p { (table.description) } }
            div.scroll {
                table {
                    thead { tr {
                        @for column in 0..width {
                            th scope="col" class=[is_number(column).then_some("number")] {
                                (table.columns.get(column).map_or("", String::as_str))
                            }
                        }
                    } }
                    tbody {
                        @for row in &table.rows {
                            tr { @for column in 0..width { (cell(row.get(column), is_number(column))) } }
                        }
                        @if table.rows.is_empty() { tr { td.missing colspan=(width.max(1)) { "no data" } } }
                    }
                }
            }
        }
    }
}

fn cell(cell: Option<&Cell>, in_numbers: bool) -> Markup {
    match cell {
        Some(Cell::Text(text)) => html! { td { (text) } },
        Some(Cell::Number { value, decimals }) if value.is_finite() => {
            html! { td.number { (fixed(*value, (*decimals).min(MAX_DECIMALS))) } }
        }
        Some(Cell::Number { .. } | Cell::Missing) | None => {
            html! { td.missing.number[in_numbers] { (DASH) } }
        }
    }
}

/// Escaping cannot help characters that HTML and XML forbid in any spelling.
pub(crate) fn printable(page: String) -> String {
    let forbidden = |c: char| matches!(c, '\0'..='\x08' | '\x0b' | '\x0c' | '\x0e'..='\x1f' | '\x7f'..='\u{9f}' | '\u{fffe}' | '\u{ffff}');
    if page.contains(forbidden) { page.replace(forbidden, "\u{fffd}") } else { page }
}
