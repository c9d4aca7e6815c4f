//! How a worker's compute time grows with its batch: `t = s * curve(x)`, where s is the contention of the moment.
//!
//! On a CPU time is linear with a fixed cost; on a GPU it is flat up to a saturation point, then linear up to the
//! memory cap (LB-BSP, arXiv 1806.02508); gradient accumulation makes a staircase of either; and where sizes were
//! measured one by one any monotone form can be drawn through the points. [`CurveLearner`] learns the form while a
//! job runs.

mod contention;
mod form;
mod inverse;
mod isotonic;
mod knowledge;
mod learner;
mod posterior;
mod shape;

#[cfg(test)]
mod tests;

pub use inverse::largest;
pub use knowledge::{Kind, Knowledge};
pub use learner::CurveLearner;
pub use shape::{BadPoints, Curve, MAX_POINTS};
