"""`evenstep verify`: checks that a script trains with uneven batches as it does in one process.

::

    $ evenstep verify train.py

The script runs three times for a few iterations of two epochs: once in three processes with very uneven plans, and
twice in one process with the whole batch. Longer epochs end after half of these iterations. The plan changes with every
iteration. Two plans give a rank a single sample, or none if the losses are sums. The script is not changed, so
everything before the optimizer's step is verified: AMP, clipping, accumulation, Lightning or your own loop. The command
compares:

- samples: each sample of an iteration occurred exactly once over all ranks, and one process read the same samples;
- contents: a sample is the same on every rank (this detects a ``random_split`` without a seed);
- ranks: all ranks have the same gradients and parameters after each step;
- gradients: the optimizer gets the gradients of one process, for each parameter. The tolerance is relative to the
  largest entry: at least 1e-12 in float64, 1e-5 in float32, 2e-2 in float16 and 1e-1 in bfloat16. In float64 and
  float32 it is ten times the model's rounding error, if that is more. ``--tolerance`` replaces it.

Each step of the one process starts with the parameters of the ranks. So every iteration is an independent check, and
scripts without a seed can be compared too. Random parts of a step (dropout, augmentation) cannot be compared. The
second run in one process uses other random numbers, and reads each batch in reverse order. If only rounding errors
change, they give the tolerance. If the gradient changes by more, the command reports it and gives no verdict.
``--plain`` switches dropout off and makes batch norm use its running statistics, to compare the rest.

Exit status: 0 agrees, 1 differs, 2 no verdict. There is no verdict if the script failed (its output is shown), or if
its gradient changes from run to run.

The ranks use CPUs and Gloo, unless ``--device cuda`` gives each rank a GPU. No predictor is used. The script ends after
the compared iterations; files that it wrote until then remain. Gradients and parameters of each step are kept in the
temporary folder until the end: up to four times the model size per iteration.
"""

from evenstep.verify.command import add_arguments
from evenstep.verify.run import verify
from evenstep.verify.verdict import Verdict

__all__ = ["Verdict", "add_arguments", "verify"]
