"""A report's table in LaTeX, for booktabs and siunitx. Nothing in a text can become markup.

Columns of numbers are siunitx's S columns, which align at the decimal point. Values that are more than one number stand
as text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness.reporting.formatting import written_rows
from harness.reporting.model import Column, Table
from harness.spec.text import visible

NUMBER = re.compile(r"(-?)(\d+)(?:\.(\d+))?(?:e([-+]?)0*(\d+))?")
ESCAPED = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": r"\textasciigrave{}",
    '"': r"\symbol{34}",  # some languages of babel make it active
    **{character: f"{{{character}}}" for character in "[]*"},  # after the end of a row, they would be its arguments
    "–": r"\textendash{}",
    "×": r"$\times$",
    "±": r"$\pm$",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def render(table: Table, *, remark: str = "") -> str:
    """The table as a tabular. `remark`: a comment above it, in one line."""
    rows = written_rows(table)
    kinds = [_alignment(column, [row[index] for row in rows]) for index, column in enumerate(table.columns)]
    body = [[_cell(text, kind) for text, kind in zip(row, kinds, strict=True)] for row in rows]
    header = [f"{{{escape(column.heading)}}}" for column in table.columns]
    lines = [
        *([f"% {visible(' '.join(remark.split()))}"] if remark else []),
        r"% \usepackage{booktabs,siunitx}",
        rf"\begin{{tabular}}{{{''.join(kinds)}}}",
        r"\toprule",
        _line(header),
        r"\midrule",
        *map(_line, body),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _cell(text: str, kind: str) -> str:
    """A value in a column of this kind. In an S column, braces keep siunitx from reading a text as a number."""
    if not kind.startswith("S"):
        return escape(text)
    return text.replace(",", "") if _number(text) else f"{{{escape(text)}}}"


def escape(text: str) -> str:
    """The text on one line, as LaTeX shows it literally."""
    text = visible(" ".join(text.split()))
    return "".join(ESCAPED.get(character, character) for character in text).replace("--", "-{}-")


def _alignment(column: Column, texts: Sequence[str]) -> str:
    """The kind of a column in the tabular: S with room for all its numbers, or text."""
    numbers = [found for text in texts if (found := _number(text))]
    if not column.kind.numeric or not numbers:
        return "r" if column.kind.numeric else "l"
    sign = "-" * any(found[1] for found in numbers)
    whole = max(len(found[2]) for found in numbers)
    digits = max(len(found[3] or "") for found in numbers)
    exponents = [(found[4] or "", found[5]) for found in numbers if found[5]]
    longest = max((len(each) for _, each in exponents), default=0)
    exponent = f"e{'-' * any(mark == '-' for mark, _ in exponents)}{'9' * longest}" if exponents else ""
    return f"S[table-format={sign}{whole}.{digits}{exponent}]"


def _number(text: str) -> re.Match[str] | None:
    """The parts of a number that siunitx reads: sign, digits before and after the point, sign and digits of the
    exponent. None for another text."""
    return NUMBER.fullmatch(text.replace(",", ""))
