//! Bounds for the search under a memory cap, from candidate costs with a price per byte of memory.

use super::label::Label;

/// Costs of the candidates for a part of the graph at a memory price, in femtoseconds.
pub(super) struct PartCosts {
    pub part: Part,
    pub columns: usize,
    /// Lowest cost by row and column; infinite if there is no candidate.
    pub costs: Vec<f64>,
    /// Cost of the layer inside a [`Part::Through`], by count.
    pub nodes: Vec<f64>,
}

/// Composition of a part; numbers are indices into the list of all parts.
pub(super) enum Part {
    Edge,
    Through { into: usize, layer: usize, out: usize },
    Parallel(usize, usize),
}

/// Bounds that candidates must satisfy.
#[derive(Debug)]
pub(super) struct Bounds {
    pub price: f64,
    pub spare_bytes: u128,
    /// Lowest cost outside each part, by part and cell.
    pub outside: Vec<Vec<f64>>,
    /// Maximum cost of a plan, time plus priced memory.
    pub most: f64,
}

impl Bounds {
    /// Returns whether a plan with this candidate for a cell of a part can satisfy the bounds.
    pub fn hold(&self, part: usize, cell: usize, label: &Label) -> bool {
        let outside = self.outside.get(part).and_then(|cells| cells.get(cell)).copied().unwrap_or(0.0);
        label.memory_bytes <= self.spare_bytes && at_price(label, self.price) + outside <= self.most
    }
}

/// Returns the cost of a candidate in femtoseconds: time plus priced memory.
pub(super) fn at_price(label: &Label, price: f64) -> f64 {
    label.value.time_fs as f64 + price * label.memory_bytes as f64
}

/// Returns the lowest cost outside each part, by part and cell.
pub(super) fn outside(made: &[PartCosts]) -> Vec<Vec<f64>> {
    let mut outside: Vec<Vec<f64>> = made.iter().map(|made| vec![f64::INFINITY; made.costs.len()]).collect();
    if let Some(whole) = outside.last_mut() {
        whole.fill(0.0);
    }
    for (number, this) in made.iter().enumerate().rev() {
        let around = std::mem::take(&mut outside[number]);
        match this.part {
            Part::Edge => {}
            Part::Parallel(one, other) => {
                for (cell, around) in around.iter().enumerate() {
                    outside[one][cell] = around + made[other].costs[cell];
                    outside[other][cell] = around + made[one].costs[cell];
                }
            }
            Part::Through { into, out, .. } => {
                for (cell, around) in around.iter().enumerate() {
                    let (row, column) = (cell / this.columns, cell % this.columns);
                    for (count, node) in this.nodes.iter().enumerate() {
                        let (before, after) = (row * this.nodes.len() + count, count * this.columns + column);
                        let through = around + node;
                        let least = |cost: &mut f64, other: f64| *cost = cost.min(other);
                        least(&mut outside[into][before], through + made[out].costs[after]);
                        least(&mut outside[out][after], through + made[into].costs[before]);
                    }
                }
            }
        }
        outside[number] = around;
    }
    outside
}
