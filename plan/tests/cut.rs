//! Laws and quality of the cut.

mod draws;
use draws::draw;
use evenstep_plan::{Cut, PassRules};

#[test]
fn explore() {
    for (n, limit) in [(512, 0.002), (64, 0.003), (1000, 0.002)] {
        for sigma in [0.5, 0.8, 1.0] {
            for q in [0.0, 1.0 / 8192.0] {
                for parts in [None, Some(8)] {
                    let e: Vec<f64> = (0..400)
                        .map(|seed| {
                            let d = draw(seed, n, sigma, q, parts);
                            Cut::new(&d.costs, &d.weights, &PassRules::default()).unwrap().excess()
                        })
                        .collect();
                    let mean = e.iter().sum::<f64>() / e.len() as f64;
                    let max = e.iter().copied().fold(0.0, f64::max);
                    let over = e.iter().filter(|e| **e > limit).count();
                    println!(
                        "{n} {sigma} {q:.6} {parts:?}: mean {:.4} max {:.4} % over {over}",
                        mean * 100.0,
                        max * 100.0
                    );
                }
            }
        }
    }
}
