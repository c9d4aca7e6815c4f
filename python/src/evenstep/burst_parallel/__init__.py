"""Burst-parallel training: each block of a model runs on its own ranks (``docs/explanation/burst.md``)."""
