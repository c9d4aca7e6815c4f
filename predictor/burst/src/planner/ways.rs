//! Candidates for parts of the graph by the counts at their ends, and the combination of parts.

use super::bounds::{Bounds, Part, PartCosts, at_price};
use super::costs::{Choice, Costs};
use super::label::{
    CAPPED_LABELS_MAX, Composition, Criteria, LABELS_MAX, LABELS_MIN, Label, Value, keep_undominated,
};
use super::problem::Limit;

/// Number of candidates examined under a cap after which only [`LABELS_MIN`] per cell are kept, so the result
/// may not be optimal.
const EXAMINED_MAX: usize = 4_000_000;

/// Index of the kept step that all edges share.
const EDGE: u32 = 0;

/// Objective of the search.
#[derive(Debug, Clone, Copy)]
pub(super) enum Objective<'a> {
    /// The best plan, regardless of memory.
    Best,
    /// The least cost if each byte above the layers' minimum costs this many femtoseconds. The limit is
    /// checked for each transfer alone, not for their sum at joins, so the cost is a lower bound.
    Priced(f64),
    /// The best plan within the bounds.
    Within(&'a Bounds),
}

/// A node of the graph: a layer, the source before the first layers, or the sink after the last. Source and
/// sink have one state and no cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum GraphNode {
    Source,
    Layer(usize),
    Sink,
}

/// Candidates by row and column. The candidates of a cell are contiguous.
#[derive(Default)]
pub(super) struct Candidates {
    /// Index of the part, which does not depend on the objective.
    number: usize,
    columns: usize,
    ends: Vec<usize>,
    pub labels: Vec<Label>,
}

impl Candidates {
    fn cell(&self, row: usize, column: usize) -> &[Label] {
        let at = row * self.columns + column;
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.labels[start..self.ends[at]]
    }
}

/// Combines candidates and keeps their composition.
pub(super) struct Combiner<'a> {
    costs: &'a Costs<'a>,
    /// Maximum time of the transfers into a layer, by layer and count; `None` if the limit forbids the count.
    transfer_max_fs: Vec<Vec<Option<u128>>>,
    /// Minimum memory by layer.
    least_bytes: Vec<u128>,
    aim: Objective<'a>,
    /// Costs of all parts; filled only for [`Objective::Priced`].
    pub made: Vec<PartCosts>,
    count_made: usize,
    looked: usize,
    kept: Vec<Composition>,
    /// Whether undominated candidates were dropped.
    pub dropped_candidates: bool,
}

impl<'a> Combiner<'a> {
    pub fn new(costs: &'a Costs, limit: Option<Limit>, aim: Objective<'a>) -> Self {
        let layers = 0..costs.choices.len();
        let rooms =
            |layer| (0..costs.counts.len()).map(|count| costs.transfer_max_fs(layer, count, limit)).collect();
        let bytes = |layer| costs.possible(layer).map(|(_, choice)| choice.memory_bytes).min().unwrap_or(0);
        Self {
            costs,
            transfer_max_fs: layers.clone().map(rooms).collect(),
            least_bytes: layers.map(bytes).collect(),
            aim,
            made: Vec::new(),
            count_made: 0,
            looked: 0,
            kept: vec![Composition::Edge],
            dropped_candidates: false,
        }
    }

    /// Returns the candidates of one edge. `input` is the layer and the index of its input; without it, the
    /// edge has no transfer.
    pub fn edge(&mut self, from: GraphNode, to: GraphNode, input: Option<(usize, usize)>) -> Candidates {
        let mut ways = self.begin(to);
        let mut labels = Vec::new();
        for row in 0..self.states(from) {
            for column in 0..ways.columns {
                let (mut time_fs, mut gpu_fs) = (0, 0);
                if let Some((layer, number)) = input {
                    let input = &self.costs.problem.layers[layer].inputs[number];
                    time_fs = self.costs.transfer_fs(input, row, column);
                    gpu_fs = time_fs * self.costs.counts[column] as u128;
                }
                let value = Value { time_fs, gpu_fs, gpus: 0 };
                let label = Label { value, transfer_fs: time_fs, memory_bytes: 0, step: Composition::Edge };
                self.add_candidate(&ways, (row, column), label, &mut labels);
                self.close_cell(&mut ways, &mut labels, to, column);
            }
        }
        self.end(&ways, self.states(from), Part::Edge);
        ways
    }

    /// Returns the candidates through a layer, from those `into` it and those `out` of it (series).
    pub fn through(
        &mut self,
        (from, into): (GraphNode, &Candidates),
        layer: usize,
        (to, out): (GraphNode, &Candidates),
    ) -> Candidates {
        let choices: Vec<(usize, Choice, u128)> = (0..self.costs.counts.len())
            .filter_map(|count| {
                Some((count, self.costs.choices[layer][count]?, self.transfer_max_fs[layer][count]?))
            })
            .collect();
        let mut ways = self.begin(to);
        let mut labels = Vec::new();
        for row in 0..self.states(from) {
            for column in 0..ways.columns {
                for &(count, choice, transfer_max_fs) in &choices {
                    let node = self.node(layer, count, choice);
                    for before in
                        into.cell(row, count).iter().filter(|label| label.transfer_fs <= transfer_max_fs)
                    {
                        for after in out.cell(count, column) {
                            let (Composition::Kept(a), Composition::Kept(b)) = (before.step, after.step)
                            else {
                                continue;
                            };
                            let step = Composition::Through {
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
                            self.add_candidate(&ways, (row, column), label, &mut labels);
                        }
                    }
                }
                self.close_cell(&mut ways, &mut labels, to, column);
            }
        }
        self.end(&ways, self.states(from), Part::Through { into: into.number, layer, out: out.number });
        ways
    }

    /// Returns the candidates of two edges between the same nodes (parallel).
    pub fn parallel(
        &mut self,
        from: GraphNode,
        to: GraphNode,
        one: &Candidates,
        other: &Candidates,
    ) -> Candidates {
        let mut ways = self.begin(to);
        let mut labels = Vec::new();
        for row in 0..self.states(from) {
            for column in 0..ways.columns {
                for a in one.cell(row, column) {
                    for b in other.cell(row, column) {
                        let (Composition::Kept(first), Composition::Kept(second)) = (a.step, b.step) else {
                            continue;
                        };
                        let label = Label {
                            value: a.value.plus(b.value),
                            transfer_fs: a.transfer_fs + b.transfer_fs,
                            memory_bytes: a.memory_bytes + b.memory_bytes,
                            step: Composition::Both(first, second),
                        };
                        self.add_candidate(&ways, (row, column), label, &mut labels);
                    }
                }
                self.close_cell(&mut ways, &mut labels, to, column);
            }
        }
        self.end(&ways, self.states(from), Part::Parallel(one.number, other.number));
        ways
    }

    /// Returns the counts of all layers of this candidate.
    pub fn counts(&self, label: Label) -> Vec<usize> {
        let mut counts = vec![0; self.costs.choices.len()];
        let mut open = vec![label.step];
        while let Some(step) = open.pop() {
            match step {
                Composition::Edge => {}
                Composition::Kept(at) => open.push(self.kept[at as usize]),
                Composition::Both(one, other) => {
                    open.extend([Composition::Kept(one), Composition::Kept(other)]);
                }
                Composition::Through { before, layer, count, after } => {
                    counts[layer as usize] = count as usize;
                    open.extend([Composition::Kept(before), Composition::Kept(after)]);
                }
            }
        }
        counts
    }

    /// Starts a part that ends at a node.
    fn begin(&mut self, to: GraphNode) -> Candidates {
        self.count_made += 1;
        Candidates { number: self.count_made - 1, columns: self.states(to), ..Candidates::default() }
    }

    /// Adds a candidate to a cell, unless no plan with it can satisfy the bounds.
    fn add_candidate(
        &mut self,
        ways: &Candidates,
        (row, column): (usize, usize),
        label: Label,
        labels: &mut Vec<Label>,
    ) {
        self.looked += 1;
        let fits = match self.aim {
            Objective::Best | Objective::Priced(_) => true,
            Objective::Within(bounds) => bounds.hold(ways.number, row * ways.columns + column, &label),
        };
        if fits {
            labels.push(label);
        }
    }

    /// Stores the costs of a part for [`Objective::Priced`].
    fn end(&mut self, ways: &Candidates, rows: usize, part: Part) {
        let Objective::Priced(price) = self.aim else { return };
        let cells = (0..rows).flat_map(|row| (0..ways.columns).map(move |column| (row, column)));
        let best = |(row, column)| {
            ways.cell(row, column).first().map_or(f64::INFINITY, |label| at_price(label, price))
        };
        let costs = cells.map(best).collect();
        let nodes = match part {
            Part::Through { layer, .. } => (0..self.costs.counts.len())
                .map(|count| {
                    let choice = self.costs.choices[layer][count]
                        .filter(|_| self.transfer_max_fs[layer][count].is_some());
                    choice.map_or(f64::INFINITY, |choice| at_price(&self.node(layer, count, choice), price))
                })
                .collect(),
            _ => Vec::new(),
        };
        self.made.push(PartCosts { part, columns: ways.columns, costs, nodes });
    }

    /// Completes a cell with the best of these candidates and assigns each an index.
    fn close_cell(&mut self, ways: &mut Candidates, labels: &mut Vec<Label>, to: GraphNode, column: usize) {
        let (transfer_max_fs, joins) = match to {
            GraphNode::Layer(layer) => {
                (self.transfer_max_fs[layer][column], self.costs.problem.layers[layer].inputs.len() > 1)
            }
            GraphNode::Source | GraphNode::Sink => (Some(u128::MAX), false),
        };
        labels.retain(|label| {
            transfer_max_fs.is_some_and(|transfer_max_fs| label.transfer_fs <= transfer_max_fs)
        });
        let transfer = joins && transfer_max_fs != Some(u128::MAX);
        match self.aim {
            Objective::Best => {
                self.dropped_candidates |=
                    keep_undominated(labels, Criteria { transfer, memory: false }, LABELS_MAX);
            }
            Objective::Within(_) => {
                let most = if self.looked < EXAMINED_MAX { CAPPED_LABELS_MAX } else { LABELS_MIN };
                self.dropped_candidates |=
                    keep_undominated(labels, Criteria { transfer, memory: true }, most);
            }
            Objective::Priced(price) => {
                let cheapest =
                    labels.iter().copied().min_by(|a, b| at_price(a, price).total_cmp(&at_price(b, price)));
                labels.clear();
                // Each transfer alone satisfies the limit; their sum is not tracked here, so that the cost
                // stays a lower bound.
                labels.extend(cheapest.map(|label| Label { transfer_fs: 0, ..label }));
            }
        }
        for label in labels.drain(..) {
            let place = match label.step {
                Composition::Edge => EDGE,
                step => {
                    self.kept.push(step);
                    (self.kept.len() - 1) as u32
                }
            };
            ways.labels.push(Label { step: Composition::Kept(place), ..label });
        }
        ways.ends.push(ways.labels.len());
    }

    /// Returns the candidate of a single layer at a count.
    fn node(&self, layer: usize, count: usize, choice: Choice) -> Label {
        let gpus = self.costs.counts[count] as u128;
        let time_fs = choice.time_fs();
        let memory_bytes = choice.memory_bytes - self.least_bytes[layer];
        let value = Value { time_fs, gpu_fs: time_fs * gpus, gpus };
        Label { value, transfer_fs: 0, memory_bytes, step: Composition::Edge }
    }

    fn states(&self, place: GraphNode) -> usize {
        match place {
            GraphNode::Layer(_) => self.costs.counts.len(),
            GraphNode::Source | GraphNode::Sink => 1,
        }
    }
}
