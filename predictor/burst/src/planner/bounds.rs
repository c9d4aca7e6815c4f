//! Bounds for a search under a memory cap, from what ways cost at a price for memory.

use super::label::Label;

/// What ways through a part of the graph cost, in femtoseconds, at a price.
pub(super) struct Made {
    pub part: Part,
    pub columns: usize,
    /// By row and column; infinite: there is none.
    pub costs: Vec<f64>,
    /// Of the layer that is led through, by count.
    pub nodes: Vec<f64>,
}

/// What a part is made of; numbers are places in the list of all that are made.
pub(super) enum Part {
    Edge,
    Through { into: usize, layer: usize, out: usize },
    Beside(usize, usize),
}

/// What ways must keep.
#[derive(Debug)]
pub(super) struct Bounds {
    pub price: f64,
    pub spare_bytes: u128,
    /// By part and cell: what is cheapest outside of it.
    pub outside: Vec<Vec<f64>>,
    /// Time and price of what is looked for, at most.
    pub most: f64,
}

impl Bounds {
    /// Whether a plan with this way through a cell of a part may keep them.
    pub fn hold(&self, part: usize, cell: usize, label: &Label) -> bool {
        let outside = self.outside.get(part).and_then(|cells| cells.get(cell)).copied().unwrap_or(0.0);
        label.memory_bytes <= self.spare_bytes && at_price(label, self.price) + outside <= self.most
    }
}

/// Time and price of a way, in femtoseconds.
pub(super) fn at_price(label: &Label, price: f64) -> f64 {
    label.value.time_fs as f64 + price * label.memory_bytes as f64
}

/// What is cheapest outside of each part, by cell.
pub(super) fn outside(made: &[Made]) -> Vec<Vec<f64>> {
    let mut outside: Vec<Vec<f64>> = made.iter().map(|made| vec![f64::INFINITY; made.costs.len()]).collect();
    if let Some(whole) = outside.last_mut() {
        whole.fill(0.0);
    }
    for (number, this) in made.iter().enumerate().rev() {
        let around = std::mem::take(&mut outside[number]);
        match this.part {
            Part::Edge => {}
            Part::Beside(one, other) => {
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
