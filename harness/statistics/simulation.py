"""How well the intervals and verdicts do where the truth is known.

    python -m harness.statistics.simulation docs/method.md

writes the tables of that page anew, between its two markers. The functions are those that reports use, and the seed is
fixed. A launch differs from the truth by noise of its own and by an effect of its round, which all cells share. The
noise is normal, or skewed: most launches are alike, and some are slower (an exponential distribution).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harness.statistics.intervals import Interval, geometric_interval
from harness.statistics.ratios import paired, unpaired
from harness.statistics.steadiness import findings
from harness.statistics.verdicts import judge

LAUNCHES = (5, 10, 20)
NOISE = 0.01  # the standard deviation of a launch, as a share of its speed
ROUND_EFFECT = 0.01  # that of a round
TRIALS = 2_000
TABLES = 500  # simulated tables, each of CELLS cells
CELLS = 11
BLOCKS = 10
BEGIN, END = "<!-- simulated: begin -->", "<!-- simulated: end -->"


@dataclass(frozen=True)
class Noise:
    """A distribution of the logarithm of a launch's speed, with mean 0 and standard deviation 1."""

    name: str
    draw: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


NOISES = (
    Noise("normal", lambda random, shape: random.standard_normal(shape)),
    Noise("skewed", lambda random, shape: 1 - random.standard_exponential(shape)),
)


def launches(random: np.random.Generator, noise: Noise, count: int, cells: int = 1) -> np.ndarray:
    """The speeds of simulated launches, [cell, round]. The true speed of every cell is 1."""
    rounds = ROUND_EFFECT * random.standard_normal(count)
    return np.exp(NOISE * noise.draw(random, (cells, count)) + rounds)


def coverage(noise: Noise, count: int, interval: Callable[[np.ndarray], Interval | None]) -> float:
    """The share of intervals that hold the truth, 1. `interval` is given the launches of two cells."""
    random = np.random.default_rng(count)
    found = [interval(launches(random, noise, count, cells=2)) for _ in range(TRIALS)]
    return sum(each is not None and each.low <= 1 <= each.high for each in found) / TRIALS


def _by_round(launches: np.ndarray) -> dict[Hashable, float]:
    return dict(enumerate(launches.tolist()))


def _of_mean(cells: np.ndarray) -> Interval | None:
    return geometric_interval(cells[0].tolist())


def _of_paired(cells: np.ndarray) -> Interval | None:
    ratio = paired(_by_round(cells[0]), _by_round(cells[1]))
    return ratio and ratio.interval


def _of_unpaired(cells: np.ndarray) -> Interval | None:
    return unpaired(cells[0].tolist(), cells[1].tolist()).interval


def told_apart(noise: Noise, count: int) -> tuple[float, float]:
    """Of tables of equal cells, the share in which any is told apart from the fastest; and the share of comparisons."""
    random, tables, comparisons = np.random.default_rng(count), 0, 0
    for _ in range(TABLES):
        hits = sum(outcome != 0 for outcome in _outcomes(launches(random, noise, count, cells=CELLS)))
        tables += hits > 0
        comparisons += hits
    return tables / TABLES, comparisons / (TABLES * (CELLS - 1))


def _outcomes(cells: np.ndarray) -> Iterator[int]:
    """For each comparison of the fastest cell with another: 1 faster, -1 slower, else 0."""
    speeds = [_by_round(cell) for cell in cells]
    best = int(np.argmax(np.log(cells).mean(axis=1)))
    ratios = [paired(speeds[best], speeds[other]) for other in range(len(cells)) if other != best]
    family = len(cells) * (len(cells) - 1) // 2
    for verdict in judge([ratio for ratio in ratios if ratio], family=family):
        yield {"faster": 1, "slower": -1}.get(verdict.outcome, 0)


def named(difference: float, noise: float, count: int) -> tuple[float, float]:
    """How often a cell that is faster by this share is called faster, and how often the two are called a tie."""
    random, outcomes = np.random.default_rng(count), []
    for _ in range(TRIALS):
        logs = noise * random.standard_normal((2, count)) + ROUND_EFFECT * random.standard_normal(count)
        speeds = np.exp(logs) * [[1 + difference], [1.0]]
        ratio = paired(_by_round(speeds[0]), _by_round(speeds[1]))
        outcomes += [verdict.outcome for verdict in judge([ratio] if ratio else [])]
    return outcomes.count("faster") / TRIALS, outcomes.count("tie") / TRIALS


def flagged(shape: Callable[[np.ndarray], np.ndarray], count: int = 5) -> float:
    """The share of cells that are called not steady, whose blocks vary by NOISE around a shape.

    `shape` maps the numbers of the blocks, from 0 to 1, to factors of the step time.
    """
    random, hits = np.random.default_rng(count), 0
    factors = shape(np.linspace(0.0, 1.0, BLOCKS))
    for _ in range(TABLES):
        blocks = factors * np.exp(NOISE * random.standard_normal((count, BLOCKS)))
        hits += bool(findings(blocks.tolist()))
    return hits / TABLES


SHAPES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "steady": np.ones_like,
    "a trend of 2% in every launch": lambda at: 1 + 0.02 * at,
    "a trend of 5% in every launch": lambda at: 1 + 0.05 * at,
    "5% slower from the middle on, in every launch": lambda at: 1 + 0.05 * (at > 0.5),
    "swings of 3% that decay, alike in all launches": lambda at: 1 + 0.03 * np.exp(-2 * at) * np.sin(14 * at),
}


def coverage_table() -> str:
    """How often intervals hold the truth, as Markdown."""
    rows = [
        [name, noise.name, *(_percent(coverage(noise, count, interval)) for count in LAUNCHES)]
        for name, interval in (
            ("speed of a cell", _of_mean),
            ("ratio within rounds", _of_paired),
            ("ratio without pairs", _of_unpaired),
        )
        for noise in NOISES
    ]
    table = _table(["interval of the", "noise", *(f"{count} launches" for count in LAUNCHES)], rows)
    return f"**Coverage** of 95% intervals, in {TRIALS:,} simulated runs each:\n\n{table}"


def equal_table() -> str:
    """How often equal cells are told apart, as Markdown."""
    rows = [
        [noise.name, str(count), *(_percent(share) for share in told_apart(noise, count))]
        for noise in NOISES
        for count in LAUNCHES
    ]
    table = _table(["noise", "launches", "tables", "comparisons"], rows)
    return (
        f"**A/A**: how many of {TABLES:,} tables of {CELLS} equal cells tell the fastest from any other, and how many "
        f"of their comparisons do:\n\n{table}"
    )


def power_table() -> str:
    """How often differences are named, as Markdown."""
    rows = [
        [_percent(difference), _percent(noise), str(count), *map(_percent, named(difference, noise, count))]
        for difference in (0.0, 0.005, 0.02, 0.05)
        for noise in (0.0025, 0.01)
        for count in LAUNCHES[:2]
    ]
    table = _table(["true difference", "noise of a launch", "launches", "faster", "tie"], rows)
    return f"**Power**: how often a cell is called faster, and how often a tie, in {TRIALS:,} runs each:\n\n{table}"


def steadiness_table() -> str:
    """How many cells are flagged as not steady, as Markdown."""
    table = _table(["step time", "flagged"], [[name, _percent(flagged(shape))] for name, shape in SHAPES.items()])
    return (
        f"**Steadiness**: how many of {TABLES:,} cells of 5 launches of {BLOCKS} blocks are flagged, if blocks vary by "
        f"{_percent(NOISE)}:\n\n{table}"
    )


def tables() -> str:
    """All tables of docs/method.md, as Markdown."""
    return "\n\n".join([coverage_table(), equal_table(), power_table(), steadiness_table()])


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    ruler = ["---", *["--:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, ruler, *rows))


def _percent(share: float) -> str:
    return f"{100 * share:.4g}%" if share < 0.01 else f"{100 * share:.3g}%"


def with_tables(page: str) -> str:
    """The page with fresh tables between its markers. Raises ValueError if it has none."""
    before, _, rest = page.partition(BEGIN)
    _, marker, after = rest.partition(END)
    if not marker:
        raise ValueError(f"the page needs the markers {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{tables()}\n{END}{after}"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(with_tables(path.read_text("utf-8")), "utf-8")
