#![doc = include_str!("../README.md")]

pub mod boundary;
pub mod reading;
pub mod source;

pub use boundary::Boundary;
pub use reading::{Gap, Reading};
