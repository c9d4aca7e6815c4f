"""`evenstep run`: balances a training script without changing it.

::

    $ evenstep run -- torchrun --nproc-per-node=4 train.py

The ranks of the command load a hook through the environment. It watches the first iterations, in which all ranks have
the script's own batches. If the script reads one DataLoader with a DistributedSampler, computes one pass of one
DistributedDataParallel model for each batch, and its loss is a mean over samples, then all ranks together begin to use
shares. The samples of each iteration stay the same. For everything else the hook only measures, and shows at the end
how long ranks waited, what balancing would bring, and why it did not balance.

Nothing of this is active without the environment. Processes without a DistributedDataParallel model do
not change, nor do those that Python starts with ``-I``, ``-E`` or ``-S``.
"""

from evenstep.run_command.command import add_arguments

__all__ = ["add_arguments"]
