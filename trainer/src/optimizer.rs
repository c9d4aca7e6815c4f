//! Stochastic gradient descent with momentum, in PyTorch's form.

use tch::{Tensor, no_grad};

use crate::model::Model;

/// `v = momentum * v + g`, `w = w - learning_rate * v`, over one flat velocity that a checkpoint can hold.
///
/// The learning rate stays outside the velocity, so a changed one needs no correction of it: an allocation's
/// `momentum_buffer_scale` is for optimizers that keep it inside.
#[derive(Debug)]
pub struct Sgd {
    momentum: f64,
    velocity: Tensor,
}

impl Sgd {
    /// At rest.
    pub fn new(model: &Model, momentum: f64) -> Self {
        Self { momentum, velocity: Tensor::zeros([model.size()], (model.kind(), model.device())) }
    }

    /// One step down the flat mean gradient.
    pub fn step(&mut self, model: &Model, gradient: &Tensor, learning_rate: f64) {
        no_grad(|| {
            let _ = self.velocity.g_mul_scalar_(self.momentum).g_add_(gradient);
            let mut start = 0;
            for parameter in model.parameters() {
                let size = parameter.numel() as i64;
                let change = self.velocity.narrow(0, start, size).view_as(parameter) * learning_rate;
                let _ = parameter.shallow_clone().g_sub_(&change);
                start += size;
            }
        });
    }

    /// The velocity, in the order of the parameters.
    pub fn velocity(&self) -> &Tensor {
        &self.velocity
    }

    /// The velocity, to be filled from a checkpoint.
    pub fn velocity_mut(&mut self) -> &mut Tensor {
        &mut self.velocity
    }
}

#[cfg(test)]
mod tests {
    use tch::nn::OptimizerConfig;
    use tch::{Device, Kind, nn};

    use super::*;
    use crate::model::Architecture;

    /// libtorch's own SGD is the reference: three steps with gradients of our making.
    #[test]
    fn steps_are_those_of_libtorch() {
        let model =
            Model::new(&Architecture::Mlp { hidden: vec![] }, [1, 2, 2], 3, 5, Kind::Double, Device::Cpu);
        let mut ours = Sgd::new(&model, 0.9);
        let mut store = nn::VarStore::new(Device::Cpu);
        let mut reference = store.root().zeros("w", &[model.size()]);
        store.double();
        let flat: Vec<Tensor> = model.parameters().iter().map(|p| p.detach().view(-1)).collect();
        no_grad(|| reference.copy_(&Tensor::cat(&flat, 0)));
        let mut theirs = nn::Sgd { momentum: 0.9, ..Default::default() }.build(&store, 0.1).unwrap();
        for step in 0..3 {
            let gradient =
                Tensor::arange(model.size(), (Kind::Double, Device::Cpu)) * 0.01 - 0.03 * f64::from(step);
            ours.step(&model, &gradient, 0.1);
            theirs.zero_grad();
            (&reference * &gradient).sum(Kind::Double).backward();
            theirs.step();
        }
        let flat: Vec<Tensor> = model.parameters().iter().map(|p| p.detach().view(-1)).collect();
        let difference = (Tensor::cat(&flat, 0) - reference).abs().max().double_value(&[]);
        assert!(difference < 1e-15, "{difference}");
    }
}
