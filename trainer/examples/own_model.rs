//! Trains a model of your own on two worker processes: `cargo run --release -p evenstep-trainer --example own_model`.

use anyhow::Result;
use evenstep_trainer::{Batch, Model, TensorDataset, Training};
use tch::nn::{self, Module};
use tch::{Device, Kind, Reduction, Tensor};

/// A network that learns the sine.
struct Sine {
    parameters: nn::VarStore,
    layers: nn::Sequential,
}

impl Sine {
    fn new(device: Device) -> Result<Self> {
        let parameters = nn::VarStore::new(device);
        let root = parameters.root();
        let layers = nn::seq()
            .add(nn::linear(&root / "hidden", 1, 32, Default::default()))
            .add_fn(Tensor::tanh)
            .add(nn::linear(&root / "output", 32, 1, Default::default()));
        Ok(Self { parameters, layers })
    }
}

impl Model for Sine {
    fn parameters(&self) -> Vec<Tensor> {
        self.parameters.trainable_variables()
    }

    fn loss_sum(&self, batch: &Batch) -> Tensor {
        self.layers.forward(&batch.inputs).mse_loss(&batch.targets, Reduction::Sum)
    }
}

fn samples() -> Result<TensorDataset> {
    let inputs = Tensor::linspace(-3.0, 3.0, 4096, (Kind::Float, Device::Cpu)).view([-1, 1]);
    let targets = inputs.sin();
    Ok(TensorDataset::new(inputs, targets))
}

fn main() -> Result<()> {
    // Batches come from the predictor (`evenstep-predictor serve`). Without a predictor the run continues
    // with even batches.
    Training::builder(Sine::new, samples)?.workers(2).global_batch(64).epochs(8).learning_rate(0.02).run()?;
    Ok(())
}
