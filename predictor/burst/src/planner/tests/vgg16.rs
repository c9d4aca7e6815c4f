//! VGG-16 on 8 GPUs with 32 samples, compared with the plans of an exhaustive search.

use super::vgg16_table::{CHANGES, PLANS, TABLE};
use super::*;

fn vgg16(limit: f64) -> Problem {
    let layer = |(at, (name, cost_us, edge_us)): (usize, &(&str, [f64; 4], [f64; 6]))| {
        let both = |((a, b), us): (&(usize, usize), &f64)| [((*a, *b), *us), ((*b, *a), *us)];
        let edge_us = CHANGES.iter().zip(edge_us).flat_map(both).collect();
        let previous = at.checked_sub(1).map(|layer| Input { layer, edge_us: Some(edge_us) });
        Layer::table(*name, previous, [1, 2, 4, 8].into_iter().zip(*cost_us).collect())
    };
    let layers = TABLE.iter().enumerate().map(layer).collect();
    let limit = Limit { amplification: limit, exempt_below_us: 300.0 };
    let limit = limit.amplification.is_finite().then_some(limit);
    Problem { limit, ..Problem::new(layers, 8, 32) }
}

#[test]
fn plans_are_those_of_a_search_over_all_choices() {
    for (limit, iteration_us, gpu_us, runs) in PLANS {
        let plan = plan(&vgg16(limit)).unwrap();
        let expected: Vec<usize> = runs.iter().flat_map(|(layers, gpus)| vec![*gpus; *layers]).collect();
        assert_eq!(gpus(&plan), expected, "limit {limit}");
        assert!((plan.iteration_us - iteration_us).abs() < 1e-6, "limit {limit}: {}", plan.iteration_us);
        assert!((plan.gpu_us - gpu_us).abs() < 1e-6, "limit {limit}: {}", plan.gpu_us);
        let (data_parallel, one_gpu) = (plan.data_parallel.unwrap(), plan.one_gpu.unwrap());
        assert!((data_parallel.iteration_us - 12_032.336).abs() < 1e-6);
        assert!((data_parallel.gpu_us - 8.0 * 12_032.336).abs() < 1e-6);
        assert!((one_gpu.iteration_us - 60_506.045).abs() < 1e-6);
    }
}
