//! The figures as text.

use crate::measure::Figures;

/// What the columns mean.
pub const DEFINITIONS: &str = "\
calm     each worker claims every 20 ms on average, at random times
busy     the same, while a thread computes on every core, as training does
at once  every worker claims again as soon as its claim is answered: claims/s is what the store takes
         beside so many workers on this machine's cores
store    CPU time of the process that hosts the store for each claim, when all claim at once: where the
         store has a core of its own it takes one over this a second";

const WIDTH: usize = 10;

/// The names of the columns.
pub fn head() -> String {
    let above = ["", "calm", "", "busy", "", "at once", "", "", ""];
    let names =
        ["workers", "p50 ms", "p99 ms", "p50 ms", "p99 ms", "p50 ms", "p99 ms", "claims/s", "store ms"];
    format!("{}\n{}", line(above.map(str::to_owned)), line(names.map(str::to_owned)))
}

/// The figures of one number of workers: calm, busy, at once.
pub fn row(workers: u32, figures: &[Figures]) -> String {
    let times = figures.iter().flat_map(|figures| [figures.claim_ms_p50, figures.claim_ms_p99]);
    let mut cells = vec![workers.to_string()];
    cells.extend(times.map(|time_ms| format!("{time_ms:.3}")));
    if let Some(at_once) = figures.last() {
        cells.push(format!("{:.0}", at_once.claims_per_s));
        cells.extend(at_once.store_cpu_ms.map(|time_ms| format!("{time_ms:.4}")));
    }
    line(cells)
}

fn line(cells: impl IntoIterator<Item = String>) -> String {
    cells.into_iter().map(|cell| format!("{cell:>WIDTH$}")).collect()
}
