//! The built-in task: a network, its data, and the optimizer step.

use anyhow::Result;
use clap::{Args, ValueEnum};
use evenstep_trainer::model;
use evenstep_trainer::progress::Output;
use evenstep_trainer::training::{InvalidArgs, StepOptions};
use tch::{Device, Kind};

use crate::dataset::{DataSet, TeacherTask};
use crate::network::{Architecture, Network};

/// A built-in network, its data set, and the options of the optimizer step.
#[derive(Debug, Clone, Args)]
pub struct TaskArgs {
    /// The network and its data set.
    #[command(flatten)]
    pub network: NetworkArgs,
    /// Options of the optimizer step.
    #[command(flatten)]
    pub step: StepOptions,
}

/// A built-in network and data set.
#[derive(Debug, Clone, Args)]
pub struct NetworkArgs {
    /// Network to train
    #[arg(long, value_enum, default_value_t = ModelKind::Mlp, env = "EVENSTEP_MODEL")]
    pub model: ModelKind,
    /// Widths of the hidden layers of the MLP, comma-separated
    #[arg(long, value_delimiter = ',', default_value = "128,64", value_parser = clap::value_parser!(i64).range(1..=65_536))]
    pub hidden: Vec<i64>,
    /// Number of training samples of the generated task
    #[arg(long, default_value_t = 16_384, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub samples: u64,
    /// Element type of parameters and gradients
    #[arg(long, value_enum, default_value_t = Dtype::Float32)]
    pub dtype: Dtype,
}

/// The built-in networks.
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

impl NetworkArgs {
    /// Returns the network's architecture.
    pub fn architecture(&self) -> Architecture {
        match self.model {
            ModelKind::Mlp => Architecture::Mlp { hidden: self.hidden.clone() },
            ModelKind::Cnn => Architecture::Cnn,
        }
    }

    /// Returns the network's name and hidden widths, for people.
    pub fn model_name(&self) -> String {
        match self.architecture() {
            Architecture::Mlp { hidden } => {
                let widths: Vec<String> = hidden.iter().map(ToString::to_string).collect();
                format!("mlp {}", widths.join("-"))
            }
            Architecture::Cnn => "cnn".to_owned(),
        }
    }

    /// Generates the data set from `seed`.
    pub fn dataset(&self, seed: u64) -> DataSet {
        TeacherTask { samples: self.samples, seed }.generate()
    }
}

impl TaskArgs {
    /// Checks the options of the optimizer step.
    ///
    /// # Errors
    /// Returns the first violated rule with the offending value.
    pub fn check(&self) -> Result<(), InvalidArgs> {
        self.step.wrong().map_or(Ok(()), |wrong| Err(InvalidArgs(wrong)))
    }

    /// Returns the network's name and hidden widths, for people.
    pub fn model_name(&self) -> String {
        self.network.model_name()
    }

    /// Generates the data set.
    pub fn dataset(&self) -> DataSet {
        self.network.dataset(self.step.seed)
    }

    /// Returns the network with its initial parameters.
    pub fn network(&self, data: &DataSet, device: Device) -> Network {
        let (architecture, kind) = (self.network.architecture(), self.network.dtype.kind());
        Network::new(&architecture, data.shape, data.classes, self.step.seed, kind, device)
    }

    /// Returns the device on which a rank computes, and makes it the calling thread's device. Rank 0 prints why it is
    /// the CPU, if CUDA was to be used if available.
    ///
    /// # Errors
    /// Fails if CUDA is required but not available.
    pub fn device_of(&self, rank: usize) -> Result<Device> {
        let chosen = model::choose(self.step.device, rank)?;
        if let Some(why) = chosen.fallback.filter(|_| rank == 0) {
            Output::new("rank 0").say(&why);
        }
        Ok(chosen.device)
    }
}

impl Dtype {
    /// Returns the size of one value in units of four bytes, the unit of burst-parallel plans.
    pub fn words(self) -> u64 {
        match self {
            Self::Float32 => 1,
            Self::Float64 => 2,
        }
    }

    /// Returns the element type in libtorch.
    pub fn kind(self) -> Kind {
        match self {
            Self::Float32 => Kind::Float,
            Self::Float64 => Kind::Double,
        }
    }
}
