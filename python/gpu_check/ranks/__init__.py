"""The programs of the ranks: `rank(seat)` of each module returns a result for the check of the same name."""
