"""How each cell ran, as its processes found it: what must be known before two speeds are called a fair comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from functools import partial

from harness.reporting import number_formats
from harness.reporting.columns import ColumnOf, make_table, meanings
from harness.reporting.model import Definition, Node, Section, paragraph
from harness.reporting.summary import Cell
from harness.reporting.values import Kind
from harness.spec import Execution, NumberFormats

TITLE = "How each cell ran, as found"
NOTE = (
    "Read from the programs and processes after the timed blocks or the training, not from what was asked for. A dash "
    "stands for what does not occur or is not known. What could not be read is listed below the table."
)
BUDGET = (
    "How many seconds of tuning each framework got, what was tried, and what it brought is in docs/tracks.md of the "
    "suite. The equal budgets were spent on one GPU. What was found outside of them is listed there as well: settings "
    "whose source is another probe of the suite, and what strategies set for several GPUs."
)
NAMES = {item.name for item in fields(Execution)}


def executions(cell: Cell) -> list[Execution]:
    """What the ranks of all successful launches noted."""
    return [rank.execution for result in cell.good for rank in result.ranks if rank.execution is not None]


def formats(cell: Cell) -> list[NumberFormats]:
    """The number formats that they noted."""
    return [timing.formats for result in cell.good for timing in result.timings if timing.formats is not None]


def once_each(words: Iterable[str]) -> str | None:
    """What launches and ranks found, once each; None if none found anything. The order within a list is no difference:
    ranks may find the same kernels in another order."""
    alike: dict[tuple[str, ...], str] = {}
    for each in filter(None, words):
        alike.setdefault(tuple(sorted(each.split(", "))), each)
    return " / ".join(alike.values()) or None


def entry(name: str, cell: Cell) -> str | None:
    """One entry of the executions."""
    return once_each(getattr(each, name) for each in executions(cell))


def held_in(name: str, cell: Cell) -> str | None:
    """The number formats of one kind of value."""
    found = {format_ for each in formats(cell) for format_ in number_formats.held_in(name, each)}
    return " and ".join(sorted(found)) or None


def libraries(cell: Cell) -> str | None:
    """The CUDA libraries that the processes had loaded."""
    return once_each(
        ", ".join(f"{title} {version}" for title, version in result.conditions.libraries.items())
        for result in cell.good
    )


def groups(cell: Cell) -> str | None:
    """How many samples share BatchNorm statistics, in how many groups; None in a network without BatchNorm."""
    return once_each(
        ", ".join(f"{number} of {size}" for size, number in Counter(result.conditions.normalization_groups).items())
        for result in cell.good
        if result.described.normalizes
    )


def column(name: str, value: Callable[[Cell], str | None], meaning: str = "") -> ColumnOf[Cell]:
    """A column of words."""
    return ColumnOf[Cell](name=name, kind=Kind.TEXT, value=value, meaning=meaning)


ENTRIES = (
    column("products", partial(held_in, "products"), "the number format of matrix products and convolutions."),
    column("sums over devices", partial(held_in, "reductions"), "also those that XLA's partitioner places."),
    column("optimizer state", partial(held_in, "optimizer_state")),
    column("layout", partial(entry, "layout"), "axes of arrays in the order in which they lie in memory."),
    column("compiled", partial(entry, "compiled")),
    column(
        "graphs",
        partial(entry, "graphs"),
        "CUDA graphs that the program holds. Whether XLA makes such graphs (command buffers) of JAX's and TensorFlow's "
        "programs on GPUs is not known: it does so after what is read here.",
    ),
    column(
        "autotuning",
        partial(entry, "autotuning"),
        "whether a library tries its kernels and keeps the fastest. By default, XLA and TensorFlow do, and PyTorch "
        "does not.",
    ),
    column(
        "convolutions",
        partial(entry, "convolutions"),
        "the most frequent: kernels as launched (PyTorch on GPUs), calls of libraries, or operations of the graph.",
    ),
    column("threads", partial(entry, "threads"), "of each process, as the framework reports them."),
    column("libraries", libraries, "as loaded."),
    column(
        "BatchNorm groups", groups, "parts of a batch that are normalized by themselves, and how many samples each has."
    ),
    column("input", partial(entry, "input")),
)


def section(cells: Sequence[Cell]) -> list[Node]:
    """The table of what differs between cells, after a sentence about what does not; nothing if nothing was noted."""
    noted = [cell for cell in cells if executions(cell)]
    if not noted:
        return []
    values = {each.name: {each.value(cell) for cell in noted} for each in ENTRIES}
    common = [f"{name}: {next(iter(found))}" for name, found in values.items() if len(found) == 1 and found != {None}]
    unknown = [name for name, found in values.items() if found == {None} and name in NAMES]
    differing = [each for each in ENTRIES if len(values[each.name]) > 1]
    body: list[Node] = [paragraph(NOTE)]
    if common:
        body.append(paragraph(f"The same for all cells of this section: {'; '.join(common)}."))
    if unknown:
        body.append(paragraph(f"No cell has an entry under: {', '.join(unknown)}."))
    if differing:
        table = make_table([column("cell", lambda cell: cell.title), *differing], noted)
        body += [table, meanings(table, *unread(noted))]
    elif failed := unread(noted):
        body += [paragraph(f"{each.term}: {each.text}") for each in failed]
    return [Section(TITLE, (*body, paragraph(BUDGET)))]


def unread(cells: Sequence[Cell]) -> list[Definition]:
    """What could not be read of which cells, and why."""
    failed = [f"{cell.title}, {found}" for cell in cells if (found := entry("unread", cell))]
    return [Definition("Unread", f"{'; '.join(failed)}.")] if failed else []
