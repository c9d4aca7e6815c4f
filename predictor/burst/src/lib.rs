//! Burst-parallel plans: how many GPUs each layer of a model gets when the global batch cannot grow.
//!
//! - [`planner`]: the exact planner, pure
//! - [`error`]: why there is no plan
//! - [`request`], [`response`]: from a request to the planner's problem, and from its plan to the response
//! - `work`: a bound on the time that a request may take
//! - [`plan()`]: the response to a request, for `POST /v1/plan/burst` and the command line
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
pub use request::BurstRequest;
pub use response::{BurstPlan, BurstPlanLayer};
