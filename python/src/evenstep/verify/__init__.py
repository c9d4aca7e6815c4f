"""`evenstep verify`: whether a script trains under uneven batches as it does in one process.

::

    $ evenstep verify train.py --epochs 1

The script runs three times, a few iterations each: in three processes under plans that are as uneven as can be (one of
them leaves a rank without any samples, and they change with every iteration), and twice in one process with the whole
batch. It is not changed: whatever comes before the optimizer's step belongs to what is verified, be it AMP, clipping,
accumulation, Lightning or a loop of your own. What is compared:

- samples: each of an iteration came exactly once over all ranks, and they are those of the one process;
- contents: a sample is the same wherever it is read (a ``random_split`` without a seed is found here);
- ranks: they all hold the same gradients and parameters after each step;
- gradients: those that the optimizer gets are the one process's, parameter for parameter, relative to the largest entry
  (float64 1e-12, float32 1e-5, float16 2e-2, bfloat16 1e-1; ``--tolerance`` says otherwise).

Each step of the one process begins with the parameters that the ranks have, so every iteration is a check of its own,
and scripts without a seed compare as well. What is random in a step (dropout, augmentation) can not be compared: the
second run in one process has other random numbers, and if that alone changes the gradient it is said, and nothing is
blamed. ``--plain`` switches dropout off and lets batch norm use its running statistics, to compare the rest.

Exit status: 0 agrees, 1 differs, 2 nothing can be said (the script ended with an error, whose output is shown; or its
gradient is another one each time). CPUs only, over Gloo, unless ``--device cuda`` gives each rank a GPU. No predictor
is asked. The script ends after the iterations that are looked at; what it writes before, it writes. Gradients and
parameters of each step are kept in the folder for temporary files until the end: up to four times the model for each
iteration.
"""

from evenstep.verify.command import add_arguments
from evenstep.verify.run import verify
from evenstep.verify.verdict import Verdict

__all__ = ["Verdict", "add_arguments", "verify"]
