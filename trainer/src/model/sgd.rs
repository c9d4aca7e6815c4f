//! Stochastic gradient descent with momentum.

use tch::{Tensor, no_grad};

use super::network::{kind_of, size_of};

/// Momentum of all runs.
pub const MOMENTUM: f64 = 0.9;

/// SGD with momentum, as in PyTorch: v = mu v + g, w = w - eta v. One flat velocity, which a checkpoint can hold.
///
/// With the learning rate outside the velocity, a change of the learning rate needs no correction of the velocity.
#[derive(Debug)]
pub struct Sgd {
    momentum: f64,
    velocity: Tensor,
}

impl Sgd {
    /// Creates an optimizer with zero velocity for these parameters, which have one element type and device.
    pub fn new(parameters: &[Tensor], momentum: f64) -> Self {
        Self { momentum, velocity: Tensor::zeros([size_of(parameters)], kind_of(parameters)) }
    }

    /// Takes one step of the same parameters along their flat mean gradient.
    pub fn step(&mut self, parameters: &[Tensor], gradient: &Tensor, learning_rate: f64) {
        no_grad(|| {
            let _ = self.velocity.g_mul_scalar_(self.momentum).g_add_(gradient);
            let mut start = 0;
            for parameter in parameters {
                let size = parameter.numel() as i64;
                let change = self.velocity.narrow(0, start, size).view_as(parameter) * learning_rate;
                let _ = parameter.shallow_clone().g_sub_(&change);
                start += size;
            }
        });
    }

    /// Returns the velocity, in the order of the parameters.
    pub fn velocity(&self) -> &Tensor {
        &self.velocity
    }

    /// Returns the velocity, to be filled from a checkpoint.
    pub fn velocity_mut(&mut self) -> &mut Tensor {
        &mut self.velocity
    }
}

#[cfg(test)]
mod tests {
    use tch::nn::OptimizerConfig;
    use tch::{Device, Kind, nn};

    use super::*;

    const ON: (Kind, Device) = (Kind::Double, Device::Cpu);

    /// Two parameters of known values.
    fn parameters() -> Vec<Tensor> {
        vec![Tensor::linspace(-1.0, 1.0, 12, ON).view([4, 3]), Tensor::linspace(0.5, -0.25, 3, ON)]
    }

    fn flat(parameters: &[Tensor]) -> Tensor {
        Tensor::cat(&parameters.iter().map(|parameter| parameter.view(-1)).collect::<Vec<_>>(), 0)
    }

    /// Compares three steps with libtorch's own SGD, on given gradients.
    #[test]
    fn steps_are_those_of_libtorch() {
        let ours = parameters();
        let size = size_of(&ours);
        let mut sgd = Sgd::new(&ours, MOMENTUM);
        let mut store = nn::VarStore::new(Device::Cpu);
        let mut reference = store.root().zeros("w", &[size]);
        store.double();
        no_grad(|| reference.copy_(&flat(&ours)));
        let mut theirs = nn::Sgd { momentum: MOMENTUM, ..Default::default() }.build(&store, 0.1).unwrap();
        for step in 0..3 {
            let gradient = Tensor::arange(size, ON) * 0.01 - 0.03 * f64::from(step);
            sgd.step(&ours, &gradient, 0.1);
            theirs.zero_grad();
            (&reference * &gradient).sum(Kind::Double).backward();
            theirs.step();
        }
        let difference = (flat(&ours) - reference).abs().max().double_value(&[]);
        assert!(difference < 1e-15, "{difference}");
    }
}
