//! A layer where it runs: forward, backward, step.

use tch::{Kind, Tensor};

use crate::network::{self, Layer};
use evenstep_trainer::model::{MomentumForm, Sgd};

/// A layer with its velocity, on one of the ranks that run it.
#[derive(Debug)]
pub struct Stage {
    layer: Layer,
    optimizer: Sgd,
}

/// What a layer's backward gives.
#[derive(Debug)]
pub struct Gradients {
    /// Of all its parameters, flat, in their order.
    pub flat: Tensor,
    /// Of its inputs, where somebody wants them: `[samples, ..]`.
    pub inputs: Option<Tensor>,
}

impl Stage {
    /// At rest.
    pub fn new(layer: Layer, momentum: f64) -> Self {
        let optimizer = Sgd::new(layer.parameters(), momentum, MomentumForm::Outside);
        Self { layer, optimizer }
    }

    /// `[samples, ..]` to `[samples, ..]`, with what backward needs.
    pub fn forward(&self, inputs: &Tensor) -> Tensor {
        self.layer.forward(inputs)
    }

    /// Gradients, given those of the outputs. Those of the inputs too, where these require them.
    pub fn backward(&self, inputs: &Tensor, outputs: &Tensor, gradient: &Tensor) -> Gradients {
        let mut of: Vec<Tensor> = self.layer.parameters().iter().map(Tensor::shallow_clone).collect();
        if inputs.requires_grad() {
            of.push(inputs.shallow_clone());
        }
        let mut found = network::gradients(outputs, gradient, &of);
        let inputs = if inputs.requires_grad() { found.pop() } else { None };
        let parts: Vec<Tensor> = found.iter().map(|part| part.reshape([-1])).collect();
        Gradients { flat: Tensor::cat(&parts, 0), inputs }
    }

    /// The gradient of a rank that has none of the samples.
    pub fn no_gradient(&self) -> Tensor {
        self.optimizer.velocity().zeros_like()
    }

    /// One step down the mean gradient over the global batch.
    pub fn step(&mut self, flat: &Tensor, learning_rate: f64) {
        self.optimizer.step(self.layer.parameters(), flat, learning_rate);
    }

    /// Its parameters, in a fixed order.
    pub fn parameters(&self) -> &[Tensor] {
        self.layer.parameters()
    }
}

/// These samples' part of the mean loss over a global batch, and its gradient: of `[samples, classes]`.
pub fn loss(logits: &Tensor, labels: &Tensor, global_batch: u64) -> (Tensor, Tensor) {
    let logits = logits.detach().set_requires_grad(true);
    let loss = network::loss_sum(&logits, labels) / global_batch as f64;
    let mut gradient = Tensor::run_backward(&[&loss], &[&logits], false, false);
    (loss.detach().to_kind(Kind::Double), gradient.swap_remove(0))
}
