"""Sizes of the trainings, and the required accuracy."""

SAMPLES, GLOBAL_BATCH, FEATURES = 256, 32, 16

#: Accuracy of parameters in float64. GPUs add in another order.
TOLERANCE = 1e-10
