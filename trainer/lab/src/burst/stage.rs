//! A layer on a rank that runs it: forward, backward, step.

use tch::{Kind, Tensor};

use crate::network::{self, Layer};
use evenstep_trainer::model::Sgd;

/// A layer with its optimizer state, on one of the ranks that run it.
#[derive(Debug)]
pub struct Stage {
    layer: Layer,
    optimizer: Sgd,
}

/// The result of a layer's backward pass.
#[derive(Debug)]
pub struct Gradients {
    /// Gradients of all parameters, concatenated in their order.
    pub flat: Tensor,
    /// Gradient of the inputs, if they require one: `[samples, ..]`.
    pub inputs: Option<Tensor>,
}

impl Stage {
    /// Creates a stage with zero velocity.
    pub fn new(layer: Layer, momentum: f64) -> Self {
        let optimizer = Sgd::new(layer.parameters(), momentum);
        Self { layer, optimizer }
    }

    /// Computes the outputs `[samples, ..]` of inputs `[samples, ..]`, and records the graph for the
    /// backward pass.
    pub fn forward(&self, inputs: &Tensor) -> Tensor {
        self.layer.forward(inputs)
    }

    /// Computes the gradients of the parameters from the gradient of the outputs, and the gradient of the
    /// inputs if they require one.
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

    /// Returns the zero gradient of a rank without samples.
    pub fn no_gradient(&self) -> Tensor {
        self.optimizer.velocity().zeros_like()
    }

    /// Applies one optimizer step with the mean gradient over the global batch.
    pub fn step(&mut self, flat: &Tensor, learning_rate: f64) {
        self.optimizer.step(self.layer.parameters(), flat, learning_rate);
    }

    /// Returns the parameters in a fixed order.
    pub fn parameters(&self) -> &[Tensor] {
        self.layer.parameters()
    }
}

/// Returns these samples' part of the mean loss over the global batch, and its gradient with respect to the
/// logits, `[samples, classes]`.
pub fn loss(logits: &Tensor, labels: &Tensor, global_batch: u64) -> (Tensor, Tensor) {
    let logits = logits.detach().set_requires_grad(true);
    let loss = network::loss_sum(&logits, labels) / global_batch as f64;
    let mut gradient = Tensor::run_backward(&[&loss], &[&logits], false, false);
    (loss.detach().to_kind(Kind::Double), gradient.swap_remove(0))
}
