"""The delay of iterations whose samples are cut by a wrong model of their work.

    python benchmarks/wrong_work.py

Draws log-normal lengths L, cuts them by the assumed work and by the true work L + L^2 / scale, and compares when the
last rank finishes by the true work.
"""

import argparse
import math
import random
from collections.abc import Callable

from evenstep._native import Cut

MEDIAN, LONGEST = 512, 32_768
#: Assumptions about the part with L^2, and its factor.
ASSUMED = (("L", 0.0), ("half of the part with L^2", 0.5), ("twice the part with L^2", 2.0))


def finish(lengths: list[int], speeds: list[int], assumed: Callable[[int], float], true: list[float]) -> float:
    """Returns when the last rank finishes."""
    cut = Cut(
        [assumed(length) for length in lengths],
        speeds,
        lengths=None,
        max_tokens=None,
        padded=False,
        least=1,
        passes=1,
        is_equal=False,
    )
    return max(
        sum(true[at] for positions in cut.part(rank) for at in positions) / speed for rank, speed in enumerate(speeds)
    )


def late(sigma: float, scale: float, factor: float, draws: int, *, is_random: bool) -> list[float]:
    """Returns the lateness of each draw in per cent."""
    found = []
    for seed in range(draws):
        drawn = random.Random(seed)
        lengths = [min(LONGEST, max(1, round(MEDIAN * math.exp(drawn.gauss(0, sigma))))) for _ in range(512)]
        speeds = [drawn.randint(100, 400) for _ in range(8)] if is_random else [1, 2, 2, 4]
        true = [length + length**2 / scale for length in lengths]
        wrong = finish(lengths, speeds, lambda length: length + factor * length**2 / scale, true)
        right = finish(lengths, speeds, lambda length: length + length**2 / scale, true)
        found.append(100 * (wrong / right - 1))
    return found


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=60)
    draws = parser.parse_args().draws
    print("| sigma | true work | assumed | 1:2:2:4 | 8 random |\n|---:|---|---|---:|---:|")
    for sigma, scale in ((1.0, 24_576), (1.0, 8_192), (1.27, 8_192)):
        for name, factor in ASSUMED:
            columns = [late(sigma, scale, factor, draws, is_random=is_random) for is_random in (False, True)]
            cells = [f"{sum(column) / len(column):.1f} / {max(column):.1f}" for column in columns]
            print(f"| {sigma} | L + L^2/{scale:,} | {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
