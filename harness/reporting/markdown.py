"""The Markdown of a report. Nothing else in this package knows Markdown, and nothing in a text can become markup.

Text is escaped here and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import assert_never
from urllib.parse import quote

import pandas as pd

from harness.reporting.formatting import written_rows
from harness.reporting.model import (
    Claim,
    Code,
    CodeBlock,
    DefinitionList,
    Figure,
    Inline,
    Link,
    List,
    Node,
    Note,
    Paragraph,
    Report,
    Section,
    SoftBreak,
    Strong,
    Table,
)
from harness.reporting.values import Kind
from harness.spec.text import visible

BEGINS_WITH_A_NUMBER = re.compile(r"[-+]?[\d(]|-$")
DEEPEST_HEADING = 6


def render(report: Report) -> str:
    """The whole document."""
    blocks = [_heading(report.title, level=1), *_blocks(report.body, level=2)]
    return "\n\n".join(blocks) + "\n"


def _blocks(nodes: Sequence[Node], *, level: int) -> list[str]:
    """The blocks of these nodes, without those that are empty. `level`: that of the headings among them."""
    return [block for node in nodes for block in _node(node, level=level) if block]


def _node(node: Node, *, level: int) -> list[str]:
    """A node as blocks, which blank lines separate. Raises AssertionError for a kind of node that is unknown here."""
    match node:
        case Section():
            return [_heading(node.title, level=level), *_blocks(node.body, level=level + 1)]
        case Paragraph():
            lines = "".join(map(_inline, node.pieces)).split("\n")  # only a SoftBreak ends a line
            return ["\n".join(map(_literal_start, lines))]
        case List():
            return ["\n".join(f"- {_literal_start(escape(_item(item)))}" for item in node.items)]
        case DefinitionList():
            return ["\n".join(f"- **{escape(entry.term)}**: {escape(entry.text)}" for entry in node.entries)]
        case Note():
            return [f"> **{escape(node.text)}**"]
        case CodeBlock():
            return [_code_block(node.text)]
        case Table():
            return [_table(node)]
        case Figure():
            return [f"![{escape(node.caption)}]({quote(node.file)})", f"*{escape(node.caption)}*"]
        case _:
            assert_never(node)


def _inline(piece: Inline) -> str:
    match piece:
        case str():
            return _escape_spaced(piece)
        case Link():
            return f"[{escape(piece.text)}]({_target(piece.target)})"
        case Code():
            return _code(piece.text)
        case Strong():
            return f"**{escape(piece.text)}**"
        case SoftBreak():
            return "\n"
        case _:
            assert_never(piece)


def _item(item: str | Claim) -> str:
    match item:
        case str():
            return item
        case Claim():
            return item.text
        case _:
            assert_never(item)


def _heading(title: str, *, level: int) -> str:
    return f"{'#' * min(level, DEEPEST_HEADING)} {escape(title)}"


def escape(text: str) -> str:
    """The text on one line, as Markdown and HTML show it literally: nothing in it can become markup."""
    text = visible(" ".join(text.split()))
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # underscores within a word are no markup
    return re.sub(r"([\\`*\[\]|#~$])|(?<!\w)_+|_+(?!\w)", _backslashes, text)


def _backslashes(match: re.Match[str]) -> str:
    return "".join(f"\\{character}" for character in match.group())


def _escape_spaced(text: str) -> str:
    """A piece of a sentence: escaped, with a space where it begins or ends with one."""
    start = " " if text[:1].isspace() else ""
    end = " " if text[-1:].isspace() and text.strip() else ""
    return f"{start}{escape(text)}{end}"


def _literal_start(line: str) -> str:
    """The line, kept from beginning a list, and from being a rule across the page or the underline of a heading."""
    line = line.strip()
    line = re.sub(r"^(?=[-+](\s|$)|-[-\s]*$|=+$)", r"\\", line)
    return re.sub(r"^(\d+)(?=[.)](\s|$))", r"\1\\", line)


def _target(target: str) -> str:
    """The target of a link, with everything quoted that could end it."""
    return quote(target, safe="/:#?=%-_.~")


def _fence(text: str, *, least: int) -> str:
    """More backticks than stand together anywhere in the text."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    return "`" * max(least, longest + 1)


def _code(text: str) -> str:
    """Code within a line, which nothing in it can end."""
    text = visible(" ".join(text.split()))
    fence = _fence(text, least=1)
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{space}{text}{space}{fence}"


def _code_block(text: str) -> str:
    """A code block that nothing in the text can end."""
    text = visible(text)
    fence = _fence(text, least=3)
    return f"{fence}text\n{text.rstrip()}\n{fence}"


def _table(table: Table) -> str:
    """A table with every cell escaped. Columns in which all values begin with a number are aligned to the right."""
    rows = written_rows(table)
    right = [
        column.kind is not Kind.TEXT and all(BEGINS_WITH_A_NUMBER.match(row[index]) for row in rows)
        for index, column in enumerate(table.columns)
    ]
    frame = pd.DataFrame(
        [[escape(text) for text in row] for row in rows],
        columns=[escape(column.heading) for column in table.columns],
    )
    align = ["right" if each else "left" for each in right]
    return frame.to_markdown(index=False, disable_numparse=True, colalign=align)
