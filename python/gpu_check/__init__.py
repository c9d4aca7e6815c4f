"""The checks of `scripts/gpu-check`: what evenstep promises on GPUs, run on the GPUs of this machine.

Each check is one module of `checks`, and runs in its own processes, with a deadline. Programs of ranks are in `ranks`.
`docs/how-to/gpu.md` describes the checks.
"""
