"""A started run on one rank: its iterations, and the batches that the training loop gets."""
