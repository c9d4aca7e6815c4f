//! Compute time of a worker over its batch: `t = s * curve(x)`, where s is the current contention.
//!
//! The form of the curve depends on the device (LB-BSP, arXiv 1806.02508):
//! - On a CPU, time is linear with a fixed cost.
//! - On a GPU, time is flat up to a saturation point, then linear up to the memory cap.
//! - Gradient accumulation turns either form into a staircase.
//! - If sizes were measured one by one, any monotone curve can be drawn through the points.
//!
//! [`CurveLearner`] learns the form while a job runs.

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
pub use knowledge::{Kind, LearnedForm, Uncertain};
pub use learner::CurveLearner;
pub use shape::{Curve, MAX_POINTS, PointsError};
