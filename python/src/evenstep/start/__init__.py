"""The start and the end of a run: ranks agree, get their first plans, and start an embedded predictor (`local`)."""
