"""The checks of `scripts/gpu-check`: what evenstep promises on GPUs, run by pytest on the GPUs of this machine.

`test_checks.py` has the checks and `ranks.py` the programs of their ranks. `docs/how-to/gpu.md` describes them.
"""
