//! Burst-parallel plans: the number of GPUs for each layer of a model when the global batch cannot grow.
//!
//! - [`planner`]: the exact planner, a pure function
//! - [`error`]: errors of invalid requests and infeasible problems
//! - [`request`], [`response`]: conversion from a request to the planner's problem, and from its plan to the
//!   response
//! - `work`: a limit on the work per request
//! - [`plan()`]: computes the response to a request, for `POST /v1/plan/burst` and the command line
//! - [`command`]: the command `evenstep-predictor plan`

pub mod planner;

pub mod error;

pub mod request;

pub mod response;

mod work;

mod plan;

pub mod command;

pub use error::PlanError;
pub use plan::{plan, relative_speeds};
pub use planner::{COUNTS_MAX, GPUS_MAX, INPUTS_MAX, LAYERS_MAX, US_MAX, VALUES_MAX};
pub use request::BurstRequest;
pub use request::NAME_BYTES_MAX;
pub use response::{BurstPlan, BurstPlanLayer};
