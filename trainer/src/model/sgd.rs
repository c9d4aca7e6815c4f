//! Stochastic gradient descent with momentum, in its two forms.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use tch::{Tensor, no_grad};

use super::network::{kind_of, size_of};

/// Position of the learning rate in the velocity rule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MomentumForm {
    /// As in PyTorch: v = mu v + g, w = w - eta v
    #[default]
    Outside,
    /// In the velocity: v = mu v + eta g, w = w - v; a changed eta rescales the velocity
    Inside,
}

/// SGD with momentum. One flat velocity, which a checkpoint can hold.
///
/// Both forms take the same steps. With the learning rate outside, a change needs no correction of the
/// velocity. With the learning rate inside, the velocity contains the previous learning rate, so it is first
/// multiplied by `eta_t / eta_{t-1}`. This factor is an allocation's `momentum_buffer_scale`. It is computed
/// from the learning rates of the steps, because an iteration without an allocation has no other source.
#[derive(Debug)]
pub struct Sgd {
    form: MomentumForm,
    momentum: f64,
    velocity: Tensor,
    last_rate: Option<f64>,
}

impl Sgd {
    /// Creates an optimizer with zero velocity for these parameters, which have one element type and device.
    pub fn new(parameters: &[Tensor], momentum: f64, form: MomentumForm) -> Self {
        let velocity = Tensor::zeros([size_of(parameters)], kind_of(parameters));
        Self { form, momentum, velocity, last_rate: None }
    }

    /// Takes one step of the same parameters along their flat mean gradient.
    pub fn step(&mut self, parameters: &[Tensor], gradient: &Tensor, learning_rate: f64) {
        let (kept, taken, moved) = match self.form {
            MomentumForm::Outside => (self.momentum, 1.0, learning_rate),
            MomentumForm::Inside => (self.momentum * self.buffer_scale(learning_rate), learning_rate, 1.0),
        };
        no_grad(|| {
            let _ = self.velocity.g_mul_scalar_(kept).g_add_(&(gradient * taken));
            let mut start = 0;
            for parameter in parameters {
                let size = parameter.numel() as i64;
                let change = self.velocity.narrow(0, start, size).view_as(parameter) * moved;
                let _ = parameter.shallow_clone().g_sub_(&change);
                start += size;
            }
        });
        self.last_rate = Some(learning_rate);
    }

    /// Returns the factor of the velocity for a changed learning rate. If the last rate was 0, the velocity
    /// has no previous values.
    fn buffer_scale(&self, learning_rate: f64) -> f64 {
        self.last_rate.filter(|&last| last > 0.0).map_or(1.0, |last| learning_rate / last)
    }

    /// Returns the learning rate of the last step.
    pub fn last_rate(&self) -> Option<f64> {
        self.last_rate
    }

    /// Sets the learning rate of the last step, taken by another process or before a restart.
    pub fn set_last_rate(&mut self, rate: Option<f64>) {
        self.last_rate = rate;
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
        let mut sgd = Sgd::new(&ours, 0.9, MomentumForm::Outside);
        let mut store = nn::VarStore::new(Device::Cpu);
        let mut reference = store.root().zeros("w", &[size]);
        store.double();
        no_grad(|| reference.copy_(&flat(&ours)));
        let mut theirs = nn::Sgd { momentum: 0.9, ..Default::default() }.build(&store, 0.1).unwrap();
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

    /// The quadratic `|w|^2 / 2`, whose gradient is `w`, with a learning rate that ramps up, drops and is
    /// zero for a time.
    #[test]
    fn both_forms_take_the_same_steps() {
        let rates = (0..40).map(|t: u32| match t {
            0..32 => 0.02 * (1.0 + 3.0 * f64::from(t) / 32.0),
            _ => 0.005,
        });
        let (outside, inside) = (parameters(), parameters());
        let mut forms =
            [MomentumForm::Outside, MomentumForm::Inside].map(|form| Sgd::new(&outside, 0.9, form));
        for rate in rates {
            for (sgd, parameters) in forms.iter_mut().zip([&outside, &inside]) {
                sgd.step(parameters, &flat(parameters), rate);
            }
        }
        let (outside, inside) = (flat(&outside), flat(&inside));
        let apart = (&outside - &inside).abs().max().double_value(&[]);
        assert!(apart < 1e-14, "{apart:e}");
        let moved = (&outside - flat(&parameters())).abs().max().double_value(&[]);
        assert!(moved > 0.1, "{moved}");
    }
}
