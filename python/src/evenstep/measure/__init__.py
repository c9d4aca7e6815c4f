"""Measurements of one rank: its device, its compute time, and the causes that slow it (`drivers`)."""
