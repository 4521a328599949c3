"""A report is a tree of typed nodes, and its rendering shows every text as it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

import pytest
from conftest import ROOT
from markdown_it import MarkdownIt  # rich depends on it
from markdown_it.token import Token
from scenes import HOSTILE, HOSTILE_TRACE, SCENES

from harness.reporting import document, formatting, markdown, summary
from harness.reporting.model import (
    Claim,
    Code,
    CodeBlock,
    Column,
    Definition,
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
    paragraph,
    walk,
)
from harness.reporting.picture_data import PictureData, Timeline
from harness.reporting.values import (
    Beside,
    ByCache,
    Composite,
    Formula,
    IntervalOf,
    Kind,
    Measured,
    OfTolerance,
    OutOf,
    ParityError,
    PerStage,
    Quantity,
)
from harness.results import store
from harness.statistics.intervals import Interval

HARMLESS = "harmless"
PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
NUMBER = Column(name="n", kind=Kind.ROUNDED)

HOSTILE_TEXTS = (
    HOSTILE, HOSTILE_TRACE, "- a", "+ a", "* a", "-", "1. a", "2) a", "# a", "---", "- - -", "===", "***", "___",
    "> a", "    a", "\ta", "```", "~~~", "`a`", "`", "<script>", "<!-- a", "a | b", "|", "[a](b)", "![a](b)", "[a]: b",
    "**a**", "_a_", "__a__", "*a", "~~a~~", "&lt;", "&#35;", "\\", "\\*a*", "a\n\n# b", "a\n===", "a\n---", "a  \nb",
    "http://[a](b)", "$a$", "a_b_c",
)  # fmt: skip

NODES: dict[type, Callable[[str], Node]] = {
    Section: lambda text: Section(text, (paragraph(text), Section(text, ()))),
    Paragraph: lambda text: paragraph(text),
    List: lambda text: List((text, Claim(text))),
    DefinitionList: lambda text: DefinitionList((Definition(text, text),)),
    Note: lambda text: Note(text),
    CodeBlock: lambda text: CodeBlock(text),
    Table: lambda text: Table((Column(name=text, kind=Kind.TEXT), NUMBER), ((text, 1.0), (text, None))),
    Figure: lambda text: Figure(file="a.png", caption=text, data=Timeline(title=text, spans=(), ideal=())),
}
INLINES: dict[type, Callable[[str], Inline]] = {
    str: lambda text: text,
    Link: lambda text: Link(text, "a.csv"),
    Code: lambda text: Code(text),
    Strong: lambda text: Strong(text),
    SoftBreak: lambda text: SoftBreak(),
}


def render(*nodes: Node, title: str = "title") -> str:
    return markdown.render(Report(title, nodes))


def one_line(text: str) -> str:
    return " ".join(text.split())


def parsed(document: str) -> tuple[list[str], list[str]]:
    """What a Markdown document is made of, and the texts that its readers read."""
    structure: list[str] = []
    texts: list[str] = []

    def visit(tokens: Sequence[Token]) -> None:
        said = []
        for token in tokens:
            if token.type not in ("text", "inline"):
                structure.append(token.type)
            if token.children is not None:
                visit(token.children)
            else:
                said.append(token.content)
        texts.append(one_line("".join(said)))

    visit(PARSER.parse(document))
    return structure, [text for text in texts if text]


def assert_inert(text: str, rendered: Callable[[str], str]) -> None:
    """The document is made of the same with this text as with a harmless word, and readers read the text as it is."""
    structure, texts = parsed(rendered(text))
    of_harmless, harmless = parsed(rendered(HARMLESS))
    assert structure == of_harmless, rendered(text)
    assert texts == [line.replace(HARMLESS, one_line(text)) for line in harmless], rendered(text)


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
def test_no_text_becomes_markup_in_any_node(text):
    assert_inert(text, lambda known: render(title=known))
    for make in NODES.values():
        assert_inert(text, lambda known, make=make: render(make(known)))
    for make in INLINES.values():
        assert_inert(text, lambda known, make=make: render(paragraph(make(known))))
        assert_inert(text, lambda known, make=make: render(paragraph("before ", make(known), " after")))
        assert_inert(text, lambda known, make=make: render(paragraph("before", SoftBreak(), make(known))))


@pytest.mark.parametrize("target", ["a) b", "a b", "a\nb", "a(b", "<a>", 'a "b"', "a\\"])
def test_no_file_or_target_ends_its_link(target):
    picture = Figure(file=target, caption=HARMLESS, data=Timeline(title="", spans=(), ideal=()))
    assert parsed(render(picture)) == parsed(render(NODES[Figure](HARMLESS)))
    assert parsed(render(paragraph(Link(HARMLESS, target)))) == parsed(render(paragraph(Link(HARMLESS, "a.csv"))))


def test_lines_of_code_stay_as_they_are():
    trace = "  File\n\n\n    raise x\n"
    (block,) = (token for token in PARSER.parse(render(CodeBlock(trace))) if token.type == "fence")
    assert block.content == trace


def test_every_kind_of_node_has_a_rendering():
    """A new kind needs an entry above, and one in the renderer: without the latter, rendering fails."""
    assert set(NODES) == set(get_args(Node))
    assert set(INLINES) == set(get_args(Inline))
    unknown: Any = object()
    for report in (Report("", (unknown,)), Report("", (paragraph(unknown),)), Report("", (List((unknown,)),))):
        with pytest.raises(AssertionError):
            markdown.render(report)


def test_every_kind_of_value_and_column_is_written():
    assert set(formatting.DIGITS) == set(Kind)
    unknown: Any = object()
    with pytest.raises(AssertionError):
        formatting.written(unknown, NUMBER)


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (Kind.TEXT, None, "-"),
        (Kind.COUNT, 12345, "12345"),
        (Kind.GROUPED, 12345.6, "12,346"),
        (Kind.UNTIL, math.inf, "never"),
        (Kind.UNTIL, Interval(4.0, math.inf, 0.75), "4 – never (75%)"),
        (Kind.PERCENT, 12.6, "13%"),
        (Kind.COUNT, OutOf(3, 5), "3/5"),
        (Kind.ROUNDED, Measured(1.2345, None, condition="split 20"), "1.23 (split 20)"),
        (Kind.ROUNDED, Measured(1.9172, Interval(1.9071, 1.9273, 0.95)), "1.917 [1.907, 1.927]"),
        (Kind.ROUNDED, Measured(132130.0, Interval(71000, 245000, 0.95), with_interval=False), "130,000"),
        (Kind.ROUNDED, IntervalOf(6740.2, Interval(6728.3, 6752.1, 0.95)), "6,728 – 6,752"),
        (Kind.ROUNDED, PerStage((14.12, 10.5)), "14.1 / 10.5"),
        (Kind.ROUNDED, Beside(25.8, None), "25.8 (-)"),
        (Kind.HUNDREDTHS, ByCache((("cold", 9.0), ("warm", 2.0))), "9.00 cold, 2.00 warm"),
        (Kind.ROUNDED, Quantity(1234.5, "samples/s"), "1,234 samples/s"),
        (Kind.PARITY, ParityError(4.3e-4, True, "exact"), "5e-04"),
        (Kind.PARITY, ParityError(1.0, False, "exact"), "FAILED (1e+00)"),
        (Kind.ERROR, OfTolerance(1e-14, 1e-9), "1.0e-14 of 1e-09"),
        (Kind.GROUPED, Formula(1234, "2 P"), "1,234 = 2 P"),
    ],
)
def test_values_are_written_as_their_column_says(kind, value, text):
    assert formatting.written(value, Column(name="n", kind=kind)) == text


def test_a_unit_is_written_unless_it_is_that_of_the_column():
    column = Column(name="throughput", kind=Kind.ROUNDED, unit="images/s")
    assert formatting.written(Quantity(12.0, "images/s"), column) == "12"
    assert formatting.written(Quantity(12.0, "samples/s"), column) == "12 samples/s"


def test_columns_of_numbers_are_aligned_to_the_right_and_those_of_words_never():
    reasons = Column(name="reason", kind=Kind.TEXT)
    table = Table((NUMBER, reasons), ((1234.0, "60 s"), (None, "1 TiB")))
    rule = render(table).splitlines()[3]
    number, words = rule.strip("|").split("|")
    assert (number[-1], words[0]) == (":", ":")


def test_a_row_has_a_value_for_each_column():
    with pytest.raises(ValueError, match="1 columns"):
        Table((NUMBER,), ((1.0, 2.0),))


def real_reports() -> Iterator[tuple[str, Report]]:
    """Those that are published, and those of all situations in scenes.py."""
    made = {path.parent.name: store.read(path.parent) for path in ROOT.glob("reports/[!2]*/results.jsonl")}
    made |= {name: scene() for name, scene in SCENES.items()}
    for name, results in made.items():
        yield name, document.build(summary.summarize(results), results)


def is_a_number(text: str) -> bool:
    try:
        float(text.replace(",", "").removesuffix("%"))
    except ValueError:
        return False
    return True


def test_all_numbers_of_a_report_are_numbers():
    numeric = 0
    for name, report in real_reports():
        for table in (node for node in walk(report) if isinstance(node, Table)):
            for column in table.columns:
                values = table.values(column.name)
                where = f"{name}: {column.heading}: {values}"
                if column.kind.numeric or column.kind is Kind.PARITY:
                    numeric += len(values)
                    assert all(value is None or isinstance(value, int | float | Composite) for value in values), where
                elif column.kind is Kind.TEXT and column.name not in (
                    "value",
                    "launches",
                ):  # a driver's version, or numbers of launches
                    assert not any(isinstance(value, str) and is_a_number(value) for value in values), where
    assert numeric > 1000


def test_a_report_has_its_figures_with_the_data_that_they_show():
    for name, report in real_reports():
        shown = [node for node in walk(report) if isinstance(node, Figure)]
        assert len({figure.file for figure in shown}) == len(shown), name
        assert all(isinstance(figure.data, PictureData) for figure in shown), name
