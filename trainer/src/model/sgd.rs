//! Stochastic gradient descent with momentum, in its two forms.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use tch::{Tensor, no_grad};

use super::network::{kind_of, size_of};

/// Where the learning rate stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MomentumForm {
    /// PyTorch's: v = mu v + g, w = w - eta v
    #[default]
    Outside,
    /// In the velocity: v = mu v + eta g, w = w - v; the velocity is scaled along when eta changes
    Inside,
}

/// Momentum over one flat velocity that a checkpoint can hold.
///
/// Both forms take the same steps. With the learning rate outside, a changed one needs no correction of the velocity. With
/// it inside, the velocity was filled at the rate of the step before, and is first multiplied by `eta_t / eta_{t-1}`: an
/// allocation's `momentum_buffer_scale`, worked out from the rates that were really taken, as an iteration that nobody
/// answered for has no other.
#[derive(Debug)]
pub struct Sgd {
    form: MomentumForm,
    momentum: f64,
    velocity: Tensor,
    last_rate: Option<f64>,
}

impl Sgd {
    /// At rest, for these parameters, all of one kind on one device.
    pub fn new(parameters: &[Tensor], momentum: f64, form: MomentumForm) -> Self {
        let velocity = Tensor::zeros([size_of(parameters)], kind_of(parameters));
        Self { form, momentum, velocity, last_rate: None }
    }

    /// One step of the same parameters down their flat mean gradient.
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

    /// What the velocity is multiplied by when the learning rate becomes this. At a rate of 0 it lost what it held.
    fn buffer_scale(&self, learning_rate: f64) -> f64 {
        self.last_rate.filter(|&last| last > 0.0).map_or(1.0, |last| learning_rate / last)
    }

    /// The learning rate of the last step.
    pub fn last_rate(&self) -> Option<f64> {
        self.last_rate
    }

    /// Goes on after a step that another process, or a life before, took at this learning rate.
    pub fn set_last_rate(&mut self, rate: Option<f64>) {
        self.last_rate = rate;
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

    const ON: (Kind, Device) = (Kind::Double, Device::Cpu);

    /// Two parameters of known values.
    fn parameters() -> Vec<Tensor> {
        vec![Tensor::linspace(-1.0, 1.0, 12, ON).view([4, 3]), Tensor::linspace(0.5, -0.25, 3, ON)]
    }

    fn flat(parameters: &[Tensor]) -> Tensor {
        Tensor::cat(&parameters.iter().map(|parameter| parameter.view(-1)).collect::<Vec<_>>(), 0)
    }

    /// libtorch's own SGD is the reference: three steps with gradients of our making.
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

    /// On the quadratic `|w|^2 / 2`, whose gradient is `w`, with a learning rate that ramps up, jumps down and pauses.
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
