"""Unequal GPUs and CPUs that finish every step together."""
