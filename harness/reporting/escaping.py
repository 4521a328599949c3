"""Text that cannot become markup: escaping, code blocks and tables of Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pandas as pd


def escape(text: str) -> str:
    """Text that Markdown and HTML show as it is: nothing in a reason or a name can become markup."""
    text = " ".join(text.split())
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*\[\]|#~$])|(?<!\w)_|_(?!\w)", lambda match: "\\" + match.group(), text)


def from_to(numbers: Sequence[int]) -> str:
    """The least and the largest: "3 to 10", "3" if they are the same, or "" of none."""
    return " to ".join(str(value) for value in sorted({min(numbers), max(numbers)})) if numbers else ""


def code(text: str) -> str:
    """A code block that nothing in `text` can end."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text.rstrip()}\n{fence}"


def table(frame: pd.DataFrame) -> str:
    """A Markdown table of text, every cell escaped."""
    numeric = [all(re.match(r"[-+]?[\d(]|-$", value) for value in frame[name]) for name in frame.columns]
    safe = frame.map(escape)
    safe.columns = [escape(str(name)) for name in frame.columns]
    align = ["right" if column else "left" for column in numeric]
    return safe.to_markdown(index=False, disable_numparse=True, colalign=align)
