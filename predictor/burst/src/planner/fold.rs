//! The dynamic program: a graph of layers is folded to one edge, layer by layer.
//!
//! All layers of a plan run one after another, so its time is a sum: of a cost for each layer and a transfer for each edge. A
//! layer with one edge in and one out is folded into a single edge, which knows the best way through for every pair of
//! counts at its ends (series); two edges between the same layers are added (parallel). What folds to a single edge is a
//! chain or a series-parallel graph (Valdes, Tarjan and Lawler 1982). Folding begins at the source, which has no counts: along a chain
//! each layer costs O(counts²), inside a block O(counts³).

use std::collections::{BTreeMap, BTreeSet};

use super::bounds::{Bounds, Made};
use super::costs::Costs;
use super::label::Label;
use super::problem::Limit;
use super::ways::{Aim, Combiner, Place, Ways};

/// Why nothing came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// No way through this layer is legal.
    At(usize),
    /// Not series-parallel: the first layer that could not be folded.
    Crossing(usize),
}

/// What was decided.
pub(super) struct Decided {
    /// By layer, the place of its count among the allowed.
    pub counts: Vec<usize>,
    /// An iteration.
    pub time_fs: u128,
    /// Whether some ways had to go that nothing beat: then there may be a better plan.
    pub thinned: bool,
}

/// The best plan under this limit.
///
/// # Errors
/// [`Failure`].
pub(super) fn decide(costs: &Costs, limit: Option<Limit>) -> Result<Decided, Failure> {
    let mut folding = Folding::new(costs, limit, Aim::Best);
    let label = folding.fold()?;
    Ok(folding.decided(label))
}

/// What a plan costs at a price, and what ways through its parts do.
pub(super) fn priced(costs: &Costs, limit: Option<Limit>, price: f64) -> Result<(Label, Vec<Made>), Failure> {
    let mut folding = Folding::new(costs, limit, Aim::Priced(price));
    let label = folding.fold()?;
    Ok((label, folding.combiner.made))
}

/// The best plan that fits into the bounds.
///
/// # Errors
/// Whether ways were lost where there was one.
pub(super) fn within(costs: &Costs, limit: Option<Limit>, bounds: &Bounds) -> Result<Decided, bool> {
    let mut folding = Folding::new(costs, limit, Aim::Within(bounds));
    let label = folding.fold().map_err(|_| folding.combiner.thinned)?;
    Ok(folding.decided(label))
}

/// Ways from one place to another, by (count, count).
enum Edge {
    /// Nothing moves.
    Free,
    /// An input of a layer, by its place among them.
    Input(usize, usize),
    Ways(Ways),
}

struct Folding<'a> {
    costs: &'a Costs<'a>,
    combiner: Combiner<'a>,
    edges: BTreeMap<(Place, Place), Edge>,
    before: BTreeMap<Place, BTreeSet<Place>>,
    after: BTreeMap<Place, BTreeSet<Place>>,
    /// Layers that may be ready to be folded, the first one next.
    ready: BTreeSet<usize>,
}

impl<'a> Folding<'a> {
    fn new(costs: &'a Costs, limit: Option<Limit>, aim: Aim<'a>) -> Self {
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
            let place = Place::Layer(layer);
            let (Some(from), Some(to)) = (only(&self.before, place), only(&self.after, place)) else {
                continue;
            };
            let (ways, reached) = self.through(from, layer, to);
            if ways.labels.is_empty() {
                let beyond = if let (Place::Layer(beyond), true) = (to, reached) { beyond } else { layer };
                return Err(Failure::At(beyond));
            }
            self.before.remove(&place);
            self.after.remove(&place);
            self.join(from, to, Edge::Ways(ways));
        }
        match self.edges.get(&(Place::Source, Place::Sink)) {
            // Parts that no edge joins meet at the ends only: there they may be too much together.
            Some(Edge::Ways(ways)) if self.edges.len() == 1 => {
                ways.labels.first().copied().ok_or(Failure::At(0))
            }
            _ => Err(Failure::Crossing(self.first_left())),
        }
    }

    fn lay_out(&mut self) {
        let layers = &self.costs.problem.layers;
        let mut is_read = vec![false; layers.len()];
        for (at, layer) in layers.iter().enumerate() {
            if layer.inputs.is_empty() {
                self.join(Place::Source, Place::Layer(at), Edge::Free);
            }
            for (number, input) in layer.inputs.iter().enumerate() {
                is_read[input.layer] = true;
                self.join(Place::Layer(input.layer), Place::Layer(at), Edge::Input(at, number));
            }
        }
        for (at, _) in is_read.iter().enumerate().filter(|(_, is_read)| !**is_read) {
            self.join(Place::Layer(at), Place::Sink, Edge::Free);
        }
    }

    /// Adds an edge; where there is one already, both become one.
    fn join(&mut self, from: Place, to: Place, edge: Edge) {
        let edge = match self.edges.remove(&(from, to)) {
            Some(other) => {
                let (one, other) = (self.ways(from, to, other), self.ways(from, to, edge));
                Edge::Ways(self.combiner.beside(from, to, &one, &other))
            }
            None => edge,
        };
        self.edges.insert((from, to), edge);
        self.after.entry(from).or_default().insert(to);
        self.before.entry(to).or_default().insert(from);
        let layers = [from, to].into_iter().filter_map(|place| match place {
            Place::Layer(layer) => Some(layer),
            Place::Source | Place::Sink => None,
        });
        self.ready.extend(layers);
    }

    /// Takes both edges of a layer, and gives one that leads through it; and whether the layer was reached at all.
    fn through(&mut self, from: Place, layer: usize, to: Place) -> (Ways, bool) {
        let here = Place::Layer(layer);
        let [into, out] = [(from, here), (here, to)].map(|(from, to)| {
            self.after.entry(from).or_default().remove(&to);
            self.before.entry(to).or_default().remove(&from);
            self.edges.remove(&(from, to)).map(|edge| self.ways(from, to, edge)).unwrap_or_default()
        });
        let ways = self.combiner.through((from, &into), layer, (to, &out));
        (ways, !into.labels.is_empty())
    }

    /// The ways over an edge, one by one.
    fn ways(&mut self, from: Place, to: Place, edge: Edge) -> Ways {
        match edge {
            Edge::Ways(ways) => ways,
            Edge::Free => self.combiner.edge(from, to, None),
            Edge::Input(layer, number) => self.combiner.edge(from, to, Some((layer, number))),
        }
    }

    /// The first layer that could not be folded.
    fn first_left(&self) -> usize {
        let layers = self.edges.keys().flat_map(|(from, to)| [*from, *to]);
        let first =
            layers.filter_map(|place| if let Place::Layer(layer) = place { Some(layer) } else { None });
        first.min().unwrap_or(0)
    }

    fn decided(&self, label: Label) -> Decided {
        let thinned = self.combiner.thinned;
        Decided { counts: self.combiner.counts(label), time_fs: label.value.time_fs, thinned }
    }
}

/// The one neighbour of a place; `None` where there are more, or it is folded already.
fn only(neighbours: &BTreeMap<Place, BTreeSet<Place>>, place: Place) -> Option<Place> {
    let neighbours = neighbours.get(&place)?;
    neighbours.first().copied().filter(|_| neighbours.len() == 1)
}
