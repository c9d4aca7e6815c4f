"""Hedged steps: each rank has a base that it will surely do in time, and whoever is free claims the rest in chunks.

- :mod:`~evenstep.hedge.claim`: the pure rules: one counter for a pool, and when to leave the rest to the others
- :mod:`~evenstep.hedge.chunks`: tails without a predictor
- :mod:`~evenstep.hedge.seat`: what one rank has to do with a tail
- :mod:`~evenstep.hedge.line`: additions on the store, made by a thread ahead of need
- :mod:`~evenstep.hedge.claims`: one rank's claims, iteration by iteration
- :mod:`~evenstep.hedge.watch`: what computing takes
- :mod:`~evenstep.hedge.trainee`: the model, and DDP kept quiet
- :mod:`~evenstep.hedge.reduce`: the one all-reduce of an iteration
- :mod:`~evenstep.hedge.steps`: the iterations as a training loop sees them
- :mod:`~evenstep.hedge.begin`: what they wish for, and where ranks claim

``docs/hedging.md`` says why, and what it is worth.
"""
