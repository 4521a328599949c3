"""The data that a report's pictures show, one type per kind of picture. Each picture is drawn from these alone."""

from __future__ import annotations

from dataclasses import dataclass

from harness.spec import Span
from harness.statistics.intervals import Interval


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """One cell's samples per second: the mean, its interval, and every launch.

    `written`: the mean, with its digits. `ideal`: the speed of single on one device, times the devices; None on one
    device, or without such a speed.
    """

    label: str
    framework: str
    track: str
    devices: int
    mean: float
    written: str
    interval: Interval | None
    ideal: float | None
    launches: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Throughputs:
    """The throughputs of cells. `unit` is what is counted, such as "image"."""

    title: str
    unit: str
    cells: tuple[Throughput, ...]


@dataclass(frozen=True, kw_only=True)
class Relative:
    """How much faster one cell is than the fastest of its group, in percent: negative, as a rule."""

    label: str
    framework: str
    percent: float
    interval: Interval | None


@dataclass(frozen=True, kw_only=True)
class RelativePanel:
    """A group of cells, relative to its fastest. `margin_percent`: within which two cells may tie."""

    title: str
    best: str
    framework: str  # of the fastest
    margin_percent: float
    cells: tuple[Relative, ...]


@dataclass(frozen=True, kw_only=True)
class Relatives:
    """The speeds of cells relative to the fastest of their groups."""

    panels: tuple[RelativePanel, ...]


@dataclass(frozen=True, kw_only=True)
class LossCurve:
    """One cell's loss at each step, and the golden reference's, if it has one."""

    label: str
    framework: str
    global_batch: int
    losses: tuple[float, ...]
    golden: tuple[float, ...]
    by_numpy: bool = True  # whether NumPy computed the reference, and not the device


@dataclass(frozen=True, kw_only=True)
class LossCurves:
    """The loss curves of cells."""

    title: str
    cells: tuple[LossCurve, ...]


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """The test accuracy, in percent, after so many samples and seconds of training."""

    samples: int
    seconds: float
    percent: float


@dataclass(frozen=True, kw_only=True)
class LearningCurve:
    """One cell's accuracies after each epoch, for each seed."""

    label: str
    framework: str
    seeds: tuple[tuple[Accuracy, ...], ...]


@dataclass(frozen=True, kw_only=True)
class LearningCurves:
    """The learning curves of cells, and the accuracy in percent that they should reach."""

    title: str
    unit: str
    judged: str  # the samples of the accuracies: "validation", or "test" in old records
    target_percent: float
    cells: tuple[LearningCurve, ...]


@dataclass(frozen=True, kw_only=True)
class Bar:
    """Seconds of one setting: the mean, and its interval if it is known."""

    name: str
    mean: float
    interval: Interval | None


@dataclass(frozen=True, kw_only=True)
class BarPanel:
    """The bars of one source, such as the published numbers."""

    title: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, kw_only=True)
class TutorialBars:
    """The tutorial's published times (the first panel) and the measured ones. `title` is "" if it needs none."""

    title: str
    panels: tuple[BarPanel, ...]


@dataclass(frozen=True, kw_only=True)
class SweepPoint:
    """Seconds per step at one value of an option: mean, interval, and the ideal if there is one."""

    value: float | str
    name: str
    mean: float
    interval: Interval | None
    ideal: float | None


@dataclass(frozen=True, kw_only=True)
class SweepCurve:
    """The step times of a sweep. `single`: seconds per step on a single device, if that was measured."""

    title: str
    option: str
    framework: str
    points: tuple[SweepPoint, ...]
    single: float | None


@dataclass(frozen=True, kw_only=True)
class FitsPoint:
    """Peak memory and samples per second at one global batch."""

    global_batch: int
    peak_mebibytes: float
    mean: float


@dataclass(frozen=True, kw_only=True)
class FitsCurve:
    """One program at several batches. `full`: the smallest that did not fit, if any did not."""

    label: str
    framework: str
    full: int | None
    points: tuple[FitsPoint, ...]


@dataclass(frozen=True, kw_only=True)
class Fits:
    """Throughput over memory. `memory`: whose memory it is."""

    title: str
    unit: str
    memory: str
    curves: tuple[FitsCurve, ...]


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """What each stage did in one traced step. `ideal`: the same work without any waiting."""

    title: str
    spans: tuple[Span, ...]
    ideal: tuple[Span, ...]


PictureData = Throughputs | Relatives | LossCurves | LearningCurves | TutorialBars | SweepCurve | Fits | Timeline
