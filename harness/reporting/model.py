"""A report as a tree of typed nodes. It holds what the report says, and nothing about how that is written.

A renderer (markdown.py) turns the tree into a document. Text is plain text everywhere: renderers escape it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.reporting.picture_data import PictureData
from harness.reporting.values import Kind, Value


@dataclass(frozen=True)
class Link:
    """Text that leads to `target`, a path relative to the document or an address."""

    text: str
    target: str


@dataclass(frozen=True)
class Code:
    """A name or a command within a sentence."""

    text: str


@dataclass(frozen=True)
class Strong:
    """A term that stands out, because the sentence explains it."""

    text: str


@dataclass(frozen=True)
class SoftBreak:
    """The end of a line in the document's source, where readers see a space."""


Inline = str | Link | Code | Strong | SoftBreak


@dataclass(frozen=True)
class Paragraph:
    """Sentences, in pieces where some of them are more than plain text."""

    pieces: tuple[Inline, ...]


@dataclass(frozen=True)
class Claim:
    """A sentence of the verdict."""

    text: str


@dataclass(frozen=True)
class List:
    """A list of sentences; in the verdict, of claims."""

    items: tuple[str | Claim, ...]


@dataclass(frozen=True)
class Definition:
    """A term and what it means."""

    term: str
    text: str


@dataclass(frozen=True)
class DefinitionList:
    """A list of terms with their meanings."""

    entries: tuple[Definition, ...]


@dataclass(frozen=True)
class Note:
    """A remark that no reader may miss."""

    text: str


@dataclass(frozen=True)
class CodeBlock:
    """Commands or output, with its lines as they are."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table.

    `name` identifies it, and `unit` is that of its numbers. `shown_as` is its heading where that is not "name unit".
    `meaning` is a sentence, for columns that need one. `on_screen` is whether a terminal shows the column, too.
    """

    name: str
    kind: Kind
    unit: str = ""
    shown_as: str = ""
    meaning: str = ""
    on_screen: bool = True

    @property
    def heading(self) -> str:
        """What stands above the column."""
        return self.shown_as or f"{self.name} {self.unit}".strip()


@dataclass(frozen=True)
class Table:
    """Columns, and rows of typed values, one for each column. Raises ValueError if a row has more or fewer."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"a table of {len(self.columns)} columns has a row of {len(row)} values: {row}")

    def values(self, name: str) -> tuple[Value, ...]:
        """The values of the column of this name. Raises ValueError if there is none."""
        index = [column.name for column in self.columns].index(name)
        return tuple(row[index] for row in self.rows)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A picture: its file beside the report, its caption, and the data that it shows."""

    file: str
    caption: str
    data: PictureData


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it. Its level is its depth in the tree."""

    title: str
    body: tuple[Node, ...]


@dataclass(frozen=True)
class Report:
    """A whole document."""

    title: str
    body: tuple[Node, ...]


Node = Section | Paragraph | List | DefinitionList | Note | CodeBlock | Table | Figure


def paragraph(*pieces: Inline) -> Paragraph:
    """A paragraph made of these pieces."""
    return Paragraph(pieces)


def walk(parent: Report | Section) -> Iterator[Node]:
    """All nodes under `parent`, in the order in which a reader meets them."""
    for node in parent.body:
        yield node
        if isinstance(node, Section):
            yield from walk(node)
