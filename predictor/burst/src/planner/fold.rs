//! The dynamic program, which folds a graph of layers to one edge, layer by layer.
//!
//! All layers of a plan run one after another, so the iteration time is the sum of one cost per layer and one
//! transfer per edge. Two operations fold the graph:
//! - series: a layer with one edge in and one out becomes a single edge, with the best candidate for every
//!   pair of counts at its ends
//! - parallel: two edges between the same layers are added
//!
//! Chains and series-parallel graphs fold to a single edge (Valdes, Tarjan and Lawler 1982). Folding begins
//! at the source, which has no counts, so each layer costs O(counts²) in a chain and O(counts³) inside a
//! block.

use std::collections::{BTreeMap, BTreeSet};

use super::bounds::{Bounds, PartCosts};
use super::costs::Costs;
use super::label::Label;
use super::problem::Limit;
use super::ways::{Candidates, Combiner, GraphNode, Objective};

/// Reasons for folding to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// No candidate through this layer satisfies the limit.
    At(usize),
    /// The graph is not series-parallel; holds the first layer that could not be folded.
    Crossing(usize),
}

/// Result of the dynamic program.
pub(super) struct Solution {
    /// Count of each layer, as an index into the allowed counts.
    pub counts: Vec<usize>,
    /// Iteration time.
    pub time_fs: u128,
    /// Whether undominated candidates were dropped, so that a better plan may exist.
    pub dropped_candidates: bool,
}

/// Returns the best plan under this limit.
///
/// # Errors
/// No candidate satisfies the limit, or the graph is not series-parallel.
pub(super) fn solve_uncapped(costs: &Costs, limit: Option<Limit>) -> Result<Solution, Failure> {
    let mut folding = Folding::new(costs, limit, Objective::Best);
    let label = folding.fold()?;
    Ok(folding.decided(label))
}

/// Returns the cheapest plan at a memory price, and the costs of its parts.
pub(super) fn priced(
    costs: &Costs,
    limit: Option<Limit>,
    price: f64,
) -> Result<(Label, Vec<PartCosts>), Failure> {
    let mut folding = Folding::new(costs, limit, Objective::Priced(price));
    let label = folding.fold()?;
    Ok((label, folding.combiner.made))
}

/// Returns the best plan within the bounds.
///
/// # Errors
/// No plan was found; true if candidates were dropped, so that one may exist.
pub(super) fn within(costs: &Costs, limit: Option<Limit>, bounds: &Bounds) -> Result<Solution, bool> {
    let mut folding = Folding::new(costs, limit, Objective::Within(bounds));
    let label = folding.fold().map_err(|_| folding.combiner.dropped_candidates)?;
    Ok(folding.decided(label))
}

/// Candidates from one node to another, by (count, count).
enum Edge {
    /// No transfer.
    Free,
    /// An input of a layer: (layer, index of the input).
    Input(usize, usize),
    Candidates(Candidates),
}

struct Folding<'a> {
    costs: &'a Costs<'a>,
    combiner: Combiner<'a>,
    edges: BTreeMap<(GraphNode, GraphNode), Edge>,
    before: BTreeMap<GraphNode, BTreeSet<GraphNode>>,
    after: BTreeMap<GraphNode, BTreeSet<GraphNode>>,
    /// Layers that may be ready to be folded; the first one is next.
    ready: BTreeSet<usize>,
}

impl<'a> Folding<'a> {
    fn new(costs: &'a Costs, limit: Option<Limit>, aim: Objective<'a>) -> Self {
        Self {
            costs,
            combiner: Combiner::new(costs, limit, aim),
            edges: BTreeMap::new(),
            before: BTreeMap::new(),
            after: BTreeMap::new(),
            ready: (0..costs.choices.len()).collect(),
        }
    }

    fn fold(&mut self) -> Result<Label, Failure> {
        self.lay_out();
        while let Some(layer) = self.ready.pop_first() {
            let place = GraphNode::Layer(layer);
            let (Some(from), Some(to)) = (only(&self.before, place), only(&self.after, place)) else {
                continue;
            };
            let (ways, reached) = self.through(from, layer, to);
            if ways.labels.is_empty() {
                let beyond =
                    if let (GraphNode::Layer(beyond), true) = (to, reached) { beyond } else { layer };
                return Err(Failure::At(beyond));
            }
            self.before.remove(&place);
            self.after.remove(&place);
            self.join(from, to, Edge::Candidates(ways));
        }
        match self.edges.get(&(GraphNode::Source, GraphNode::Sink)) {
            // Unconnected parts meet only at the ends, where their sum may exceed a bound.
            Some(Edge::Candidates(ways)) if self.edges.len() == 1 => {
                ways.labels.first().copied().ok_or(Failure::At(0))
            }
            _ => Err(Failure::Crossing(self.first_unfolded())),
        }
    }

    fn lay_out(&mut self) {
        let layers = &self.costs.problem.layers;
        let mut is_read = vec![false; layers.len()];
        for (at, layer) in layers.iter().enumerate() {
            if layer.inputs.is_empty() {
                self.join(GraphNode::Source, GraphNode::Layer(at), Edge::Free);
            }
            for (number, input) in layer.inputs.iter().enumerate() {
                is_read[input.layer] = true;
                self.join(GraphNode::Layer(input.layer), GraphNode::Layer(at), Edge::Input(at, number));
            }
        }
        for (at, _) in is_read.iter().enumerate().filter(|(_, is_read)| !**is_read) {
            self.join(GraphNode::Layer(at), GraphNode::Sink, Edge::Free);
        }
    }

    /// Adds an edge. If the nodes already have an edge, merges both into one.
    fn join(&mut self, from: GraphNode, to: GraphNode, edge: Edge) {
        let edge = match self.edges.remove(&(from, to)) {
            Some(other) => {
                let (one, other) = (self.ways(from, to, other), self.ways(from, to, edge));
                Edge::Candidates(self.combiner.parallel(from, to, &one, &other))
            }
            None => edge,
        };
        self.edges.insert((from, to), edge);
        self.after.entry(from).or_default().insert(to);
        self.before.entry(to).or_default().insert(from);
        let layers = [from, to].into_iter().filter_map(|place| match place {
            GraphNode::Layer(layer) => Some(layer),
            GraphNode::Source | GraphNode::Sink => None,
        });
        self.ready.extend(layers);
    }

    /// Replaces both edges of a layer by one through it. Also returns whether any candidate reaches the
    /// layer.
    fn through(&mut self, from: GraphNode, layer: usize, to: GraphNode) -> (Candidates, bool) {
        let here = GraphNode::Layer(layer);
        let [into, out] = [(from, here), (here, to)].map(|(from, to)| {
            self.after.entry(from).or_default().remove(&to);
            self.before.entry(to).or_default().remove(&from);
            self.edges.remove(&(from, to)).map(|edge| self.ways(from, to, edge)).unwrap_or_default()
        });
        let ways = self.combiner.through((from, &into), layer, (to, &out));
        (ways, !into.labels.is_empty())
    }

    /// Returns the candidates of an edge.
    fn ways(&mut self, from: GraphNode, to: GraphNode, edge: Edge) -> Candidates {
        match edge {
            Edge::Candidates(ways) => ways,
            Edge::Free => self.combiner.edge(from, to, None),
            Edge::Input(layer, number) => self.combiner.edge(from, to, Some((layer, number))),
        }
    }

    /// Returns the first layer that could not be folded.
    fn first_unfolded(&self) -> usize {
        let layers = self.edges.keys().flat_map(|(from, to)| [*from, *to]);
        let first =
            layers.filter_map(|place| if let GraphNode::Layer(layer) = place { Some(layer) } else { None });
        first.min().unwrap_or(0)
    }

    fn decided(&self, label: Label) -> Solution {
        let dropped_candidates = self.combiner.dropped_candidates;
        Solution { counts: self.combiner.counts(label), time_fs: label.value.time_fs, dropped_candidates }
    }
}

/// Returns the only neighbor of a node; `None` if there are several or the node is already folded.
fn only(neighbours: &BTreeMap<GraphNode, BTreeSet<GraphNode>>, place: GraphNode) -> Option<GraphNode> {
    let neighbours = neighbours.get(&place)?;
    neighbours.first().copied().filter(|_| neighbours.len() == 1)
}
