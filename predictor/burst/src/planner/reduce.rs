//! The dynamic program: a graph of layers is folded to one edge, layer by layer.
//!
//! All layers of a plan run one after another, so its time is a sum: of a cost for each layer and a transfer for each edge. A
//! layer with one edge in and one out is folded into a single edge, which knows the best way through for every pair of
//! counts at its ends (series); two edges between the same layers are added (parallel). What folds to a single edge is a
//! chain or a series-parallel graph (Valdes, Tarjan and Lawler 1982). Folding begins at the source, which has no counts: along a chain
//! each layer costs O(counts²), inside a block O(counts³).

use std::collections::{BTreeMap, BTreeSet};

use super::costs::{Choice, Costs};
use super::label::{CAPPED_LABELS_MAX, LABELS_MAX, LABELS_MIN, Label, Matters, Step, Value, keep_best};
use super::price::{Bounds, Made, Part, at_price};
use super::problem::Limit;

/// Ways looked at under a cap after which few are kept: what comes then is not proven to be the best.
const LOOKED_MAX: usize = 4_000_000;

/// The place of an edge among what is kept: there is nothing to remember of it.
const EDGE: u32 = 0;

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

/// What is looked for among all ways.
#[derive(Debug, Clone, Copy)]
pub(super) enum Aim<'a> {
    /// The best, whatever it holds.
    Best,
    /// The least time where each byte above the least that layers need costs so many femtoseconds. Transfers count for limits one by
    /// one only, so it may be less than any plan has.
    Priced(f64),
    /// The best that fits into the bounds.
    Within(&'a Bounds),
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
    Ok((label, folding.made))
}

/// The best plan that fits into the bounds.
///
/// # Errors
/// Whether ways were lost where there was one.
pub(super) fn within(costs: &Costs, limit: Option<Limit>, bounds: &Bounds) -> Result<Decided, bool> {
    let mut folding = Folding::new(costs, limit, Aim::Within(bounds));
    let label = folding.fold().map_err(|_| folding.thinned)?;
    Ok(folding.decided(label))
}

/// A layer, or the end before the first or behind the last: those have one state, cost nothing and read nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Source,
    Layer(usize),
    Sink,
}

/// Ways from one place to another, by (count, count).
enum Edge {
    /// Nothing moves.
    Free,
    /// An input of a layer, by its place among them.
    Input(usize, usize),
    Ways(Ways),
}

/// Ways by row and column: those of a cell lie together.
#[derive(Default)]
struct Ways {
    /// Its place among all that are made, which is the same whatever is looked for.
    number: usize,
    columns: usize,
    ends: Vec<usize>,
    labels: Vec<Label>,
}

impl Ways {
    fn cell(&self, row: usize, column: usize) -> &[Label] {
        let at = row * self.columns + column;
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.labels[start..self.ends[at]]
    }
}

struct Folding<'a> {
    costs: &'a Costs<'a>,
    /// By layer and count: what transfers into it may take; `None`: not legal.
    room_fs: Vec<Vec<Option<u128>>>,
    /// By layer: what it needs at the least.
    least_bytes: Vec<u128>,
    aim: Aim<'a>,
    /// What was made so far: filled for prices, else only counted.
    made: Vec<Made>,
    count_made: usize,
    looked: usize,
    edges: BTreeMap<(Place, Place), Edge>,
    before: BTreeMap<Place, BTreeSet<Place>>,
    after: BTreeMap<Place, BTreeSet<Place>>,
    /// Layers that may be ready to be folded, the first one next.
    ready: BTreeSet<usize>,
    kept: Vec<Step>,
    thinned: bool,
}

impl<'a> Folding<'a> {
    fn new(costs: &'a Costs, limit: Option<Limit>, aim: Aim<'a>) -> Self {
        let layers = 0..costs.choices.len();
        let rooms = |layer| (0..costs.counts.len()).map(|count| costs.room_fs(layer, count, limit)).collect();
        let bytes = |layer| costs.possible(layer).map(|(_, choice)| choice.memory_bytes).min().unwrap_or(0);
        Self {
            costs,
            room_fs: layers.clone().map(rooms).collect(),
            least_bytes: layers.clone().map(bytes).collect(),
            aim,
            made: Vec::new(),
            count_made: 0,
            looked: 0,
            edges: BTreeMap::new(),
            before: BTreeMap::new(),
            after: BTreeMap::new(),
            ready: layers.collect(),
            kept: vec![Step::Edge],
            thinned: false,
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
            Some(other) => Edge::Ways(self.beside(from, to, other, edge)),
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
        let into =
            self.edges.remove(&(from, here)).map(|edge| self.ways(from, here, edge)).unwrap_or_default();
        let out = self.edges.remove(&(here, to)).map(|edge| self.ways(here, to, edge)).unwrap_or_default();
        for (from, to) in [(from, here), (here, to)] {
            self.after.entry(from).or_default().remove(&to);
            self.before.entry(to).or_default().remove(&from);
        }
        let choices: Vec<(usize, Choice, u128)> = (0..self.costs.counts.len())
            .filter_map(|count| Some((count, self.costs.choices[layer][count]?, self.room_fs[layer][count]?)))
            .collect();
        let mut ways = self.begin(to);
        let mut labels = Vec::new();
        for row in 0..self.states(from) {
            for column in 0..ways.columns {
                for &(count, choice, room_fs) in &choices {
                    let node = self.node(layer, count, choice);
                    for before in into.cell(row, count).iter().filter(|label| label.transfer_fs <= room_fs) {
                        for after in out.cell(count, column) {
                            let (Step::Kept(a), Step::Kept(b)) = (before.step, after.step) else { continue };
                            let step = Step::Through {
                                before: a,
                                layer: layer as u32,
                                count: count as u32,
                                after: b,
                            };
                            let label = Label {
                                value: before.value.plus(node.value).plus(after.value),
                                transfer_fs: after.transfer_fs,
                                memory_bytes: before.memory_bytes + node.memory_bytes + after.memory_bytes,
                                step,
                            };
                            self.look(&ways, (row, column), label, &mut labels);
                        }
                    }
                }
                self.close_cell(&mut ways, &mut labels, to, column);
            }
        }
        self.end(&ways, self.states(from), Part::Through { into: into.number, layer, out: out.number });
        (ways, !into.labels.is_empty())
    }

    /// Two edges between the same places: whatever happens on one happens beside what happens on the other.
    fn beside(&mut self, from: Place, to: Place, one: Edge, other: Edge) -> Ways {
        let (one, other) = (self.ways(from, to, one), self.ways(from, to, other));
        let mut ways = self.begin(to);
        let mut labels = Vec::new();
        for row in 0..self.states(from) {
            for column in 0..ways.columns {
                for a in one.cell(row, column) {
                    for b in other.cell(row, column) {
                        let (Step::Kept(first), Step::Kept(second)) = (a.step, b.step) else { continue };
                        let label = Label {
                            value: a.value.plus(b.value),
                            transfer_fs: a.transfer_fs + b.transfer_fs,
                            memory_bytes: a.memory_bytes + b.memory_bytes,
                            step: Step::Both(first, second),
                        };
                        self.look(&ways, (row, column), label, &mut labels);
                    }
                }
                self.close_cell(&mut ways, &mut labels, to, column);
            }
        }
        self.end(&ways, self.states(from), Part::Beside(one.number, other.number));
        ways
    }

    /// The ways over an edge, one by one.
    fn ways(&mut self, from: Place, to: Place, edge: Edge) -> Ways {
        let (layer, number) = match edge {
            Edge::Ways(ways) => return ways,
            Edge::Free => (None, 0),
            Edge::Input(layer, number) => (Some(layer), number),
        };
        let mut ways = self.begin(to);
        let mut labels = Vec::new();
        for row in 0..self.states(from) {
            for column in 0..ways.columns {
                let input = layer.map(|layer| &self.costs.problem.layers[layer].inputs[number]);
                let time_fs = input.map_or(0, |input| self.costs.transfer_fs(input, row, column));
                let gpu_fs = layer.map_or(0, |_| time_fs * self.costs.counts[column] as u128);
                let value = Value { time_fs, gpu_fs, gpus: 0 };
                let label = Label { value, transfer_fs: time_fs, memory_bytes: 0, step: Step::Edge };
                self.look(&ways, (row, column), label, &mut labels);
                self.close_cell(&mut ways, &mut labels, to, column);
            }
        }
        self.end(&ways, self.states(from), Part::Edge);
        ways
    }

    /// Begins a list of ways to a place.
    fn begin(&mut self, to: Place) -> Ways {
        self.count_made += 1;
        Ways { number: self.count_made - 1, columns: self.states(to), ..Ways::default() }
    }

    /// Takes a way into a cell, unless the best that could come of it is out of bounds.
    fn look(&mut self, ways: &Ways, (row, column): (usize, usize), label: Label, labels: &mut Vec<Label>) {
        self.looked += 1;
        let fits = match self.aim {
            Aim::Best | Aim::Priced(_) => true,
            Aim::Within(bounds) => bounds.hold(ways.number, row * ways.columns + column, &label),
        };
        if fits {
            labels.push(label);
        }
    }

    /// Keeps what ways cost at a price.
    fn end(&mut self, ways: &Ways, rows: usize, part: Part) {
        let Aim::Priced(price) = self.aim else { return };
        let cells = (0..rows).flat_map(|row| (0..ways.columns).map(move |column| (row, column)));
        let best = |(row, column)| {
            ways.cell(row, column).first().map_or(f64::INFINITY, |label| at_price(label, price))
        };
        let costs = cells.map(best).collect();
        let nodes = match part {
            Part::Through { layer, .. } => (0..self.costs.counts.len())
                .map(|count| {
                    let choice =
                        self.costs.choices[layer][count].filter(|_| self.room_fs[layer][count].is_some());
                    choice.map_or(f64::INFINITY, |choice| at_price(&self.node(layer, count, choice), price))
                })
                .collect(),
            _ => Vec::new(),
        };
        self.made.push(Made { part, columns: ways.columns, costs, nodes });
    }

    /// Ends a cell with the best of these ways, and gives each its place.
    fn close_cell(&mut self, ways: &mut Ways, labels: &mut Vec<Label>, to: Place, column: usize) {
        let (room_fs, joins) = match to {
            Place::Layer(layer) => {
                (self.room_fs[layer][column], self.costs.problem.layers[layer].inputs.len() > 1)
            }
            Place::Source | Place::Sink => (Some(u128::MAX), false),
        };
        labels.retain(|label| room_fs.is_some_and(|room_fs| label.transfer_fs <= room_fs));
        let transfer = joins && room_fs != Some(u128::MAX);
        match self.aim {
            Aim::Best => self.thinned |= keep_best(labels, Matters { transfer, memory: false }, LABELS_MAX),
            Aim::Within(_) => {
                let most = if self.looked < LOOKED_MAX { CAPPED_LABELS_MAX } else { LABELS_MIN };
                self.thinned |= keep_best(labels, Matters { transfer, memory: true }, most);
            }
            Aim::Priced(price) => {
                let cheapest =
                    labels.iter().copied().min_by(|a, b| at_price(a, price).total_cmp(&at_price(b, price)));
                labels.clear();
                // Transfers of its parts were within their room; what they are together no price can know.
                labels.extend(cheapest.map(|label| Label { transfer_fs: 0, ..label }));
            }
        }
        for label in labels.drain(..) {
            let place = match label.step {
                Step::Edge => EDGE,
                step => {
                    self.kept.push(step);
                    (self.kept.len() - 1) as u32
                }
            };
            ways.labels.push(Label { step: Step::Kept(place), ..label });
        }
        ways.ends.push(ways.labels.len());
    }

    /// A layer by itself, at a count.
    fn node(&self, layer: usize, count: usize, choice: Choice) -> Label {
        let gpus = self.costs.counts[count] as u128;
        let time_fs = choice.time_fs();
        let memory_bytes = choice.memory_bytes - self.least_bytes[layer];
        let value = Value { time_fs, gpu_fs: time_fs * gpus, gpus };
        Label { value, transfer_fs: 0, memory_bytes, step: Step::Edge }
    }

    fn states(&self, place: Place) -> usize {
        match place {
            Place::Layer(_) => self.costs.counts.len(),
            Place::Source | Place::Sink => 1,
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
        Decided { counts: self.counts(label), time_fs: label.value.time_fs, thinned: self.thinned }
    }

    /// The counts of all layers on this way.
    fn counts(&self, label: Label) -> Vec<usize> {
        let mut counts = vec![0; self.costs.choices.len()];
        let mut open = vec![label.step];
        while let Some(step) = open.pop() {
            match step {
                Step::Edge => {}
                Step::Kept(at) => open.push(self.kept[at as usize]),
                Step::Both(one, other) => open.extend([Step::Kept(one), Step::Kept(other)]),
                Step::Through { before, layer, count, after } => {
                    counts[layer as usize] = count as usize;
                    open.extend([Step::Kept(before), Step::Kept(after)]);
                }
            }
        }
        counts
    }
}

/// The one neighbour of a place; `None` where there are more, or it is folded already.
fn only(neighbours: &BTreeMap<Place, BTreeSet<Place>>, place: Place) -> Option<Place> {
    let neighbours = neighbours.get(&place)?;
    neighbours.first().copied().filter(|_| neighbours.len() == 1)
}
