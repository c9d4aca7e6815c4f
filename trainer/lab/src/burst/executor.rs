//! One rank's part of burst-parallel training.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use evenstep_c10d::Group;
use evenstep_rules::gate::Kind;
use tch::{Device, Tensor};

use super::exchange::{cross, sum};
use super::plan::BurstPlan;
use super::redistribution::{Layout, Redistribution};
use super::stage::{Stage, loss};
use super::watch::{Phase, PhaseInterval, Watch};
use crate::background::Observer;
use crate::dataset::Split;
use crate::network::Network;

/// The layers of a network that this rank runs, and its groups.
#[derive(Debug)]
pub struct Executor {
    layer_states: Vec<LayerState>,
    /// Positions in the batch of this rank's samples at the first layer, and at the last.
    ends: [Vec<i64>; 2],
    global_batch: u64,
    kind: tch::Kind,
    device: Device,
    /// The group of all ranks, which moves activations.
    world: Group,
    /// Groups of the first n ranks, by n, if this rank is in them; they sum gradients.
    prefix_groups: BTreeMap<usize, Group>,
}

/// A layer and the moves of its activations, as seen by this rank.
#[derive(Debug)]
struct LayerState {
    name: String,
    /// Number of ranks, counted from 0, that run the layer.
    gpus: usize,
    /// Moves of the activations from the layer before; empty at the first layer.
    into: Redistribution,
    /// Moves of the gradients of these activations, in reverse.
    back: Redistribution,
    /// Shape of one output sample.
    shape: Vec<i64>,
    /// The layer, if this rank runs it.
    stage: Option<Stage>,
}

/// The result of an iteration on this rank.
#[derive(Debug)]
pub struct Iteration {
    /// This rank's part of the mean loss over the global batch. The sum over all ranks is the loss.
    pub loss: f64,
    /// Times of all phases.
    pub intervals: Vec<PhaseInterval>,
}

impl Executor {
    /// Prepares to run a plan that was [checked](BurstPlan::check) for this model and the ranks of `world`.
    ///
    /// Keeps only the layers that run on this rank. `join` creates the group of the first n ranks. All
    /// ranks of a group call it in the same order.
    ///
    /// # Errors
    /// Fails if a group cannot be joined.
    pub fn new(
        plan: &BurstPlan,
        model: Network,
        sample_shape: &[i64],
        momentum: f64,
        world: Group,
        join: impl Fn(usize) -> Result<Group>,
    ) -> Result<Self> {
        let (rank, world_size) = (world.rank(), world.world_size());
        let (kind, device) = (model.kind(), model.device());
        let (mut layer_states, mut prefix_groups, mut layouts) =
            (Vec::new(), BTreeMap::new(), Vec::<Layout>::new());
        let mut shape = sample_shape.to_vec();
        for (planned, layer) in plan.layers.iter().zip(model.into_layers()) {
            let (layout, into) = match layouts.last() {
                Some(before) => before.next(&planned.samples),
                None => (Layout::first(&planned.samples, world_size), Redistribution::default()),
            };
            layouts.push(layout);
            let gpus = planned.gpus;
            if rank < gpus && gpus > 1 && !prefix_groups.contains_key(&gpus) {
                let group = join(gpus).with_context(|| format!("joining the first {gpus} ranks"))?;
                prefix_groups.insert(gpus, group);
            }
            shape = layer.output_shape(&shape);
            let (name, back) = (planned.name.clone(), into.back());
            let stage = (rank < gpus).then(|| Stage::new(layer, momentum));
            layer_states.push(LayerState { name, gpus, into, back, shape: shape.clone(), stage });
        }
        let of_rank = |layout: Option<&Layout>| layout.map_or(Vec::new(), |layout| layout.of(rank).to_vec());
        let ends = [of_rank(layouts.first()), of_rank(layouts.last())];
        Ok(Self { layer_states, ends, global_batch: plan.global_batch, kind, device, world, prefix_groups })
    }

    /// Runs one iteration over the samples with these indices. Their number is the plan's global batch,
    /// and they are the same on all ranks.
    ///
    /// # Errors
    /// Fails if a rank is lost or stalls for longer than the timeout.
    pub fn iterate(&mut self, data: &Split, batch: &[i64], learning_rate: f64) -> Result<Iteration> {
        self.iterate_observed(data, batch, learning_rate, &mut ())
    }

    /// Runs one iteration like [`iterate`](Self::iterate) and reports its tasklets to `observer`. Each
    /// period of compute, each receive and each sum is a tasklet.
    ///
    /// # Errors
    /// Fails if a rank is lost or stalls for longer than the timeout.
    pub fn iterate_observed(
        &mut self,
        data: &Split,
        batch: &[i64],
        learning_rate: f64,
        observer: &mut dyn Observer,
    ) -> Result<Iteration> {
        let mut watch = Watch::begin(self.device, observer)?;
        watch.begins(Kind::Compute);
        let [first, last] = self.ends.each_ref().map(|places| {
            let indices: Vec<i64> = places.iter().filter_map(|&at| batch.get(at as usize).copied()).collect();
            data.gather(&indices, self.kind, self.device)
        });
        watch.did(0, Phase::Load)?;

        // Inputs and outputs of each layer are kept for the backward pass.
        let mut held = first.inputs;
        let mut passed = Vec::with_capacity(self.layer_states.len());
        for (number, layer_state) in self.layer_states.iter().enumerate() {
            watch.begins(layer_state.into.kind(self.world.rank()));
            held = cross(&self.world, &layer_state.into, &held)
                .with_context(|| layer_state.error_context("activations"))?;
            watch.did(number, Phase::Arrive)?;
            watch.begins(Kind::Compute);
            let inputs = held.detach().set_requires_grad(number > 0);
            let outputs = layer_state.forward(&inputs);
            held = outputs.detach();
            passed.push((inputs, outputs));
            watch.did(number, Phase::Forward)?;
        }

        // The loss counts as part of the last layer.
        watch.begins(Kind::Compute);
        let (loss, mut gradient) = loss(&held, &last.targets, self.global_batch);
        watch.did(self.layer_states.len().saturating_sub(1), Phase::Backward)?;

        for (number, (inputs, outputs)) in passed.into_iter().enumerate().rev() {
            let layer_state = &mut self.layer_states[number];
            watch.begins(Kind::Compute);
            let (flat, of_inputs) = layer_state.backward(&inputs, &outputs, &gradient);
            watch.did(number, Phase::Backward)?;
            if let Some(mut flat) = flat {
                if let Some(group) = self.prefix_groups.get(&layer_state.gpus) {
                    watch.begins(Kind::AllReduce);
                    flat = sum(group, &flat)
                        .with_context(|| layer_state.error_context("the sum of gradients"))?;
                    watch.did(number, Phase::Sum)?;
                }
                watch.begins(Kind::Compute);
                layer_state.step(&flat, learning_rate);
                watch.did(number, Phase::Step)?;
            }
            watch.begins(layer_state.back.kind(self.world.rank()));
            let back = cross(&self.world, &layer_state.back, &of_inputs);
            gradient = back.with_context(|| layer_state.error_context("gradients of activations"))?;
            watch.did(number, Phase::Return)?;
        }
        Ok(Iteration { loss: loss.double_value(&[]), intervals: watch.end() })
    }

    /// Returns the parameters of the layers that run on this rank, layer by layer. Rank 0 has all layers
    /// of the network.
    pub fn parameters(&self) -> Vec<&Tensor> {
        self.layer_states
            .iter()
            .filter_map(|layer_state| layer_state.stage.as_ref())
            .flat_map(Stage::parameters)
            .collect()
    }

    /// Returns the number of samples per iteration.
    pub fn global_batch(&self) -> u64 {
        self.global_batch
    }

    /// Leaves the groups after the last iteration, like [`Group::close`]. All ranks must call it.
    ///
    /// # Errors
    /// Fails if a rank has left without calling it.
    pub fn close(self) -> Result<()> {
        for group in self.prefix_groups.into_values().chain([self.world]) {
            group.close()?;
        }
        Ok(())
    }

    /// Returns the group of all ranks.
    pub fn world(&self) -> &Group {
        &self.world
    }
}

impl LayerState {
    /// Returns the outputs for the samples of this rank, which may have none.
    fn forward(&self, inputs: &Tensor) -> Tensor {
        match &self.stage {
            Some(stage) if rows(inputs) > 0 => stage.forward(inputs),
            _ => inputs.new_zeros([&[0], self.shape.as_slice()].concat(), (inputs.kind(), inputs.device())),
        }
    }

    /// Returns the gradient of the parameters, if this rank runs the layer, and the gradient of the
    /// inputs.
    fn backward(&self, inputs: &Tensor, outputs: &Tensor, gradient: &Tensor) -> (Option<Tensor>, Tensor) {
        match &self.stage {
            Some(stage) if rows(inputs) > 0 => {
                let found = stage.backward(inputs, outputs, gradient);
                (Some(found.flat), found.inputs.unwrap_or_else(|| inputs.detach()))
            }
            stage => (stage.as_ref().map(Stage::no_gradient), inputs.detach()),
        }
    }

    fn step(&mut self, flat: &Tensor, learning_rate: f64) {
        if let Some(stage) = &mut self.stage {
            stage.step(flat, learning_rate);
        }
    }

    fn error_context(&self, what: &str) -> String {
        format!("layer {:?}, {what}", self.name)
    }
}

fn rows(tensor: &Tensor) -> i64 {
    tensor.size().first().copied().unwrap_or(0)
}
