//! The threads that read sensors, and synthetic readings.

pub mod demo;
pub(crate) mod gpu;
pub(crate) mod readers;
pub mod thread;
