//! The long words of `--help`.

/// What the command does.
pub const LONG_ABOUT: &str = "\
Would evenstep be worth it? Step times under several policies, on recorded workers or a described cluster.

Every policy lives through the same iterations, row by row of the traces, cut to the shortest. It shares out the global batch
knowing what was known before the iteration; each worker then takes its share at the speed that was recorded, whatever the
batch (--fixed-share and --saturation say how it depends on the batch), and the step lasts as long as the slowest. Only
iterations after the warm-up count.

  even                 equal shares: what training without evenstep does
  static_proportional  by the speeds of the warm-up, for ever
  last_value           by the speeds of the iteration before
  ema                  by a moving average of the speeds (--ema)
  base                 the service's own forecasts, networks and plans; everything is given
  evenstep             the same, hedged: part of the batch is left to a shared tail where that is expected to be worth it; claims
                       cost --claim-cost each, wait for each other (--claim-rate), and a worker is as fast in each chunk as in
                       its whole iteration
  oracle               the shortest possible step: it knows what each worker will do

What is printed: mean and p95 of the step time in seconds; speed-up: the mean step of even over this one's; regret: the mean step
over the oracle's, less 1; wait: seconds that a worker waits in a step for the slowest, on average; changes: iterations in which
any share, before any claim, changed; claims: seconds that a worker spends on claims in a step, on average; chunks of the tail
in a step. The last line says whether it is worth it, against an even split and against one without the worker that was
slowest in the warm-up, each of the same global batch.

The same seed gives the same numbers. Exit status: 0 done, 1 the data cannot be used, 2 the command line cannot.";

/// How it is called.
pub const EXAMPLES: &str = "\
Examples:
  Two recorded workers, and a page with charts:
    evenstep-predictor simulate --trace steady.csv bursty.csv --global-batch 512 --report out.html

  Sixteen workers made of a long table of two, as JSON:
    evenstep-predictor simulate --trace walk.csv --id worker --workers 16 --json

  A cluster, described:
    evenstep-predictor simulate --cluster cluster.toml --iterations 10000 --global-batch 4096

  cluster.toml, where all but name, count and speed may be left out:
    [[group]]
    name = \"old\"
    count = 4
    speed = 800.0          # samples per second, beyond the fixed cost
    fixed_s = 0.01         # seconds that any batch takes
    saturation = 16        # smaller batches take no less time
    noise = 0.05           # standard deviation of the log of the speed
    joins = 0              # the first iteration they take part in
    leaves = 9000          # the first they do not
    [group.slow_downs]     # each worker for itself
    share = 0.2            # of the time
    factor = 2.5           # times as long
    mean_iterations = 40.0 # they last on average

    [[group]]
    name = \"new\"
    count = 4
    speed = 2000.0";
