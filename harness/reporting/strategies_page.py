"""docs/strategies.md: every strategy of every framework in one table, made from the manifests.

python -m harness list strategies --markdown > docs/strategies.md
"""

from __future__ import annotations

from dataclasses import dataclass

from harness import workloads
from harness.gate import traffic
from harness.reporting import not_offered
from harness.reporting.columns import ColumnOf, make_table
from harness.reporting.model import Code, Inline, Link, Paragraph, Report, Section, SoftBreak, Strong, Table, paragraph
from harness.reporting.values import Formula, Kind, Value
from harness.spec import FrameworkSpec, StrategySpec, Traffic, registry
from harness.workloads import Workload

EXAMPLES, DEVICES = (("mnist_cnn", "base"), ("resnet50", "imagenet")), 2  # in the columns of bytes
SAME_TRAINING = {"synchronous": "yes", "local": "no: local", "asynchronous": "no: asynchronous"}
NORMALIZED = {"global": "the batch", "per_device": "each device's share", "per_microbatch": "each micro-batch"}
BREAK = SoftBreak()

INTRODUCTION = paragraph(
    "This page is made from the manifests by ",
    Code("python -m harness list strategies --markdown"),
    ", and a test keeps it up to date.",
)
READING = paragraph(
    "Each strategy is one file, written to be read as a lesson. The scripts in ",
    Link("lessons/", "lessons/README.md"),
    " are the",
    BREAK,
    "shortest way in: each uses a framework alone. ",
    Link("misconceptions.md", "misconceptions.md"),
    " says what tutorials get wrong.",
    BREAK,
    "The command after a group runs it; without GPUs, on virtual CPU devices. Its report says what each device holds",
    BREAK,
    "and sends.",
)
READING_ORDER: dict[str, tuple[Traffic, ...]] = {
    "One device": ("none",),
    "The batch is split, and gradients are averaged": ("all_reduce", "replicate"),
    "Parameters and optimizer state are sharded as well": ("shard",),
    "The network is cut into stages": ("activations", "every_tick"),
    "Devices wait for each other less, and train differently": ("average", "push_pull"),
}
"""Groups of strategies by what crosses devices, in the order to read them."""
CLAIMS = paragraph(
    Strong("Same training"),
    ": whether it claims to compute what one device computes on the whole batch. The parity gate proves the",
    BREAK,
    "claim in float64. A strategy without the claim is a different algorithm: the gate proves it against its own "
    "reference,",
    BREAK,
    "and reports never rank it with the others. ",
    Strong("BatchNorm over"),
    ": which samples share statistics. The default comes first;",
    BREAK,
    Code("--batch-norm"),
    " chooses one of the others. ",
    Strong("Options"),
    " are given as ",
    Code("--option NAME=VALUE"),
    ".",
)
FORMULAS = paragraph(
    "n is the number of devices, P the bytes of parameters, A the bytes of a batch's activations at the widest cut, "
    "and K the",
    BREAK,
    "number of steps between two synchronizations. Tests compare the formulas with what PyTorch's profiler counts in a "
    "step",
    BREAK,
    "of ",
    Code("ddp"),
    ", ",
    Code("average_gradients"),
    " and ",
    Code("local_sgd"),
    ", and with the collectives in XLA's compiled programs of JAX's",
    BREAK,
    "data-parallel strategies.",
)


def page() -> Report:
    """The whole page."""
    frameworks = [registry.framework(name) for name in registry.FRAMEWORKS]
    rows = [_Row(framework, strategy) for framework in frameworks for strategy in framework.strategies]
    body = (
        INTRODUCTION,
        Section("Where to begin", (READING, *_reading_order(rows))),
        Section(
            "What each strategy stores, sends and waits for",
            (paragraph(*_bytes_per_step()), make_table(CONDUCT, rows)),
        ),
        Section("What each strategy claims, and its options", (CLAIMS, make_table(PROPERTIES, rows))),
        Section("Bytes per step", (FORMULAS, _formulas(rows))),
        Section(
            not_offered.TITLE,
            (paragraph(not_offered.NOTE), not_offered.table({each.title: each.not_offered for each in frameworks})),
        ),
    )
    return Report("The strategies", body)


@dataclass(frozen=True)
class _Row:
    framework: FrameworkSpec
    strategy: StrategySpec


def _reading_order(rows: list[_Row]) -> list[Paragraph]:
    """A paragraph for each group: its name, a link to each strategy's file, and the command that runs them."""
    found = []
    for title, kinds in READING_ORDER.items():
        chosen = [row for row in rows if row.strategy.traffic in kinds]
        names = ",".join(dict.fromkeys(row.strategy.name for row in chosen))
        pieces: list[Inline] = [Strong(title), ":"]
        for framework in dict.fromkeys(row.framework.title for row in chosen):
            of_framework = [row for row in chosen if row.framework.title == framework]
            links = [piece for row in of_framework for piece in (", ", _link(row))][1:]
            pieces += [BREAK, f"{framework}: ", *links, "."]
        found.append(Paragraph((*pieces, BREAK, Code(f"python -m harness run --workload toy --strategy {names}"))))
    return found


def _link(row: _Row) -> Link:
    return Link(row.strategy.name, f"../{row.framework.package}/strategies/{row.strategy.name}.py")


def _bytes_per_step() -> tuple[Inline, ...]:
    """What the columns of bytes count, and for which examples."""
    small, large = (workloads.get(*example) for example in EXAMPLES)
    return (
        Strong("Bytes per step"),
        f": what the busiest of {DEVICES} devices sends in float32 with default options, by the formulas at the end of",
        BREAK,
        "this page. ",
        *_example(small),
        ".",
        BREAK,
        *_example(large),
        ";",
        BREAK,
        f"it is cut after {large.usual_cut(DEVICES)}.",
        BREAK,
        "Which are larger, gradients or activations, depends on the network. The batch itself, its outputs,",
        BREAK,
        "BatchNorm's statistics and the loss are not counted.",
    )


def _example(workload: Workload) -> tuple[Inline, ...]:
    parameters = f"{traffic.parameter_bytes(workload):,} bytes of parameters"
    each = " (under data parallelism, on each device)" if workload.batch_per_device else ""
    return Code(workload.name), f" has {parameters} and a batch of {workload.global_batch}{each}"


def _bytes_sent(row: _Row, example: tuple[str, str]) -> float:
    return traffic.bytes_sent(row.strategy, workloads.get(*example), devices=DEVICES)


def _with_formula(row: _Row) -> Value:
    sent = _bytes_sent(row, EXAMPLES[0])
    return Formula(sent, traffic.FORMULAS[row.strategy.traffic][0]) if sent else 0


def _processes(row: _Row) -> str:
    if row.strategy.processes == "per_device":
        return "one per device"
    return "one; over hosts, one per device" if row.strategy.spreads else "one"


def _normalized(row: _Row) -> str:
    """The default first, then what --batch-norm can choose."""
    others = row.strategy.other_normalizations.items()
    normalized = [NORMALIZED[name] + (" (on GPUs)" if reason else "") for name, reason in others]
    return "; ".join([NORMALIZED[row.strategy.normalization], *normalized])


def _options(row: _Row) -> Value:
    return "; ".join(f"{option.name} ({option.values_in_words})" for option in row.strategy.options) or None


NAMES = (
    ColumnOf[_Row](name="framework", kind=Kind.TEXT, value=lambda row: row.framework.title),
    ColumnOf[_Row](name="strategy", kind=Kind.TEXT, value=lambda row: row.strategy.name),
)
CONDUCT = (
    *NAMES,
    ColumnOf[_Row](name="replicated", kind=Kind.TEXT, value=lambda row: row.strategy.replicated),
    ColumnOf[_Row](name="sharded", kind=Kind.TEXT, value=lambda row: row.strategy.sharded),
    ColumnOf[_Row](name="crosses devices", kind=Kind.TEXT, value=lambda row: row.strategy.crosses),
    *(
        ColumnOf[_Row](name=name, kind=Kind.GROUPED, value=value, unit="B", shown_as=name)
        for name, value in (
            ("bytes per step, mnist_cnn", _with_formula),
            ("bytes per step, resnet50", lambda row: _bytes_sent(row, EXAMPLES[1])),
        )
    ),
    ColumnOf[_Row](name="who waits for whom", kind=Kind.TEXT, value=lambda row: row.strategy.waits),
    ColumnOf[_Row](name="use it when", kind=Kind.TEXT, value=lambda row: row.strategy.use),
)
PROPERTIES = (
    *NAMES,
    ColumnOf[_Row](name="what it is", kind=Kind.TEXT, value=lambda row: row.strategy.summary),
    ColumnOf[_Row](
        name="processes",
        kind=Kind.TEXT,
        value=_processes,
    ),
    ColumnOf[_Row](name="same training", kind=Kind.TEXT, value=lambda row: SAME_TRAINING[row.strategy.algorithm]),
    ColumnOf[_Row](name="BatchNorm over", kind=Kind.TEXT, value=_normalized),
    ColumnOf[_Row](name="options", kind=Kind.TEXT, value=_options),
)
TrafficFormula = tuple[str, tuple[str, str]]
"""A kind of traffic, its formula, and the source."""
TRAFFIC = (
    ColumnOf[TrafficFormula](name="kind", kind=Kind.TEXT, value=lambda row: row[0].replace("_", " ")),
    ColumnOf[TrafficFormula](name="each device sends", kind=Kind.TEXT, value=lambda row: row[1][0]),
    ColumnOf[TrafficFormula](name="why", kind=Kind.TEXT, value=lambda row: row[1][1] or "nothing crosses devices"),
)


def _formulas(rows: list[_Row]) -> Table:
    kinds = {row.strategy.traffic for row in rows}
    return make_table(TRAFFIC, [(kind, formula) for kind, formula in traffic.FORMULAS.items() if kind in kinds])
