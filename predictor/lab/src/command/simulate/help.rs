//! Long help texts of `simulate`.

/// Description of the command.
pub const LONG_ABOUT: &str = "\
Compare step times of allocation policies on recorded workers or a described cluster.

Every policy runs the same iterations: those of which every worker has a row. Rows of workers belong to the same iteration if they
have the same iteration, or the nearest time (--time), or the same number in tables without both. A policy splits the global batch
with the information available before the iteration. Each worker then computes its share at the recorded speed. The speed does not
depend on the batch unless --fixed-share is given. The step lasts as long as the slowest worker. Only iterations
after the warm-up count.

  even                 equal shares, as in training without evenstep.
  static_proportional  proportional to the mean speeds of the warm-up.
  last_value           proportional to the speeds of the previous iteration.
  ema                  proportional to an exponential moving average of the speeds, factor 0.3.
  base                 forecasts, networks and plans of the service, without a shared tail.
  evenstep             base with hedged steps: part of the batch goes to a shared tail if that is expected to save time. A claim
                       costs 0.5 ms and waits for other claims (50,000 per second). A worker has the same speed in each chunk
                       as in its whole iteration.
  oracle               the shortest possible step, with knowledge of the actual speeds.

Columns of the output:

  mean s, p95 s        mean and 95th percentile of the step time in seconds.
  gain             mean step of even divided by the mean step of the policy.
  regret               mean step divided by the oracle's, minus 1.
  wait s               mean seconds per step that a worker waits for the slowest.
  changes              iterations in which any share changed, before claims.
  claims s             mean seconds per step that a worker spends on claims.
  chunks               mean number of chunks of the shared tail per step.

The lines below the table compare the ways to run with an even split at the same global batch. The ways are evenstep with fixed
shares (policy base; job.loader of the Python package), evenstep with hedged steps (job.steps), and an even split without the
slowest worker of the warm-up. The interval of 90 % shows how the ratio varies between parts of the run. The last line recommends
the simplest way that no other beats by 1 % of the step; a comparison whose interval contains 1x does not count. A trace with one
batch size cannot show which part of a time depends on the batch. So the line above the last one is an upper bound of the gain if
half of the time of an even share did not (--fixed-share).

The same seed gives the same results. Exit status: 0 success, 1 unusable data, 2 invalid command line.";

/// Examples for `--help`.
pub const EXAMPLES: &str = "\
Examples:
  Two recorded workers, with an HTML report.
    evenstep-predictor simulate --trace steady.csv bursty.csv --global-batch 512 --report out.html

  Sixteen workers made from a table of two, as JSON.
    evenstep-predictor simulate --trace walk.csv --id worker --workers 16 --json

  A described cluster.
    evenstep-predictor simulate --cluster cluster.toml --iterations 10000 --global-batch 4096

  cluster.toml; only name, count and speed are required.
    [[group]]
    name = \"old\"
    count = 4
    speed = 800.0          # samples per second, without the fixed time.
    fixed_s = 0.01         # seconds per batch of any size
    saturation = 16        # smaller batches take as long as this one.
    noise = 0.05           # standard deviation of the logarithm of the speed.
    joins = 0              # first iteration as members
    leaves = 9000          # first iteration after they leave.
    [group.slow_downs]     # independent for each worker.
    share = 0.2            # of all iterations
    factor = 2.5           # factor on the time.
    mean_iterations = 40.0 # mean duration

    [[group]]
    name = \"new\"
    count = 4
    speed = 2000.0";
