use std::collections::BTreeMap;

use super::*;

mod errors;
mod front;
mod profile;
mod toy;
mod vgg16;
mod vgg16_table;

/// Returns the GPU count of each layer.
fn gpus(plan: &Planned) -> Vec<usize> {
    plan.layers.iter().map(|layer| layer.gpus).collect()
}

/// Returns three layers on up to four GPUs, with 0.5 us for each change of the count.
fn toy(amplification: f64) -> Problem {
    let changes = || {
        let pairs = [1, 2, 4].into_iter().flat_map(|from| [1, 2, 4].map(|to| (from, to)));
        let cost = |(from, to): (usize, usize)| ((from, to), if from == to { 0.0 } else { 0.5 });
        pairs.map(cost).collect::<BTreeMap<_, _>>()
    };
    let table = [("A", [8.0, 4.0, 2.0]), ("B", [6.0, 5.0, 4.5]), ("C", [4.0, 2.0, 1.0])];
    let layer = |(at, (name, cost_us)): (usize, (&str, [f64; 3]))| {
        let previous = at.checked_sub(1).map(|layer| Input { layer, edge_us: Some(changes()) });
        Layer::table(name, previous, [1, 2, 4].into_iter().zip(cost_us).collect())
    };
    let layers = table.into_iter().enumerate().map(layer).collect();
    let limit = Some(Limit { amplification, exempt_below_us: 0.0 });
    Problem { limit, ..Problem::new(layers, 4, 32) }
}
