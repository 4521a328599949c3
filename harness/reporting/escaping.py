"""Markdown that no text can break: escaping, code blocks, lists and tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import pandas as pd


def escape(text: str) -> str:
    """The text on one line, as Markdown and HTML show it literally: nothing in it can become markup."""
    text = " ".join(text.split())
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*\[\]|#~$])|(?<!\w)_|_(?!\w)", lambda match: "\\" + match.group(), text)


def bullets(lines: Iterable[str]) -> list[str]:
    """A list, one escaped line per entry."""
    return [f"- {escape(line)}" for line in lines]


def definition_list(entries: Sequence[tuple[str, str]]) -> list[str]:
    """A list of (term, definition), with the terms in bold."""
    return [f"- **{escape(term)}**: {escape(text)}" for term, text in entries]


def code(text: str) -> str:
    """A code block that nothing in `text` can end."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text.rstrip()}\n{fence}"


def table(frame: pd.DataFrame) -> str:
    """A table of text, with every cell escaped. Columns of numbers are aligned to the right."""
    numeric = [all(re.match(r"[-+]?[\d(]|-$", value) for value in frame[name]) for name in frame.columns]
    safe = frame.map(escape)
    safe.columns = [escape(str(name)) for name in frame.columns]
    align = ["right" if column else "left" for column in numeric]
    return safe.to_markdown(index=False, disable_numparse=True, colalign=align)
