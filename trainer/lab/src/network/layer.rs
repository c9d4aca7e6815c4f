//! One layer of a network: a function with its parameters, that can be run by itself.

use tch::nn::{self, Module};
use tch::{Tensor, no_grad};

/// A layer, with what belongs to it: activation, pooling, reshaping.
#[derive(Debug)]
pub struct Layer {
    name: String,
    function: nn::Sequential,
    parameters: Vec<Tensor>,
}

impl Layer {
    /// A function and its parameters among all of the network: those whose names begin with its own.
    pub(super) fn new(name: String, function: nn::Sequential, named: &[(String, Tensor)]) -> Self {
        let own = |path: &str| path.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('.'));
        let parameters = named
            .iter()
            .filter(|(path, _)| own(path))
            .map(|(_, parameter)| parameter.shallow_clone())
            .collect();
        Self { name, function, parameters }
    }

    /// What it is called: no other layer of its network is.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its parameters in a fixed order, the same on all ranks.
    pub fn parameters(&self) -> &[Tensor] {
        &self.parameters
    }

    /// How many numbers they are.
    pub fn size(&self) -> i64 {
        self.parameters.iter().map(|parameter| parameter.numel() as i64).sum()
    }

    /// `[samples, ..]` to `[samples, ..]`.
    pub fn forward(&self, inputs: &Tensor) -> Tensor {
        self.function.forward(inputs)
    }

    /// The shape of a sample behind this layer, where it has this one before it: what a rank that does not run the layer must
    /// know to receive its outputs.
    pub fn output_shape(&self, input_shape: &[i64]) -> Vec<i64> {
        let kind =
            self.parameters.first().map_or((tch::Kind::Float, tch::Device::Cpu), |p| (p.kind(), p.device()));
        let one = Tensor::zeros([&[1], input_shape].concat(), kind);
        no_grad(|| self.forward(&one)).size().split_off(1)
    }
}

/// The gradients of a function at `outputs` with respect to each of `of`, given that of the loss with respect to `outputs`.
///
/// tch takes no gradient to begin with, so the product of both is differentiated: exact, as each entry is multiplied by one.
pub fn gradients(outputs: &Tensor, gradient: &Tensor, of: &[Tensor]) -> Vec<Tensor> {
    let product = outputs.reshape([-1]).dot(&gradient.reshape([-1]));
    Tensor::run_backward(&[product], of, false, false)
}
