"""The numbers of a report's verdict: who is compared with whom, by how much, and how sure that is."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from harness.verification.launches import Estimate
from harness.verification.record import Cell, Record, grown, place, ratio
from harness.verification.report_text import (
    Digits,
    Expected,
    Findings,
    Section,
    at_most,
    fixed,
    rounded,
    significant,
    supported,
)
from harness.verification.tables import NOISE, needed, over

NAME = "Verdict"
OUTCOMES = {
    "is faster than": "faster",
    "is slower within rounds, although its mean is higher, than": "slower",
    "ties with": "tie",
    "is not resolved against": "unresolved",
    "shares only one round with": "unknown",
    "was never launched on the same machine as": "apart",
}
UNRANKED = "Not ranked, because no other cell does the same training on as many devices: "
UNSTABLE = 0.1
MOST_SCALED = 6  # cells whose scaling one sentence tells


@dataclass(frozen=True)
class Contrast:
    """The fastest cell of a group over another: its outcome, and the ratio (None: no machine ran both)."""

    best: Cell
    other: Cell
    outcome: str
    ratio: Estimate | None
    margin: float


def compare(found: Findings, record: Record, sections: Sequence[Section]) -> None:
    """Hold the comparisons of the verdict, and the numbers in brackets, against the record's."""
    lines = [line for section in sections if section.title == NAME for line in section.lines]
    ran = [cell for cell in record.timed if cell.ok]
    if not lines:
        found.differences.append(f"{NAME}: the report has no such section")
        return
    _compare_gate(found, lines, [cell for cell in (*record.timed, *record.trained) if cell.ok])
    if any(cell.spec["platform"] != "cpu" for cell in ran):
        _compare_groups(found, lines, ran)
        _compare_scaling(found, record, lines, ran)
        _compare_twins(found, lines, ran)
        _compare_unstable(found, lines, ran)


def _compare_groups(found: Findings, lines: Sequence[str], ran: Sequence[Cell]) -> None:
    groups = _groups(ran)
    several = [group for group in groups if len(_variants(group)) > 1]
    contrasts = _contrasts(groups, _twins(ran))
    for group in groups:
        alone = UNRANKED if several and group not in several else ""
        _compare_group(
            found,
            [line.replace(alone, "") for line in lines if alone in line],
            _variants(group),
            [each for each in contrasts if each.best is _variants(group)[0]],
        )
    pairs = sum(math.comb(len(group), 2) for group in groups)
    if any(each.ratio and each.ratio.degrees for each in contrasts):
        counted = next((match for line in lines if (match := re.search(r"for ([\d,]+) pairs? of cells", line))), None)
        found.compare(NAME, "pairs of cells", counted.group(1) if counted else "", fixed(pairs))


def _compare_group(found: Findings, lines: Sequence[str], group: Sequence[Cell], contrasts: Sequence[Contrast]) -> None:
    name, spec = group[0].title_in_workload, group[0].spec
    begins = f"- {spec['workload']} ({spec['size']}, {spec['precision']}, {spec['devices']} device"
    line = next((line for line in lines if line.startswith(begins) and f": {name} trains " in line), None)
    if line is None:
        found.differences.append(f"{NAME}: no sentence has {name} as the fastest of its {len(group)} cells")
        return
    found.known_by(NAME, begins)
    said, _, rest = line.partition(f": {name} trains ")[2].partition("s/s")
    found.compare(NAME, name, said, supported(group[0].speed.numbers if group[0].speed else ()))
    clauses = {OUTCOMES[words]: clause for words, clause in _clauses(rest)}
    for each in contrasts:
        other, clause = each.other.title_in_workload, clauses.get(each.outcome, "")
        where = f"{name} and {other}"
        after = re.split(rf"(?:^|and|,) {re.escape(other)}", clause, maxsplit=1)[1:]
        if not after:
            found.differences.append(f"{NAME}, {where}: the record gives {each.outcome}, the report does not say so")
            continue
        bracket = re.match(r" by [\d.,]+%(?: \[[^\]]*\])?| \([^()]*\)", after[0])
        found.compare(NAME, where, bracket.group() if bracket else "", _numbers(each))
    if "tie" in clauses and contrasts:
        within = re.search(r"within (\S+%)", clauses["tie"])
        margin = rounded(100 * contrasts[0].margin)
        found.compare(NAME, f"{name}, margin", within.group(1) if within else "", margin)


def _compare_scaling(found: Findings, record: Record, lines: Sequence[str], ran: Sequence[Cell]) -> None:
    """What several devices bring to the tuned cells, or without one to all cells."""
    own = [cell for cell in ran if cell.spec["devices"] > 1 and cell.comparable and cell.spec["protocol"] == "resident"]
    based = [(cell, base) for cell in own if (base := record.base(cell))]
    known = [(cell, found_ratio, grown(cell, base)) for cell, base in based if (found_ratio := ratio(cell, base))]
    groups: dict[tuple, list[tuple[Cell, Estimate]]] = {}
    for cell, value, weak in [each for each in known if each[0].spec["track"] == "tuned"] or known:
        names = ("workload", "size", "precision", "devices")
        groups.setdefault((*(cell.spec[name] for name in names), weak), []).append((cell, value))
    for (workload, size, precision, devices, weak), cells in groups.items():
        begins, batch = f"- {workload} ({size}, {precision}) on {devices} devices, ", " per device" if weak else ""
        line = next((line for line in lines if line.startswith(begins) and f"at the same batch{batch}: " in line), None)
        if line is None:
            found.differences.append(f"{NAME}: no sentence tells what {devices} devices bring to {workload}")
            continue
        found.known_by(NAME, begins)
        fastest = sorted(cells, key=lambda each: -each[1].value)[:MOST_SCALED]
        for name, value in ((cell.title_in_workload, value) for cell, value in fastest):
            said = re.search(rf"{re.escape(name)} ([\d.]+\d)", line)
            found.compare(NAME, f"{name}, scaling", said.group(1) if said else "", fixed(value.value, 2))
        if len(cells) > MOST_SCALED:
            said = re.search(r"\(the best (\d+ of \d+)\)", line)
            numbers = [Digits(number, 1.0) for number in (MOST_SCALED, len(cells))]
            found.compare(NAME, "cells with scaling", said.group(1) if said else "", numbers)


def _clauses(text: str) -> list[tuple[str, str]]:
    """The parts of a sentence with the words that they begin with."""
    starts = re.split(rf"(?:^|[.;] )[Ii]t ({'|'.join(OUTCOMES)})", text)
    return list(zip(starts[1::2], starts[2::2], strict=True))


def _numbers(each: Contrast) -> Expected:
    if each.ratio is None or each.outcome == "tie":
        return []
    if each.ratio.degrees and each.ratio.error < NOISE:
        return None
    ratio = each.ratio.inverse if each.outcome == "slower" else each.ratio
    if each.outcome in ("faster", "slower") and ratio.value < 2:
        return supported([100 * (number - 1) for number in ratio.numbers])
    shown = supported(ratio.numbers)
    if each.outcome == "unresolved":
        log, widest = abs(math.log(each.ratio.value)), math.log1p(each.margin)
        shown += fixed(needed(each.ratio.deviation, log if log > widest else widest - log)) or ()
    return shown


def _groups(ran: Sequence[Cell]) -> list[list[Cell]]:
    """The cells that differ in framework and strategy alone, the fastest first."""
    names = ("workload", "size", "precision", "platform", "optimizer", "global_batch", "track", "devices")
    names += ("steps_per_call", "tolerances", "chosen_settings")
    groups: dict[str, list[Cell]] = {}
    for cell in ran:
        if cell.timed and cell.comparable and cell.spec["protocol"] == "resident" and not cell.spec.get("twin"):
            key = [*(cell.spec.get(name) for name in names), cell.hosts, cell.normalized_over, place(cell)]
            groups.setdefault(json.dumps(key, sort_keys=True), []).append(cell)
    return [sorted(group, key=lambda cell: -cell.speed.value if cell.speed else 0.0) for group in groups.values()]


def _variants(group: Sequence[Cell]) -> list[Cell]:
    """Of each strategy, the fastest variant."""
    fastest: dict[tuple[str, str], Cell] = {}
    for cell in group:
        fastest.setdefault((cell.spec["framework"], cell.spec["strategy"]), cell)
    return list(fastest.values())


def _contrasts(groups: Sequence[Sequence[Cell]], twins: Sequence[tuple[Cell, Cell]]) -> list[Contrast]:
    """The fastest of each group over the others, judged together by Holm's method."""
    found = [(each[0], other, ratio(each[0], other)) for each in map(_variants, groups) for other in each[1:]]
    family, largest = max(len(found), sum(math.comb(len(group), 2) for group in groups)), 0.0
    adjusted: dict[int, float] = {}
    judged = sorted((ratio.p, number) for number, (*_, ratio) in enumerate(found) if ratio)
    for rank, (p, number) in enumerate(judged):
        adjusted[number] = largest = max(largest, min(1.0, (family - rank) * p))
    contrasts = []
    for number, (best, other, found_ratio) in enumerate(found):
        margin = _margin(best, twins)
        outcome = _outcome(found_ratio, margin, adjusted.get(number, 1.0))
        contrasts.append(Contrast(best, other, outcome, found_ratio, margin))
    return contrasts


def _outcome(found: Estimate | None, margin: float, adjusted: float) -> str:
    if found is None:
        return "apart"
    if found.interval is None:
        return "unknown"
    if 1 / (1 + margin) <= found.interval[0] and found.interval[1] <= 1 + margin:
        return "tie"
    if adjusted < 0.05 and abs(math.log(found.value)) > math.log1p(margin):
        return "faster" if found.value > 1 else "slower"
    return "unresolved"


def _twins(ran: Sequence[Cell]) -> list[tuple[Cell, Cell]]:
    """The pairs of cells that are one program: their specs differ in names alone."""
    names = ("track", "variant", "chosen_settings", "twin", "launch", "seed")
    programs = [(json.dumps({k: v for k, v in c.spec.items() if k not in names}, sort_keys=True), c) for c in ran]
    timed = [(program, cell) for program, cell in programs if cell.timed]
    pairs = [(a, b) for n, (one, a) in enumerate(timed) for other, b in timed[n + 1 :] if one == other]
    return [pair for pair in pairs if (found := ratio(*pair)) and found.pairs]


def _margin(cell: Cell, twins: Sequence[tuple[Cell, Cell]]) -> float:
    """1%, or twice the A/A floor of the workload: the standard error of A/A ratios around their true value of 1."""
    floors = [0.0]
    for one, other in twins:
        if cell.alike(one, "workload", "size"):
            found = ratio(one, other)
            if found and found.pairs > 1:
                squares = found.deviation**2 * (found.pairs - 1) + found.pairs * math.log(found.value) ** 2
                floors.append(math.sqrt(squares) / found.pairs)
    return max(0.01, math.expm1(2 * max(floors)))


def _compare_twins(found: Findings, lines: Sequence[str], ran: Sequence[Cell]) -> None:
    line = next((line for line in lines if line.startswith("- A/A: ")), "")
    for one, other in _twins(ran):
        said = re.search(rf"{re.escape(f'{one.title} and {other.title}, ')}([^;]*?)(?:;|\.$)", line)
        found.compare(NAME, f"A/A: {one.title}", said.group(1) if said else "", over(one, other))


def _compare_unstable(found: Findings, lines: Sequence[str], ran: Sequence[Cell]) -> None:
    line = next((line for line in lines if line.startswith("- Unstable")), "")
    unstable = [cell for cell in ran if cell.timed and cell.relative_deviation >= UNSTABLE]
    for title in dict.fromkeys(cell.title for cell in ran):
        said = re.findall(rf"(?:: |; ){re.escape(title)}, ([\d.,e+]+%)", line)
        expected = [significant(100 * cell.relative_deviation) for cell in unstable if cell.title == title]
        if said or expected:
            found.compare(NAME, f"deviation of {title}", " ".join(said), expected)


def _compare_gate(found: Findings, lines: Sequence[str], ran: Sequence[Cell]) -> None:
    """How many cells passed the gate with the tolerances of float64, and their worst error."""
    passed = [cell for cell in ran if cell.comparable and cell.spec["tolerances"] == "exact" and cell.first["parity"]]
    errors = [check["error"] for cell in passed for check in cell.first["parity"]["checks"]]
    line = next((line for line in lines if "passed the gate: in float64" in line), "")
    said = [*re.findall(r"^- (\d+) cell", line), *re.findall(r"worst relative error ([^)]*)", line)]
    if passed:
        found.compare(NAME, "the gate", " ".join(said), [Digits(len(passed), 1.0), *at_most(max(errors))])
