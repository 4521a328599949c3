"""A report as text: its sections, tables and numbers. This module knows Markdown, and nothing of what was measured."""

from __future__ import annotations

import html
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

NUMBER = re.compile(r"(?<![\w.=×])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[-+]?\d+)?|∞")
"""Numbers, but not those within names: split_size=20, layer4.2, ×2, bf16."""
SPEED = re.compile(r"\w+s/s")  # a heading: "images/s"
HAIR = 1e-6  # of a unit of the last digit, for what lies between two digits


@dataclass(frozen=True)
class Digits:
    """A number, and the unit of the last digit that a report shows of it."""

    value: float
    unit: float


Expected = Sequence[Digits] | None
"""The numbers that a place of the report should hold. None: they are not computed again."""


@dataclass
class Table:
    """A table: one mapping from heading to text for each row."""

    headings: list[str]
    rows: list[dict[str, str]]


@dataclass
class Section:
    """The text under one heading. `lines`: without those of its tables."""

    title: str
    lines: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)

    @property
    def numbers(self) -> int:
        """How many numbers it has."""
        texts = [*self.lines, *(text for table in self.tables for row in table.rows for text in row.values())]
        return sum(len(NUMBER.findall(text)) for text in texts)


@dataclass
class Findings:
    """What the comparison of a report with its record has found. `compared`: numbers, by section."""

    differences: list[str] = field(default_factory=list)
    not_verified: list[str] = field(default_factory=list)
    compared: Counter[str] = field(default_factory=Counter)

    def compare(self, section: str, where: str, text: str, expected: Expected) -> None:
        """Hold the numbers of a text against those of the record."""
        written = NUMBER.findall(text)
        if expected is None or text.startswith("- ("):  # a reason why there is no number
            return
        self.compared[section] += len(written)
        given = [_number(each) for each in written]
        if len(given) != len(expected):
            values = ", ".join(f"{each.value:.6g}" for each in expected) or "no number"
            self.differences.append(f"{section}, {where}: the report says {text!r}, the record gives {values}")
            return
        for shown, number, own in zip(written, given, expected, strict=True):
            if not _agrees(number, own):
                self.differences.append(
                    f"{section}, {where}: the report says {shown}, the record gives {own.value:.8g}"
                )

    def known_by(self, section: str, text: str) -> None:
        """Count the numbers of a text as compared, because it was found by them."""
        self.compared[section] += len(NUMBER.findall(text))

    def same(self, section: str, where: str, text: str, own: str) -> None:
        """Hold a text against that of the record, and count the numbers in it."""
        self.compared[section] += len(NUMBER.findall(text))
        if text != own:
            self.differences.append(f"{section}, {where}: the report says {text!r}, the record gives {own!r}")


def _number(text: str) -> float:
    return math.inf if text == "∞" else float(text.replace(",", ""))


def _agrees(number: float, own: Digits) -> bool:
    """Whether a number is this one, rounded: a whole number of units, at most half a unit away."""
    if math.isinf(number) or math.isinf(own.value):
        return number == own.value
    units = number / own.unit
    return abs(units - own.value / own.unit) <= 0.5 + HAIR and abs(units - round(units)) <= HAIR


def parse(text: str) -> list[Section]:
    """The sections of a report, from the one under its title on."""
    sections, fence, table = [Section("the title")], "", None
    for line in text.split("\n"):
        mark = re.match(r"`{3,}", line)
        if fence or mark:
            fence = ("" if line == fence else fence) if fence else mark.group() if mark else ""
            sections[-1].lines.append(line)
        elif heading := re.match(r"#+ (.*)", line):
            sections.append(Section(plain(heading.group(1))))
        elif line.startswith("|"):
            if table is None:
                headings = [SPEED.sub("throughput", heading) for heading in _cells(line)]
                table = Table(headings, [])
                sections[-1].tables.append(table)
            elif not re.fullmatch(r"[|:-]+", line):
                table.rows.append(dict(zip(table.headings, _cells(line), strict=False)))
            continue
        else:
            sections[-1].lines.append(plain(line))
        table = None
    return sections


def _cells(line: str) -> list[str]:
    return [re.sub(r"\bnever\b", "∞", plain(text)) for text in re.split(r"(?<!\\)\|", line)[1:-1]]


def plain(text: str) -> str:
    """The text without the characters that escape it."""
    return html.unescape(re.sub(r"\\([^\w\s])", r"\1", text.strip()))


def fixed(value: float | None, decimals: int = 0) -> Expected:
    """A number with so many digits after the point; none for None."""
    return [] if value is None else [Digits(value, 10.0**-decimals)]


def significant(value: float, digits: int = 3) -> Digits:
    """A number with so many significant digits."""
    if not value or math.isinf(value):
        return Digits(value, 10.0 ** (1 - digits))
    return Digits(value, 10.0 ** (math.floor(math.log10(abs(value))) + 1 - digits))


def rounded(value: float | None) -> Expected:
    """Three significant digits, or all before the point."""
    if value is None:
        return []
    return [significant(value) if abs(value) < 100 else Digits(value, 1.0)]


def supported(numbers: Sequence[float]) -> list[Digits]:
    """A number and both ends of its interval, with the digits that the interval supports."""
    half = numbers[0] - min(numbers) if numbers else 0.0
    if half > 1e-12 * abs(sum(numbers)):  # equal launches differ by rounding errors
        return [Digits(number, 10.0 ** math.floor(math.log10(half / 2))) for number in numbers]
    return [Digits(number, significant(numbers[0]).unit) for number in numbers]


def at_most(error: float) -> list[Digits]:
    """An error as an upper bound with one digit."""
    unit = significant(error, 1).unit
    return [Digits(math.ceil(round(error / unit, 6)) * unit, unit)]
