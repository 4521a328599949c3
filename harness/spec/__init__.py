"""The nouns of the suite: what a framework offers (strategy), what is measured (trial), and what came of it (result).

Frozen data and nothing else. Workers read and write it as JSON with the standard library alone, so their interpreters
need only NumPy and their own framework. `harness.results.store` validates it when it comes back.
"""

from harness.spec.causes import Cause, CauseKind
from harness.spec.checks import Check
from harness.spec.conditions import Conditions, Described, DescribedSetting, RunFacts
from harness.spec.disturbances import Disturbance
from harness.spec.hardware import Gpu, Hardware
from harness.spec.kinds import (
    FAILURES,
    Algorithm,
    BatchGrowth,
    CompileCache,
    CurveReference,
    GuardMode,
    Holding,
    Input,
    LastBatch,
    Normalization,
    Platform,
    Precision,
    Processes,
    Protocol,
    Quantity,
    Role,
    Schedule,
    Status,
    TelemetryMode,
    ToleranceSet,
    Track,
    Traffic,
)
from harness.spec.layer_settings import (
    GATHERED_POOLING,
    batch_norm_relu,
    first_layers,
    of_layers,
    why_without_batch_norm,
)
from harness.spec.link import Link
from harness.spec.measured import Bounds, DeviceShare, Epoch, Execution, LinkRate, RankResult, Span, Timing, Training
from harness.spec.number_formats import NumberFormats, Places
from harness.spec.option import (
    AVERAGINGS_IN_PARITY,
    CUT,
    MICRO_BATCHES,
    PUSHES_IN_PARITY,
    SPLIT_SIZE,
    CellShape,
    Option,
    ParityPhase,
)
from harness.spec.result import (
    CHECKED_LOSSES,
    CUT_SHORT,
    OUT_OF_TIME,
    SCHEMA_VERSION,
    Parity,
    TrialResult,
)
from harness.spec.run_options import RunOptions
from harness.spec.strategy import FrameworkSpec, Setting, SettingCell, StrategySpec, obstacle_in
from harness.spec.telemetry import GpuErrors, GpuTelemetry, HostLoad, Telemetry
from harness.spec.trial import FROM_HOST_VERSION, MOST_SAMPLES, OptimizerSpec, TrainingSpec, TrialSpec
from harness.spec.tuning import TuningEffort

__all__ = [
    "AVERAGINGS_IN_PARITY",
    "CHECKED_LOSSES",
    "CUT",
    "CUT_SHORT",
    "FAILURES",
    "FROM_HOST_VERSION",
    "GATHERED_POOLING",
    "MICRO_BATCHES",
    "MOST_SAMPLES",
    "OUT_OF_TIME",
    "PUSHES_IN_PARITY",
    "SCHEMA_VERSION",
    "SPLIT_SIZE",
    "Algorithm",
    "BatchGrowth",
    "Bounds",
    "Cause",
    "CauseKind",
    "CellShape",
    "Check",
    "CompileCache",
    "Conditions",
    "CurveReference",
    "Described",
    "DescribedSetting",
    "DeviceShare",
    "Disturbance",
    "Epoch",
    "Execution",
    "FrameworkSpec",
    "Gpu",
    "GpuErrors",
    "GpuTelemetry",
    "GuardMode",
    "Hardware",
    "Holding",
    "HostLoad",
    "Input",
    "LastBatch",
    "Link",
    "LinkRate",
    "Normalization",
    "NumberFormats",
    "OptimizerSpec",
    "Option",
    "Parity",
    "ParityPhase",
    "Places",
    "Platform",
    "Precision",
    "Processes",
    "Protocol",
    "Quantity",
    "RankResult",
    "Role",
    "RunFacts",
    "RunOptions",
    "Schedule",
    "Setting",
    "SettingCell",
    "Span",
    "Status",
    "StrategySpec",
    "Telemetry",
    "TelemetryMode",
    "Timing",
    "ToleranceSet",
    "Track",
    "Traffic",
    "Training",
    "TrainingSpec",
    "TrialResult",
    "TrialSpec",
    "TuningEffort",
    "batch_norm_relu",
    "first_layers",
    "obstacle_in",
    "of_layers",
    "why_without_batch_norm",
]
