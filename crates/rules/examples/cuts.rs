//! Distance of cuts from a lower bound: `cargo run --release -p evenstep-rules --example cuts`.
//!
//! Compares longest first without and with refinement, over 200 draws.

#![allow(clippy::expect_used, clippy::print_stdout, reason = "an example that prints")]

#[path = "../tests/integration/draws/mod.rs"]
mod draws;

use draws::{Draw, draw};
use evenstep_rules::{Cut, PassRules};

const DRAWS: u64 = 200;

fn finish(loads: &[f64], weights: &[u64]) -> f64 {
    loads.iter().zip(weights).map(|(load, &weight)| load / weight as f64).fold(0.0, f64::max)
}

fn longest_first(drawn: &Draw) -> f64 {
    let mut costs = drawn.costs.clone();
    costs.sort_by(|a, b| b.total_cmp(a));
    let mut loads = vec![0.0; drawn.weights.len()];
    for cost in costs {
        let end = |part: usize| (loads[part] + cost) / drawn.weights[part] as f64;
        let first = (0..loads.len()).min_by(|&a, &b| end(a).total_cmp(&end(b)));
        loads[first.expect("parts")] += cost;
    }
    finish(&loads, &drawn.weights)
}

fn main() {
    println!("| samples | sigma | cost | speeds | longest first | refined |");
    println!("|---:|---:|---|---|---:|---:|");
    for (samples, sigma, quadratic) in [
        (64, 0.5, 0.0),
        (64, 0.8, 0.0),
        (64, 1.0, 1.0 / 8192.0),
        (512, 0.5, 0.0),
        (512, 0.8, 0.0),
        (512, 1.0, 1.0 / 8192.0),
    ] {
        for parts in [None, Some(8)] {
            let mut columns = [const { Vec::new() }; 2];
            for seed in 0..DRAWS {
                let drawn = draw(seed, samples, sigma, quadratic, parts);
                let cut = Cut::new(&drawn.costs, &drawn.weights, &PassRules::default()).expect("valid rules");
                let loads: Vec<f64> = cut.parts().iter().map(|part| part.cost).collect();
                let refined = finish(&loads, &drawn.weights);
                let bound = refined / (1.0 + cut.excess());
                for (column, finish) in columns.iter_mut().zip([longest_first(&drawn), refined]) {
                    column.push(100.0 * (finish / bound - 1.0));
                }
            }
            let cells = columns.map(|column| {
                let mean = column.iter().sum::<f64>() / column.len() as f64;
                format!("{mean:.3} / {:.3}", column.iter().copied().fold(0.0, f64::max))
            });
            let cost = if quadratic > 0.0 { "L + L^2 / 8192" } else { "L" };
            let speeds = if parts.is_some() { "8 random" } else { "1:2:2:4" };
            println!("| {samples} | {sigma} | {cost} | {speeds} | {} |", cells.join(" | "));
        }
    }
}
