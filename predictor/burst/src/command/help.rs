//! The long words of `--help`.

/// What the command does.
pub const LONG_ABOUT: &str = "\
How many GPUs should each layer get? Burst-parallel plans from measured layers (DeepPool, arXiv 2112.10065).

Where the global batch cannot grow, many GPUs make small local batches, and some layers gain nothing by more of them. A
burst-parallel plan gives each layer the GPUs that it can use; between layers of unlike counts activations and gradients move.
The plan is the fastest that keeps the rules: --amplification bounds what a layer may cost in GPU time, as a multiple of what it
costs on one GPU, so that GPUs that bring little stay free for other work.

The profile is JSON with a list of layers, in the order in which they run:

  name          for people, and in inputs of other layers
  inputs        names of the layers that it reads; left out: the layer before
  compute_us    microseconds of forward and backward on one GPU by local batch: {\"1\": 120.5, \"8\": 310.2}
  parameters    of four bytes, and outputs: values of four bytes handed on for each sample
  activation_bytes  kept for the backward pass, by local batch; for --memory-bytes

or, instead of compute_us, explicit tables: cost_us by GPU count, compute and gradient sum together, and edge_us by \"from->to\", the
transfer from the layer before. Beside the layers, network has bandwidth_bytes_per_s, latency_us and all_reduce (ring or tree).
Other keys are let be. `evenstep-trainer profile` and Python's evenstep.profile write profiles.

What is printed: for each layer its GPUs, when it begins, and its times in microseconds; amplification: its GPU time over that on one
GPU (free: the limit does not bind it). Then the plan beside data parallelism and one GPU, and what each limit would buy.

Exit status: 0 done, 1 the profile cannot be used or no plan keeps the rules, 2 the command line cannot.";

/// How it is called.
pub const EXAMPLES: &str = "\
Examples:
  Eight GPUs, no layer over twice its GPU time on one, and a page with the timeline:
    evenstep-predictor plan --profile vgg16.json --gpus 8 --global-batch 32 --amplification 2 --report plan.html

  Three unequal GPUs on a slow network, as JSON:
    evenstep-predictor plan --profile mlp.json --speeds 1,1,.5 --counts 1,2,3 --global-batch 96 --bandwidth 1.25e9 --latency-us 50 --json";
