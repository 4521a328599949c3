"""Comparisons of cells as sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.reporting import descriptions, naming
from harness.reporting.contrasts import Group, Twins
from harness.reporting.formatting import conjunction, count, number, with_interval
from harness.reporting.summary import Cell
from harness.spec import optimizers
from harness.statistics.intervals import FEWEST, Interval
from harness.statistics.ratios import Ratio
from harness.statistics.verdicts import Verdict

TWICE = 2.0  # from this ratio on, "2.75 times as fast" reads better than "175% faster"
MOST_SCALED = 6  # cells whose scaling is told in one sentence
OUTCOMES = {
    "faster": "is faster than {others}",
    "slower": "is slower within rounds, although its mean is higher, than {others}",
    "tie": "ties with {others} within {margin}",
    "unresolved": "is not resolved against {others}",
    "unknown": "shares only one round with {others}, which establishes no order",
    "apart": "was never launched on the same machine as {others}",
}
"""What is said of a group's fastest cell and the others, by outcome. "apart": there is no verdict."""


def speed(cell: Cell) -> str:
    """ "6,740 [6,728, 6,752] images/s"."""
    assert cell.estimate is not None, "only timed cells are compared"
    return f"{with_interval(cell.estimate.value, cell.estimate.interval)} {cell.first.unit}s/s"


def sentence(group: Group, others: Sequence[Group]) -> str:
    """What the comparison of a group's fastest cell with each of the others shows. `others`: all groups of the report,
    from which the words that name this one must tell it apart."""
    best = group.best
    found = f"{where(group, others)}: {best.named(workload=False)} trains {speed(best)}"
    parts = _parts(group)
    if not parts:
        return f"{found}."
    return f"{found}. It {'; it '.join(parts)}."


def where(group: Group, others: Sequence[Group]) -> str:
    """What the cells of a group have in common, as far as it tells them from other groups."""
    spec = group.best.spec
    of_workload = [other for other in others if _task(other) == _task(group)]
    over = f" over {spec.hosts} hosts" if spec.hosts > 1 else ""
    words = [spec.size, spec.precision, count(spec.devices, "device") + over]
    if any(other.best.spec.track != spec.track for other in of_workload):
        words.append("tuned" if spec.track == "tuned" else "defaults")
    if any(_batch(other) != _batch(group) for other in of_workload if _places(other) == _places(group)):
        words += [f"batch {descriptions.batches(group.cells)}", optimizers.words(spec.optimizer)]
    normalized = naming.normalized_over(group.best.first)
    if any(naming.normalized_over(other.best.first) != normalized for other in of_workload):
        words.append(f"BatchNorm over the {normalized}")
    if spec.steps_per_call > 1:
        words.append(f"{spec.steps_per_call} steps per call")
    words += [f"{name} {'on' if value else 'off'}" for name, value in spec.chosen_settings.items()]
    return f"{spec.workload} ({', '.join(words)})"


def unranked(groups: Sequence[Group], compared: Sequence[Group]) -> list[str]:
    """The cells that no other one may be ranked with, where others are ranked."""
    alone = [group for group in groups if group not in compared]
    return [
        f"Not ranked, because no other cell does the same training on as many devices: {sentence(group, groups)}"
        for group in alone
    ]


def scaling(cells: Sequence[Cell]) -> list[str]:
    """What several devices bring to each tuned cell, or without one to each cell: its ratio over one device of the same
    framework, at the same batch (strong scaling) or at the same batch per device (weak)."""
    own = [cell for cell in cells if cell.spec.devices > 1 and cell.spec.protocol == "resident"]
    based = [cell for cell in own if cell.over_single and naming.same_training(cell.spec)]
    chosen = [cell for cell in based if cell.spec.track == "tuned"] or based
    lines = []
    for task in dict.fromkeys(map(_scaled, chosen)):
        alike = sorted((cell for cell in chosen if _scaled(cell) == task), key=lambda cell: -_over_single(cell))
        workload, size, precision, devices, weak = task
        each = conjunction([f"{cell.named(workload=False)} {_over_single(cell):.2f}" for cell in alike[:MOST_SCALED]])
        batch = "the same batch per device" if weak else "the same batch"
        rest = f" (the best {MOST_SCALED} of {len(alike)})" if len(alike) > MOST_SCALED else ""
        lines.append(
            f"{workload} ({size}, {precision}) on {devices} devices, as a multiple of the same framework's single at "
            f"{batch}: {each}{rest}."
        )
    return lines


def _over_single(cell: Cell) -> float:
    assert cell.over_single is not None
    return cell.over_single.value


def _scaled(cell: Cell) -> tuple[str, str, str, int, bool]:
    spec = cell.spec
    return (spec.workload, spec.size, spec.precision, spec.devices, cell.weak)


def _places(group: Group) -> tuple:
    return (group.best.spec.devices, group.best.spec.hosts)


def _task(group: Group) -> tuple:
    spec = group.best.spec
    return (spec.workload, spec.size, spec.precision)


def _batch(group: Group) -> tuple:
    return (group.best.spec.global_batch, group.best.spec.optimizer)


def _parts(group: Group) -> list[str]:
    """What is shown of each kind of outcome: "is faster than B by 3.3% [2.6%, 4.1%]", "ties with C within 1%"."""
    others: dict[str, list[str]] = {}
    for other, verdict in zip(group.cells[1:], group.verdicts, strict=True):
        outcome, amount = (verdict.outcome, _amount(verdict)) if verdict else ("apart", "")
        others.setdefault(outcome, []).append(f"{other.named(workload=False)} {amount}".rstrip())
    margin = f"{number(100 * group.margin)}%"
    return [
        words.format(others=conjunction(others[outcome]), margin=margin)
        for outcome, words in OUTCOMES.items()
        if outcome in others
    ]


def _amount(verdict: Verdict) -> str:
    """By how much two cells differ, as it is written for such an outcome; "" for a tie."""
    match verdict.outcome:
        case "faster":
            return _by(verdict)
        case "slower":
            return _by(replace(verdict, ratio=verdict.ratio.inverse))
        case "unresolved":
            return f"({_unresolved(verdict)})"
        case "unknown":
            return f"({_times(verdict)})"
        case "tie":
            return ""


def _by(verdict: Verdict) -> str:
    ratio = verdict.ratio
    if ratio.value >= TWICE:
        return f"({_times(verdict)})"
    return f"by {with_interval(100 * (ratio.value - 1), _percent(ratio.interval), unit='%')}{_few(ratio)}"


def _percent(found: Interval | None) -> Interval | None:
    """The interval of a ratio as percent above 1."""
    return found and Interval(100 * (found.low - 1), 100 * (found.high - 1), found.confidence)


def _times(verdict: Verdict) -> str:
    ratio = verdict.ratio
    return f"{with_interval(ratio.value, ratio.interval)} times as fast{_few(ratio)}"


def _few(ratio: Ratio) -> str:
    """From how little a ratio follows that has no interval, though it was tested."""
    if ratio.interval or not ratio.tested:
        return ""
    return " in two rounds" if ratio.pairs else " in too few launches for an interval"


def _unresolved(verdict: Verdict) -> str:
    launches = "more than 1,000" if verdict.needed is None else f"about {verdict.needed}"
    return f"{_times(verdict)}; {launches} launches would tell"


def twins_sentence(pairs: Sequence[Twins]) -> list[str]:
    """The A/A ratios of a report, which show how well it can tell cells apart."""
    if not pairs:
        return []
    listed = "; ".join(
        f"{pair.one.title} and {pair.other.title}, {with_interval(pair.ratio.value, pair.ratio.interval)}"
        for pair in pairs
    )
    are = "is" if len(pairs) == 1 else "are"
    return [
        f"A/A: {count(len(pairs), 'pair')} of rows {are} the same code, compiled and launched separately, so the true "
        f"ratio is 1. Measured: {listed}."
    ]


def method(groups: Sequence[Group]) -> list[str]:
    """How the comparisons were made, if there are any with an interval."""
    judged = [verdict for group in groups for verdict in group.verdicts if verdict and verdict.ratio.degrees]
    if not judged:
        return []
    number = sum(group.pairs for group in groups)
    return [
        f"Brackets hold 95% intervals, which need {FEWEST} rounds. Ratios are formed within rounds, and an order is "
        f"claimed if p is below 5% after Holm's adjustment for {count(number, 'pair')} of cells and the ratio is "
        "outside the margin (docs/method.md)."
    ]
