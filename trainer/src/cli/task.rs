//! What is trained, whoever shares it out: network, data, step, device.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, ValueEnum};
use tch::{Device, Kind};

use crate::data::{DataError, Dataset, TeacherTask};
use crate::device;
use crate::model::{Architecture, Model};

/// What is trained.
#[derive(Debug, Clone, Args)]
pub struct TaskArgs {
    /// The network
    #[arg(long, value_enum, default_value_t = ModelKind::Mlp, env = "EVENSTEP_MODEL")]
    pub model: ModelKind,
    /// Widths of the hidden layers of the mlp
    #[arg(long, value_delimiter = ',', default_value = "128,64", value_parser = clap::value_parser!(i64).range(1..=65_536))]
    pub hidden: Vec<i64>,
    /// A folder with MNIST, Fashion-MNIST or CIFAR-10 files [default: a generated teacher task]
    #[arg(long, env = "EVENSTEP_DATA")]
    pub data: Option<PathBuf>,
    /// Samples of the generated task
    #[arg(long, default_value_t = 16_384, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub samples: u64,
    /// Learning rate
    #[arg(long, default_value_t = 0.05)]
    pub lr: f64,
    /// Momentum
    #[arg(long, default_value_t = 0.9)]
    pub momentum: f64,
    /// Decides the network's first parameters, the generated task and the order of samples
    #[arg(long, default_value_t = 1, env = "EVENSTEP_SEED")]
    pub seed: u64,
    /// Element type of parameters and gradients
    #[arg(long, value_enum, default_value_t = Dtype::Float32)]
    pub dtype: Dtype,
    /// Where to compute
    #[arg(long, value_enum, default_value_t = DeviceChoice::Auto, env = "EVENSTEP_DEVICE")]
    pub device: DeviceChoice,
}

/// The network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ModelKind {
    /// Fully connected.
    Mlp,
    /// Two convolutions.
    Cnn,
}

/// Element types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Dtype {
    /// 32-bit floats.
    Float32,
    /// 64-bit floats.
    Float64,
}

/// Devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DeviceChoice {
    /// CUDA when present.
    Auto,
    /// The CPU.
    Cpu,
    /// CUDA, or an error.
    Cuda,
}

impl TaskArgs {
    /// The rule for the step that is broken, with the value.
    pub fn wrong(&self) -> Option<String> {
        if !(self.lr.is_finite() && self.lr >= 0.0) {
            return Some(format!("--lr {} must be a finite number of at least 0", self.lr));
        }
        let momentum = self.momentum;
        (!(0.0..1.0).contains(&momentum))
            .then(|| format!("--momentum {momentum} must be at least 0 and below 1"))
    }

    /// The network's architecture.
    pub fn architecture(&self) -> Architecture {
        match self.model {
            ModelKind::Mlp => Architecture::Mlp { hidden: self.hidden.clone() },
            ModelKind::Cnn => Architecture::Cnn,
        }
    }

    /// The network in words.
    pub fn model_name(&self) -> String {
        match self.architecture() {
            Architecture::Mlp { hidden } => {
                let widths: Vec<String> = hidden.iter().map(ToString::to_string).collect();
                format!("mlp {}", widths.join("-"))
            }
            Architecture::Cnn => "cnn".to_owned(),
        }
    }

    /// What is trained on.
    ///
    /// # Errors
    /// The folder holds nothing that can be used.
    pub fn dataset(&self) -> Result<Dataset, DataError> {
        match &self.data {
            Some(folder) => Dataset::open(folder),
            None => Ok(TeacherTask { samples: self.samples, seed: self.seed }.generate()),
        }
    }

    /// The network at its first parameters.
    pub fn network(&self, data: &Dataset, device: Device) -> Model {
        Model::new(&self.architecture(), data.shape, data.classes, self.seed, self.dtype.kind(), device)
    }

    /// Where a rank computes.
    ///
    /// # Errors
    /// CUDA is wanted and not there.
    pub fn device_of(&self, rank: usize) -> Result<Device> {
        device::choose(self.device, rank)
    }
}

impl Dtype {
    /// Its name and how far rounding may carry a gradient from that of one process, relative to the largest entry.
    pub fn tolerance(self) -> (&'static str, f64) {
        match self {
            Self::Float32 => ("float32", 1e-5),
            Self::Float64 => ("float64", 1e-12),
        }
    }

    /// Values of four bytes, as plans count, that one of its values is.
    pub fn words(self) -> u64 {
        match self {
            Self::Float32 => 1,
            Self::Float64 => 2,
        }
    }

    /// As libtorch calls it.
    pub fn kind(self) -> Kind {
        match self {
            Self::Float32 => Kind::Float,
            Self::Float64 => Kind::Double,
        }
    }
}
