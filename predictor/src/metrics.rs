//! All metrics of the predictor, gathered from the rooms that they are counted in; docs/metrics.md says what each means.

use std::sync::{Arc, Weak};

use evenstep_observability::Gather;
use evenstep_observability::metrics::prometheus::process_collector::ProcessCollector;
use evenstep_observability::metrics::{Family, collect};

use crate::book::{Book, Pool};
use crate::http::Meter;

/// What gathers them. A book that is gone is not kept alive by whoever exports.
pub fn gather(book: &Arc<Book>, pool: &Pool, meter: &Meter) -> Gather {
    let (book, pool, meter): (Weak<Book>, _, _) = (Arc::downgrade(book), pool.clone(), meter.clone());
    let process = ProcessCollector::for_self();
    Arc::new(move || {
        let mut families = [pool.families(), meter.families()].concat();
        if let Some(book) = book.upgrade() {
            families.extend(book.families());
            families.extend(book.store().families());
        }
        let mut build = Family::gauge("evenstep_build_info", "What runs.");
        build.say([("version", env!("CARGO_PKG_VERSION"))], 1.0);
        families.extend(build.done());
        collect(&mut families, &process, []);
        families.sort_by(|a, b| a.name().cmp(b.name()));
        // An instrument of labels that never occurred has a name and no series.
        families.retain(|family| !family.get_metric().is_empty());
        families
    })
}
