"""Hedged steps: each rank has a base batch that it can safely finish in time, and free ranks claim the rest in chunks.

- :mod:`~evenstep.settings.chunks`: tails without a predictor
- :mod:`evenstep._native`: the rules without I/O: one counter per pool, and when to leave the rest to other ranks
- :mod:`~evenstep.hedge.line`: additions on the store, made early by a thread
- :mod:`~evenstep.hedge.claims`: one rank's claims, iteration by iteration
- :mod:`~evenstep.hedge.watch`: compute time
- :mod:`~evenstep.hedge.trainee`: the model, with DDP's own reduction switched off
- :mod:`~evenstep.hedge.reduce`: the one all-reduce of an iteration
- :mod:`~evenstep.hedge.steps`: the iterations for a training loop
- :mod:`~evenstep.hedge.begin`: their options, and the store for claims

``docs/explanation/hedging.md`` explains the reasons and the benefit.
"""
