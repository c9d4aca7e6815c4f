//! Long texts of `--help`.

/// Description of the command.
pub const LONG_ABOUT: &str = "\
Plan the number of GPUs for each layer from a measured profile: burst parallelism (DeepPool, arXiv 2112.10065).

If the global batch cannot grow, more GPUs mean smaller local batches, and some layers no longer get faster. A burst-parallel
plan gives each layer only the GPUs that it can use. Activations and gradients move between layers with different GPU counts.
The command prints the fastest plan within the limits. --amplification limits the GPU time of a layer to a multiple of its GPU
time on one GPU, so that GPUs that contribute little stay free for other work.

The profile is a JSON object with a list of layers in execution order. Each layer has these fields:

  name              layer name; must be unique if another layer reads it.
  inputs            names of the layers that it reads [default: the previous layer].
  compute_us        forward and backward time on one GPU, in microseconds by local batch: {\"1\": 120.5, \"8\": 310.2}.
  parameters        number of parameters (4 bytes each).
  outputs           output values per sample (4 bytes each).
  activation_bytes  bytes kept for the backward pass, by local batch; used by --memory-bytes.

Explicit tables can replace compute_us: cost_us is the time of compute and gradient sum by GPU count, and edge_us is the transfer
time from the previous layer by \"from->to\". The object network, next to layers, has bandwidth_bytes_per_s, latency_us and
all_reduce (ring or tree). Other keys are ignored. `evenstep-trainer profile` and Python's evenstep.profile write profiles.

The output lists the GPUs, start and times in microseconds of each layer. Amplification is the GPU time of the layer divided by its
GPU time on one GPU (free: exempt from the limit). Below follow data parallelism, one GPU and the trade-off by limit.

Exit status: 0 success, 1 invalid profile or no plan within the limits, 2 invalid command line.";

/// Example command lines.
pub const EXAMPLES: &str = "\
Examples:
  Eight GPUs, each layer at most twice its GPU time on one GPU, and an HTML report with the timeline:
    evenstep-predictor plan --profile vgg16.json --gpus 8 --global-batch 32 --amplification 2 --report plan.html

  Three unequal GPUs on a slow network, with JSON output:
    evenstep-predictor plan --profile mlp.json --speeds 1,1,0.5 --counts 1,2,3 --global-batch 96 --bandwidth 1.25e9 --latency-us 50 --json";
