//! The meaning of all values in the results.

/// The names of all values in the results, and their meaning.
pub const DEFINITIONS: [(&str, &str); 15] = [
    ("run", "name of the record"),
    ("warm-up", "the first 5 iterations of each policy; they appear in charts but in no other result"),
    (
        "step",
        "time from the start of an iteration to the end of the optimizer step, on rank 0; mean, p50 and p95 over iterations",
    ),
    ("samples/s", "throughput: samples divided by the sum of the step times"),
    ("gain", "throughput divided by the throughput with even batches in the same record"),
    (
        "ideal",
        "ideal step time: in each iteration, the global batch divided by the sum of the workers' measured speeds; a \
                worker without samples adds no speed",
    ),
    (
        "of ideal",
        "throughput divided by the ideal throughput, which is samples divided by the sum of the ideal step times",
    ),
    (
        "like for like",
        "share of the ideal, divided by the share with even batches: the gain if the workers had been equally fast \
                under both policies; a changing load never affects both equally",
    ),
    (
        "over base",
        "like for like, compared with base instead of even batches: the gain of a shared tail with the same forecasts",
    ),
    (
        "waiting",
        "time that workers waited at the barrier for the slowest worker, as a share of step time times workers",
    ),
    ("claiming", "time that workers waited for responses to claims on a shared tail, as the same share"),
    (
        "chunking",
        "extra compute time of chunks, as the same share, compared with the worker's speed on its base batch in the \
                same step. A speed change within the step adds to it or reduces it",
    ),
    ("chunks", "mean number of chunks of the shared tail that all workers together claimed in a step"),
    ("final loss", "loss of the network at the end of the run, on held-out samples"),
    (
        "service",
        "time of one /allocate inside the predictor, from its server-timing header; the round trip is measured on rank 0",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use evenstep_trainer::progress::statistics::WARM_UP;

    #[test]
    fn the_definitions_name_the_warm_up_that_is_used() {
        assert!(DEFINITIONS[1].1.contains(&format!("first {WARM_UP} ")));
    }
}
