//! Compares burst-parallel plans with an exhaustive search, on random chains and series-parallel graphs, and
//! checks invariants.
//!
//! The search adds integer nanoseconds and compares ratios by cross-multiplication, so it shares no
//! arithmetic with the planner.

#![allow(clippy::unwrap_used, reason = "a test ends where its set-up fails")]

use std::collections::BTreeMap;

use evenstep_burst::planner::{
    AllReduce, BurstError, Cost, Infeasible, Input, Layer, Limit, Memory, Network, Planned, Problem, plan,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const CHAINS: usize = 10_000;
const GRAPHS: usize = 4_000;
const LAYERS_MAX: usize = 7;

/// A layer in integers: cost and memory by index of the count, and its inputs with edge costs by (count of
/// the input, count here).
struct Node {
    costs: Vec<Option<u64>>,
    one_gpu: u64,
    bytes: Vec<u64>,
    inputs: Vec<(usize, Vec<Vec<u64>>)>,
}

struct Case {
    counts: Vec<u64>,
    nodes: Vec<Node>,
    /// The limit in tenths, and the cost below which layers are exempt.
    limit: Option<(u64, u64)>,
    cap: Option<u64>,
}

impl Case {
    fn random(random: &mut ChaCha8Rng, inputs: &[Vec<usize>]) -> Self {
        let lists: [&[u64]; 5] = [&[1, 2, 4], &[1, 2, 4], &[1, 2, 4, 8], &[1, 3, 5], &[2, 4]];
        let short = inputs.len() < LAYERS_MAX;
        let counts = lists[random.random_range(0..if short { 5 } else { 2 })].to_vec();
        // Small numbers cause many ties, large ones almost none.
        let scale = [4, 30, 20_000][random.random_range(0..3)];
        let nodes = inputs.iter().map(|inputs| Node::random(random, &counts, scale, inputs)).collect();
        let limit =
            random.random_bool(0.8).then(|| (random.random_range(10..40), random.random_range(0..scale)));
        let cap = random.random_bool(0.4).then(|| random.random_range(0..40 * inputs.len() as u64));
        Self { counts, nodes, limit, cap }
    }

    fn problem(&self) -> Problem {
        let us = |thousandths: u64| thousandths as f64 / 1000.0;
        let count = |place: usize| self.counts[place] as usize;
        let places = 0..self.counts.len();
        let layer = |(at, node): (usize, &Node)| {
            let input = |(layer, edges): &(usize, Vec<Vec<u64>>)| {
                let pairs = places.clone().flat_map(|from| places.clone().map(move |to| (from, to)));
                let edge_us = pairs.map(|(from, to)| ((count(from), count(to)), us(edges[from][to])));
                Input { layer: *layer, edge_us: Some(edge_us.collect()) }
            };
            let known = node.costs.iter().zip(places.clone());
            let mut cost_us: BTreeMap<usize, f64> =
                known.filter_map(|(cost, place)| Some((count(place), us((*cost)?)))).collect();
            if node.costs[0].is_some() || self.counts[0] != 1 {
                cost_us.insert(1, us(node.one_gpu));
            }
            // The global batch is 120, so the local batch 120 / g is an integer for all counts.
            let points = node.bytes.iter().zip(&self.counts).rev();
            Layer {
                inputs: node.inputs.iter().map(input).collect(),
                activation_bytes: points.map(|(bytes, count)| (120 / count, *bytes as f64)).collect(),
                ..Layer::table(format!("layer {at}"), None, cost_us)
            }
        };
        let limit = |(tenths, exempt): (u64, u64)| Limit {
            amplification: tenths as f64 / 10.0,
            exempt_below_us: us(exempt),
        };
        Problem {
            counts: Some(self.counts.iter().map(|count| *count as usize).collect()),
            limit: self.limit.map(limit),
            memory: self.cap.map(|bytes_per_gpu| Memory { bytes_per_gpu, bytes_per_parameter: 0.0 }),
            ..Problem::new(self.nodes.iter().enumerate().map(layer).collect(), 8, 120)
        }
    }

    /// Returns time and GPU time of a layer; `None` if the limit forbids its count.
    fn layer(&self, at: usize, places: &[usize]) -> Option<(u64, u64)> {
        let (node, place) = (&self.nodes[at], places[at]);
        let transfers: u64 = node.inputs.iter().map(|(from, edges)| edges[places[*from]][place]).sum();
        let time = node.costs[place]? + transfers;
        let gpus = self.counts[place];
        let legal = |(tenths, exempt): (u64, u64)| {
            gpus == 1 || node.one_gpu < exempt || 10 * time * gpus <= tenths * node.one_gpu
        };
        self.limit.is_none_or(legal).then_some((time, time * gpus))
    }

    /// Returns the best of all possible plans: time, GPU time, GPUs.
    fn search(
        &self,
        places: &mut Vec<usize>,
        sums: (u64, u64, u64),
        bytes: u64,
        best: &mut Option<(u64, u64, u64)>,
    ) {
        let at = places.len();
        if self.cap.is_some_and(|cap| bytes > cap) {
            return;
        }
        if at == self.nodes.len() {
            *best = Some(best.map_or(sums, |best| best.min(sums)));
            return;
        }
        for place in 0..self.counts.len() {
            places.push(place);
            if let Some((time, gpu_time)) = self.layer(at, places) {
                let sums = (sums.0 + time, sums.1 + gpu_time, sums.2 + self.counts[place]);
                self.search(places, sums, bytes + self.nodes[at].bytes[place], best);
            }
            places.pop();
        }
    }

    /// Returns the value of a plan, with the arithmetic of the search.
    fn value(&self, plan: &Planned) -> Option<(u64, u64, u64)> {
        let place = |gpus: usize| self.counts.iter().position(|count| *count == gpus as u64).unwrap();
        let places: Vec<usize> = plan.layers.iter().map(|layer| place(layer.gpus)).collect();
        let bytes: u64 = self.nodes.iter().zip(&places).map(|(node, place)| node.bytes[*place]).sum();
        if self.cap.is_some_and(|cap| bytes > cap) || bytes != plan.memory_bytes {
            return None;
        }
        (0..places.len()).try_fold((0, 0, 0), |sums, at| {
            let (time, gpu_time) = self.layer(at, &places)?;
            Some((sums.0 + time, sums.1 + gpu_time, sums.2 + self.counts[places[at]]))
        })
    }

    /// Returns whether a plan exists.
    fn check(&self, label: &str) -> bool {
        let mut best = None;
        self.search(&mut Vec::new(), (0, 0, 0), 0, &mut best);
        match (plan(&self.problem()), best) {
            (Ok(plan), Some(best)) => {
                assert!(plan.exact, "{label}");
                assert_eq!(self.value(&plan), Some(best), "{label}: {plan:?}");
                let printed = (plan.iteration_us * 1000.0, plan.gpu_us * 1000.0);
                assert!((printed.0 - best.0 as f64).abs() < 1e-3 && (printed.1 - best.1 as f64).abs() < 1e-3);
                let idle_us: f64 = plan.idle_us.iter().sum();
                assert!((idle_us - (8.0 * plan.iteration_us - plan.gpu_us)).abs() < 1e-6, "{label}");
            }
            (Err(BurstError::Infeasible(Infeasible::Undecided { .. })), _) => panic!("{label}: undecided"),
            (Err(BurstError::Infeasible(_)), None) => {}
            (planned, best) => panic!("{label}: {planned:?}, but the search found {best:?}"),
        }
        best.is_some()
    }
}

impl Node {
    fn random(random: &mut ChaCha8Rng, counts: &[u64], scale: u64, inputs: &[usize]) -> Self {
        let one_gpu = random.random_range(1..=scale);
        let cost = |count: &u64| match random.random_range(0..20) {
            0 if *count > 1 => None,
            1..6 => Some(random.random_range(0..=scale)),
            // The typical case: one part scales with the count, the other does not.
            part => Some(one_gpu * (part + (20 - part) / count) / 20),
        };
        let mut costs: Vec<Option<u64>> = counts.iter().map(cost).collect();
        if counts[0] == 1 {
            costs[0] = Some(one_gpu);
        }
        let mut bytes: Vec<u64> = counts.iter().map(|_| random.random_range(0..40)).collect();
        bytes.sort_unstable_by(|a, b| b.cmp(a));
        let mut edges = || {
            let row = |from: usize, random: &mut ChaCha8Rng| {
                let cost = |to: usize| if from == to { 0 } else { random.random_range(0..=scale / 4) };
                (0..counts.len()).map(cost).collect()
            };
            (0..counts.len()).map(|from| row(from, random)).collect()
        };
        let inputs = inputs.iter().map(|from| (*from, edges())).collect();
        Self { costs, one_gpu, bytes, inputs }
    }
}

fn chain(layers: usize) -> Vec<Vec<usize>> {
    (0..layers).map(|at| at.checked_sub(1).into_iter().collect()).collect()
}

/// Returns a random series-parallel graph: after the first layer, chains and blocks of branches. Branches may
/// be empty or nested blocks.
fn graph(random: &mut ChaCha8Rng) -> Vec<Vec<usize>> {
    let mut inputs = vec![Vec::new()];
    let mut exit = 0;
    while inputs.len() < LAYERS_MAX && random.random_bool(0.9) {
        exit = extend(random, &mut inputs, exit, 2);
    }
    inputs
}

/// Adds a layer or a block after `entry` and returns its last layer.
fn extend(random: &mut ChaCha8Rng, inputs: &mut Vec<Vec<usize>>, entry: usize, depth: usize) -> usize {
    let room = LAYERS_MAX - inputs.len();
    if depth == 0 || room < 2 || random.random_bool(0.3) {
        inputs.push(vec![entry]);
        return inputs.len() - 1;
    }
    let mut ends = Vec::new();
    for _ in 0..random.random_range(2..4) {
        let mut end = entry;
        for _ in 0..random.random_range(0..3) {
            // Reserve the index of the join.
            if inputs.len() + 1 < LAYERS_MAX {
                let depth = if inputs.len() + 2 < LAYERS_MAX { depth - 1 } else { 0 };
                let before = inputs.len();
                end = extend(random, inputs, end, depth);
                assert!(inputs.len() > before);
            }
        }
        ends.push(end);
    }
    inputs.push(ends);
    inputs.len() - 1
}

#[test]
fn chains_equal_a_search_over_all_plans() {
    let mut random = ChaCha8Rng::seed_from_u64(9);
    let mut planned = 0;
    for case in 0..CHAINS {
        let layers = random.random_range(1..=LAYERS_MAX);
        let solved = Case::random(&mut random, &chain(layers)).check(&format!("chain {case}"));
        planned += usize::from(solved);
    }
    assert!(planned > CHAINS / 2, "only {planned} had a plan");
}

#[test]
fn graphs_equal_a_search_over_all_plans() {
    let mut random = ChaCha8Rng::seed_from_u64(10);
    let (mut blocks, mut planned) = (0, 0);
    for case in 0..GRAPHS {
        let inputs = graph(&mut random);
        blocks += usize::from(inputs.iter().any(|inputs| inputs.len() > 1));
        planned += usize::from(Case::random(&mut random, &inputs).check(&format!("graph {case}")));
    }
    assert!(planned > GRAPHS / 2, "only {planned} had a plan");
    assert!(blocks > GRAPHS / 2, "only {blocks} had a block");
}

/// Returns a profiled layer with fixed cost, cost per sample and parameters.
fn profiled(random: &mut ChaCha8Rng, at: usize) -> Layer {
    let (fixed, each) = (random.random_range(1.0..200.0), random.random_range(0.1..50.0));
    let points = [1, 8, 64].map(|batch: u64| (batch, fixed + each * batch as f64));
    let inputs = at.checked_sub(1).into_iter().chain((at > 2 && at.is_multiple_of(3)).then(|| at - 2));
    Layer {
        inputs: inputs.map(|layer| Input { layer, edge_us: None }).collect(),
        cost: Cost::Profile(points.to_vec()),
        outputs: Some(random.random_range(1e3..1e6)),
        parameters: random.random_range(0.0..1e7),
        ..Layer::table(format!("layer {at}"), None, BTreeMap::new())
    }
}

#[test]
fn laws() {
    let mut random = ChaCha8Rng::seed_from_u64(11);
    for case in 0..200 {
        let layers = random.random_range(1..30);
        let layers: Vec<Layer> = (0..layers).map(|at| profiled(&mut random, at)).collect();
        let all_reduce = if case % 2 == 0 { AllReduce::Ring } else { AllReduce::Tree };
        let network = Some(Network { bandwidth_bytes_per_s: 1e11, latency_us: 5.0, all_reduce });
        let exempt_below_us = random.random_range(0.0..100.0);
        let at = |gpus: usize, limit: Option<f64>| {
            let limit = limit.map(|amplification| Limit { amplification, exempt_below_us });
            plan(&Problem { limit, network, ..Problem::new(layers.clone(), gpus, 64) }).unwrap()
        };
        let limits = [Some(1.0), Some(1.3), Some(2.0), Some(4.0), None];
        for (tight, loose) in limits.iter().zip(&limits[1..]) {
            assert!(
                at(16, *loose).iteration_us <= at(16, *tight).iteration_us,
                "{case}: {loose:?} is looser"
            );
        }
        for limit in limits {
            let plans = [1, 2, 5, 16, 64, 100].map(|gpus| at(gpus, limit));
            for pair in plans.windows(2) {
                assert!(pair[1].iteration_us <= pair[0].iteration_us, "{case}: more GPUs, {limit:?}");
            }
            for layer in plans.iter().flat_map(|plan| &plan.layers).filter(|layer| !layer.exempt) {
                assert!(layer.amplification.unwrap() <= limit.unwrap() * (1.0 + 1e-9), "{case}: {layer:?}");
            }
        }
        let free = at(64, None);
        let (data_parallel, one_gpu) = (free.data_parallel.unwrap(), free.one_gpu.unwrap());
        assert!(free.iteration_us <= data_parallel.iteration_us.min(one_gpu.iteration_us), "{case}");
    }
}
