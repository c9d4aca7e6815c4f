#![doc = include_str!("../README.md")]

pub mod checkpoint;
pub mod claims;
pub mod collective;
pub mod data;
pub mod elastic;
pub mod launch;
pub mod model;
pub mod plan;
pub mod progress;
pub mod step;
pub mod training;

pub use data::{Batch, Dataset, TensorDataset};
pub use model::Model;
pub use plan::Policy;
pub use training::{Options, Training};
