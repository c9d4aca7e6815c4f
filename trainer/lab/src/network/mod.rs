//! The built-in networks, small enough to train on a CPU in seconds.

mod layer;

use evenstep_trainer::{Batch, Model};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tch::nn;
use tch::{Device, Kind, Reduction, Tensor};

pub use layer::{Layer, gradients};

/// The architecture of a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Architecture {
    /// Fully connected layers with these widths between input and output.
    Mlp {
        /// Widths of the hidden layers.
        hidden: Vec<i64>,
    },
    /// Two convolutions with pooling, then one hidden layer of 64.
    Cnn,
}

/// A network with its parameters.
#[derive(Debug)]
pub struct Network {
    store: nn::VarStore,
    layers: Vec<Layer>,
    parameters: Vec<Tensor>,
}

impl Network {
    /// Creates a network for samples of this shape, with random parameters drawn from `seed`.
    pub fn new(
        architecture: &Architecture,
        shape: [i64; 3],
        classes: i64,
        seed: u64,
        kind: Kind,
        device: Device,
    ) -> Self {
        // Drawn on the CPU as 32-bit floats and then moved, so that all kinds and devices start with
        // the same values.
        let mut store = nn::VarStore::new(Device::Cpu);
        let layers = match architecture {
            Architecture::Mlp { hidden } => mlp(&store.root(), shape.iter().product(), hidden, classes),
            Architecture::Cnn => cnn(&store.root(), shape, classes),
        };
        let named = in_order(&store);
        draw(&named, seed);
        store.set_kind(kind);
        store.set_device(device);
        let layers = layers.into_iter().map(|(name, function)| Layer::new(name, function, &named)).collect();
        let parameters = named.into_iter().map(|(_, parameter)| parameter).collect();
        Self { store, layers, parameters }
    }

    /// Returns the layers in the order in which they run. Their composition is the whole network.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// Returns only the layers, so that the caller can run them separately and free the memory of unused
    /// ones.
    pub fn into_layers(self) -> Vec<Layer> {
        self.layers
    }

    /// Sets all gradients to zero, in place.
    pub fn zero_grad(&mut self) {
        for parameter in &mut self.parameters {
            parameter.zero_grad();
        }
    }

    /// Returns the device of the parameters.
    pub fn device(&self) -> Device {
        self.store.device()
    }

    /// Returns the element type of the parameters.
    pub fn kind(&self) -> Kind {
        self.parameters.first().map_or(Kind::Float, Tensor::kind)
    }
}

impl Model for Network {
    fn parameters(&self) -> Vec<Tensor> {
        self.parameters.iter().map(Tensor::shallow_clone).collect()
    }

    fn loss_sum(&self, batch: &Batch) -> Tensor {
        let first = batch.inputs.shallow_clone();
        let logits = self.layers.iter().fold(first, |held, layer| layer.forward(&held));
        loss_sum(&logits, &batch.targets)
    }
}

/// Returns the variables sorted by name, because the store keeps them in a hash map.
fn in_order(store: &nn::VarStore) -> Vec<(String, Tensor)> {
    let mut named: Vec<(String, Tensor)> = store.variables().into_iter().collect();
    named.sort_by(|a, b| a.0.cmp(&b.0));
    named
}

/// Draws every weight and bias uniformly between -1 / sqrt(n) and 1 / sqrt(n), for a layer with n inputs.
/// Uses its own generator, because libtorch's is shared by the whole process.
fn draw(named: &[(String, Tensor)], seed: u64) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    for (name, parameter) in named {
        let layer = name.rsplit_once('.').map_or("", |(layer, _)| layer);
        let weight = named.iter().find(|(other, _)| *other == format!("{layer}.weight"));
        let inputs = weight.map_or(1, |(_, weight)| weight.numel() as i64 / weight.size()[0]);
        let bound = 1.0 / (inputs as f32).sqrt();
        let values: Vec<f32> = (0..parameter.numel()).map(|_| random.random_range(-bound..bound)).collect();
        let drawn = Tensor::from_slice(&values).view_as(parameter);
        tch::no_grad(|| parameter.shallow_clone().copy_(&drawn));
    }
}

fn mlp(root: &nn::Path<'_>, features: i64, hidden: &[i64], classes: i64) -> Vec<(String, nn::Sequential)> {
    let mut layers = Vec::new();
    let mut width = features;
    for (number, &next) in hidden.iter().enumerate() {
        let name = format!("hidden{number}");
        let linear = nn::linear(root / &name, width, next, Default::default());
        layers.push((name, nn::seq().add(linear).add_fn(Tensor::relu)));
        width = next;
    }
    layers.push(output(root, width, classes));
    layers
}

fn cnn(
    root: &nn::Path<'_>,
    [channels, height, width]: [i64; 3],
    classes: i64,
) -> Vec<(String, nn::Sequential)> {
    let padded = nn::ConvConfig { padding: 1, ..Default::default() };
    let flat = 32 * (height / 4) * (width / 4);
    let conv0 = nn::seq()
        .add_fn(move |x| x.view([-1, channels, height, width]))
        .add(nn::conv2d(root / "conv0", channels, 16, 3, padded))
        .add_fn(|x| x.relu().max_pool2d_default(2));
    let conv1 = nn::seq()
        .add(nn::conv2d(root / "conv1", 16, 32, 3, padded))
        .add_fn(move |x| x.relu().max_pool2d_default(2).view([-1, flat]));
    let hidden =
        nn::seq().add(nn::linear(root / "hidden", flat, 64, Default::default())).add_fn(Tensor::relu);
    let mut layers =
        vec![("conv0".to_owned(), conv0), ("conv1".to_owned(), conv1), ("hidden".to_owned(), hidden)];
    layers.push(output(root, 64, classes));
    layers
}

fn output(root: &nn::Path<'_>, width: i64, classes: i64) -> (String, nn::Sequential) {
    ("output".to_owned(), nn::seq().add(nn::linear(root / "output", width, classes, Default::default())))
}

/// Returns the cross-entropy, summed over the samples, of logits `[samples, classes]` and labels `[samples]`.
pub fn loss_sum(logits: &Tensor, labels: &Tensor) -> Tensor {
    logits.cross_entropy_loss::<Tensor>(labels, None, Reduction::Sum, -100, 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenstep_trainer::model::evaluate;

    use crate::dataset::TeacherTask;

    #[test]
    fn both_architectures_start_near_the_loss_of_guessing_and_depend_on_the_seed() {
        let data = TeacherTask { samples: 64, seed: 1 }.generate();
        let batch = data.train.head(64, Kind::Double, Device::Cpu);
        for architecture in [Architecture::Mlp { hidden: vec![16, 8] }, Architecture::Cnn] {
            let draw =
                |seed| Network::new(&architecture, data.shape, data.classes, seed, Kind::Double, Device::Cpu);
            let loss = evaluate(&draw(1), &batch);
            assert!((loss - 10_f64.ln()).abs() < 0.5, "{architecture:?}: {loss}");
            assert_eq!(loss, evaluate(&draw(1), &batch));
            assert_ne!(loss, evaluate(&draw(2), &batch));
        }
    }
}
