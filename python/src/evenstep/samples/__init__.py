"""The samples of each iteration: their order, their costs, and the share of each rank."""
