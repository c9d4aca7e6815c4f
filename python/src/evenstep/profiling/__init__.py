"""The profile of a model: the time of each layer by batch size."""
