//! One layer of a network: a function with its parameters that can run separately.

use tch::nn::{self, Module};
use tch::{Tensor, no_grad};

/// A layer including its activation, pooling and reshaping.
#[derive(Debug)]
pub struct Layer {
    name: String,
    function: nn::Sequential,
    parameters: Vec<Tensor>,
}

impl Layer {
    /// Creates a layer from a function and its parameters: the parameters of the network whose names
    /// begin with the layer's name.
    pub(super) fn new(name: String, function: nn::Sequential, named: &[(String, Tensor)]) -> Self {
        let own = |path: &str| path.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('.'));
        let parameters = named
            .iter()
            .filter(|(path, _)| own(path))
            .map(|(_, parameter)| parameter.shallow_clone())
            .collect();
        Self { name, function, parameters }
    }

    /// Returns the layer's name, which is unique in its network.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the parameters in a fixed order, which is the same on all ranks.
    pub fn parameters(&self) -> &[Tensor] {
        &self.parameters
    }

    /// Returns the total number of values in the parameters.
    pub fn size(&self) -> i64 {
        self.parameters.iter().map(|parameter| parameter.numel() as i64).sum()
    }

    /// Computes the outputs `[samples, ..]` of inputs `[samples, ..]`.
    pub fn forward(&self, inputs: &Tensor) -> Tensor {
        self.function.forward(inputs)
    }

    /// Returns the shape of an output sample for this shape of an input sample. A rank that does not run
    /// the layer needs it to receive the outputs.
    pub fn output_shape(&self, input_shape: &[i64]) -> Vec<i64> {
        let kind =
            self.parameters.first().map_or((tch::Kind::Float, tch::Device::Cpu), |p| (p.kind(), p.device()));
        let one = Tensor::zeros([&[1], input_shape].concat(), kind);
        no_grad(|| self.forward(&one)).size().split_off(1)
    }
}

/// Computes the gradients of the loss with respect to each tensor in `of`, given its `gradient` with respect
/// to `outputs`.
///
/// tch accepts no initial gradient, so the dot product of `outputs` and `gradient` is differentiated. The
/// result is exact, because each entry is multiplied by 1.
pub fn gradients(outputs: &Tensor, gradient: &Tensor, of: &[Tensor]) -> Vec<Tensor> {
    let product = outputs.reshape([-1]).dot(&gradient.reshape([-1]));
    Tensor::run_backward(&[product], of, false, false)
}
