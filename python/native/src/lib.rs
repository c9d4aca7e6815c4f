//! The native module `evenstep._native`: what the Python package and Rust programs decide by the same rules.
//!
//! - `plan`: plans, learning rates and their encodings (`evenstep-rules`)
//! - `cut`: the order of an epoch, and the cut of an iteration whose samples differ in cost (`evenstep-rules`)
//! - `claim`: claims on a shared tail (`evenstep-rules`)
//! - `predictor`, `reports`: rank 0's connection to the predictor (`evenstep-client`)
//! - `http`: single requests to a predictor or an agent
//! - `drivers`: readings of this process and its machine (`evenstep-sensors`)
//! - `errors`: exceptions of the package
//!
//! Threads of this module do not hold the interpreter's lock while they talk, parse or read sensors.

mod claim;
mod cut;
mod drivers;
mod errors;
mod http;
mod plan;
mod predictor;
mod reports;

use pyo3::prelude::*;

/// Rules and client of evenstep, shared with its Rust programs.
#[pymodule]
mod _native {
    #[pymodule_export]
    use super::claim::{Counter, LeaveRule, Peer, chunks};
    #[pymodule_export]
    use super::cut::{Cut, Shuffle};
    #[pymodule_export]
    use super::drivers::Sensors;
    #[pymodule_export]
    use super::http::{
        ClientTls, Http, HttpResponse, check_job_id, check_job_options, check_worker_id, parse_servers,
        report_oom,
    };
    #[pymodule_export]
    use super::plan::{Plan, PoolMembership, Rate, Share, Tail, apportion};
    #[pymodule_export]
    use super::predictor::Predictor;
    use super::{Bound, PyModule, PyModuleMethods, PyResult, pyfunction};

    /// Returns the version of the module, which equals the package's.
    #[pyfunction]
    fn version() -> &'static str {
        env!("CARGO_PKG_VERSION")
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("CLAIM", ::evenstep_rules::CLAIM)?;
        module.add("LEAVE", ::evenstep_rules::LEAVE)?;
        module.add("CHUNKS_PER_RANK_MAX", ::evenstep_rules::CHUNKS_PER_WORKER_MAX)?;
        module.add("REPORT_NAMES", super::reports::NAMES)?;
        module.add("DRIVER_NAMES", super::reports::DRIVERS)
    }
}
