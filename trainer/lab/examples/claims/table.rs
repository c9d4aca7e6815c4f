//! The results as a text table.

use crate::measure::Figures;

/// The meaning of the columns.
pub const DEFINITIONS: &str = "\
`calm`     each worker claims every 20 ms on average, at random times.
`busy`     the same, while a thread computes on every core, as in training.
`at once`  every worker claims again as soon as it has the response: claims/s is the throughput of the store
           with this number of workers on this machine's cores.
`store`    CPU time per claim of the process that hosts the store, in the situation `at once`: a store with a
           separate core processes 1 / (this time) claims per second.";

const WIDTH: usize = 10;

/// Returns the header of the table.
pub fn head() -> String {
    let above = ["", "calm", "", "busy", "", "at once", "", "", ""];
    let names =
        ["workers", "p50 ms", "p99 ms", "p50 ms", "p99 ms", "p50 ms", "p99 ms", "claims/s", "store ms"];
    format!("{}\n{}", line(above.map(str::to_owned)), line(names.map(str::to_owned)))
}

/// Returns the row for one number of workers, with the situations `calm`, `busy` and `at once`.
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
