"""Tables on standard output, cut to the width of the terminal: numbers and names stay whole, sentences wrap."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from harness.cli.output import write
from harness.spec.text import visible

FOLDED = {
    "options": 14, "training": 14, "track": 12, "planned on devices": 18, "cell": 20, "verdict": 12, "requirement": 24,
    "framework": 10, "input": 10, "workload": 9, "parity": 7, "setting": 11, "from_host s": 9, "resident s": 9,
}  # fmt: skip
"""Columns whose text may wrap, and how narrow they may get, in characters. Headings may wrap in all columns."""
NARROWEST = 6  # characters, of a column that may wrap, where nothing else helps
WORD = 24  # characters: a word that is no longer than this is not broken
DISPENSABLE = (
    *("first step s", "launches", "batch", "size", "over bare", "step ms", "BatchNorm over", "epochs"),
    *("strong scaling", "weak scaling", "waiting %", "interval", "test loss"),
    *("training", "options", "input", "conditions", "launches needed", "A", "B", "parity", "reached", "to target s"),
)
"""Columns that a table leaves out, in this order, if the terminal is too narrow. The report has them."""
IDENTIFYING = ("workload", "size", "framework", "strategy", "track", "options", "input", "devices", "hosts")
"""Columns that distinguish rows. One is left out only if all rows differ without it."""
COUNTS = ("devices", "hosts", "batch", "launches", "ok")
"""Columns of numbers that may be said once above the rows. Other numbers are results, which stay in the table."""
SHARED = ("workload", "size", "track", *COUNTS)
"""Columns that a table of one row says above it."""
MOVED = ("options", "input")
"""Columns that move below their rows if nothing else makes the table fit."""
NO_BREAK = "\N{NO-BREAK SPACE}"
NOTHING = ("", "-")
"""What stands for no text."""
GAP, SMALL_GAP, INDENT = 2, 1, 6  # characters between columns, and before a sentence below its row


def print_table(
    title: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[int] = (),
    below: Sequence[str] = (),
    elsewhere: str = "",
) -> None:
    """Print a table. If standard output is not a terminal, it is as wide as it needs, with one line for each row, or as
    wide as COLUMNS says.

    If that is too narrow, what is the same in all rows is said once above them.

    `right`: the columns that are aligned to the right, by index. `below`: names of columns of sentences, also of
    columns that the table does not have; if it is too wide, they stand below their rows in this order, the first
    without its column's name. `elsewhere`: where to find columns that are left out for lack of room.
    """
    rows = [[_bracketed(visible(text)) for text in row] for row in rows]
    needed = _total([_width(header, rows, index) for index in range(len(header))])
    console = Console(width=output_width() or needed)
    layout = _arranged(header, rows, console.width, below, right)

    def show(line: str, style: str = "") -> None:
        console.print(Text(line.replace(NO_BREAK, " "), style=style), soft_wrap=True)

    show(title, "italic")
    show("")
    said = [f"{header[index]} {rows[0][index]}" for index in layout.once if rows[0][index] not in NOTHING]
    if said:
        where = "In all rows: " if len(rows) > 1 else ""
        for line in textwrap.wrap(f"{where}{'; '.join(said)}.", console.width, break_on_hyphens=False):
            show(line, "dim")
        show("")
    for line in _lines(header, layout, right):
        show(line, "bold")
    show(" " + "─" * (_total(layout.widths.values(), layout.gap) - 1))
    for row in rows:
        for line in _lines(row, layout, right):
            show(line)
        for index in layout.below:
            name = "" if header[index] == below[0] else f"{header[index]}: "
            for line in _below(name, row[index], console.width):
                show(line, "dim")
    show("")
    shown = (*layout.widths, *layout.below, *layout.once)
    if missing := [name for index, name in enumerate(header) if index not in shown]:
        for line in textwrap.wrap(f"Left out for lack of room: {', '.join(missing)}{elsewhere}.", console.width):
            show(line, "dim")
        show("")


def print_sentence(text: str) -> None:
    """Print a line, or an item of a list. On a terminal, or to the width in COLUMNS, it is wrapped between words."""
    text = visible(text)
    if width := output_width():
        indent = "  " if text.startswith(("- ", " ")) else ""
        wrapper = textwrap.TextWrapper(width, subsequent_indent=indent)
        wrapper.break_on_hyphens = wrapper.break_long_words = False  # what is to be copied stays whole
        text = wrapper.fill(text)
    write(text)


def output_width() -> int | None:
    """How many characters a line of standard output may have; None for a file or a pipe, unless COLUMNS says it.

    COLUMNS=0, which some terminals set, says nothing.
    """
    if sys.stdout.isatty():
        return Console().width
    columns = os.environ.get("COLUMNS", "")
    return int(columns) or None if columns.isascii() and columns.isdigit() else None


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """Where the columns of a table are, by index. `widths`: those in the table, in characters. `once`: those that are
    said once, because their text is the same in all rows."""

    widths: dict[int, int]
    below: list[int]
    once: list[int]
    gap: int


def _arranged(
    header: Sequence[str], rows: Sequence[Sequence[str]], width: int, below: Sequence[str], right: Collection[int]
) -> _Layout:
    """How a table fits into lines of `width` characters, with as little moved, wrapped and left out as possible.

    Results stay in the table, even if they are the same in all rows.
    """
    full = {index: _width(header, rows, index) for index in range(len(header))}
    if _total(full.values()) <= width:
        return _Layout(widths=full, below=[], once=[], gap=GAP)
    sentences = [header.index(name) for name in below if name in header]
    movable = [header.index(name) for name in MOVED if name in header and name not in below]
    once = [index for index in full if len({row[index] for row in rows}) == 1]
    once = [index for index in once if len(rows) > 1 or header[index] in SHARED]
    once = [index for index in once if header[index] in COUNTS or not (index in right or header[index] == "verdict")]
    once = once if len(once) < len(full) else []  # something must be left to be a row
    while True:
        short = [index for index in full if index not in (*sentences, *once)]
        names, cells = [header[index] for index in short], [[row[index] for index in short] for row in rows]
        kept = [short[place] for place in fitting(names, cells, width)]
        least = {index: _least(header, rows, index) for index in kept}
        if _total(least.values()) <= width or not movable:
            break
        sentences.append(movable.pop(0))
    gap = GAP if _total(least.values()) <= width else SMALL_GAP
    below_rows = [index for index in sentences if index not in once]
    return _Layout(widths=_widened(least, full, header, width, gap), below=below_rows, once=once, gap=gap)


def _widened(
    least: dict[int, int], full: dict[int, int], header: Sequence[str], width: int, gap: int
) -> dict[int, int]:
    """The widths of columns that may get as narrow as `least`, with the room that is left: first for texts that would
    wrap, then for headings. If there is too little room, texts get narrower than that."""
    found = dict(least)
    folded = [index for index in found if header[index] in FOLDED]
    folded.sort(key=lambda index: full[index] - found[index])
    for number, index in enumerate(folded):  # they share what room there is; who needs little leaves more to others
        share = (width - _total(found.values(), gap)) // (len(folded) - number)
        found[index] = max(NARROWEST, min(full[index], found[index] + share))
    for index in found:
        if full[index] - found[index] <= width - _total(found.values(), gap):
            found[index] = max(found[index], full[index])
    return found


def fitting(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """The columns that fit into a line of `width` characters: all, or all except some of DISPENSABLE."""

    def distinct_rows(indices: list[int]) -> int:
        return len({tuple(row[index] for index in indices if header[index] in IDENTIFYING) for row in rows})

    kept = list(range(len(header)))
    for name in DISPENSABLE:
        if _total([_least(header, rows, index) for index in kept]) <= width:
            break
        fewer = [index for index in kept if header[index] != name]
        if distinct_rows(fewer) == distinct_rows(kept):
            kept = fewer
    return kept


def _total(widths: Iterable[int], gap: int = GAP) -> int:
    """The width of a line with columns of these widths."""
    return sum(gap + width for width in widths)


def _least(header: Sequence[str], rows: Sequence[Sequence[str]], index: int) -> int:
    """How narrow a column may get. Headings wrap between words; texts do in FOLDED, where a very long word breaks."""
    full, name = _width(header, rows, index), header[index]
    words = [
        *name.split(),
        *(word for row in rows for word in (row[index].split(" ") if name in FOLDED else [row[index]])),
    ]
    longest = max(map(cell_len, words), default=0)
    return min(full, max(FOLDED[name], min(WORD, longest)) if name in FOLDED else longest)


def _width(header: Sequence[str], rows: Sequence[Sequence[str]], index: int) -> int:
    return max(cell_len(line[index]) for line in [header, *rows])


def _lines(row: Sequence[str], layout: _Layout, right: Collection[int]) -> list[str]:
    """A row as lines of text: more than one if a cell is wider than its column."""
    cells = [textwrap.wrap(row[index], width, break_on_hyphens=False) or [""] for index, width in layout.widths.items()]
    found = []
    for parts in zip_longest(*cells, fillvalue=""):
        line = ""
        for (index, width), part in zip(layout.widths.items(), parts, strict=True):
            space = " " * (width - cell_len(part))
            line += " " + (space + part if index in right else part + space) + " " * (layout.gap - 1)
        found.append(line.rstrip())
    return found


def _bracketed(text: str) -> str:
    """The text with short brackets that are not broken: "(split 20)"."""
    return re.sub(rf"\([^()]{{1,{WORD - 2}}}\)", lambda found: found[0].replace(" ", NO_BREAK), text)


def _below(name: str, text: str, width: int) -> list[str]:
    """A sentence as lines below its row, after the name of its column. "-" stands for nothing.

    A word that is longer than a line stays whole: it is an address to be copied.
    """
    said = "" if text in NOTHING else name + text
    space = " " * INDENT
    wrapper = textwrap.TextWrapper(width, initial_indent=space, subsequent_indent=space)
    wrapper.break_on_hyphens = wrapper.break_long_words = False
    return wrapper.wrap(said)
