#![doc = include_str!("../README.md")]

pub mod data;
pub mod model;
pub mod plan;
pub mod collective;
pub mod claims;
pub mod checkpoint;
pub mod progress;
pub mod training;
pub mod step;
pub mod elastic;
pub mod launch;

pub use data::{Batch, Dataset, TensorDataset};
pub use model::Model;
pub use plan::Policy;
pub use training::{Options, Training};
