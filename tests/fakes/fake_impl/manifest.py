"""Found by the harness through the entry point beside this package, as any plug-in is."""

import os

from harness.spec import FrameworkSpec, Option, StrategySpec

ONE_PROCESS = (
    "wrong_gradient",
    "out_of_memory",
    "small_memory",
    "diverge",
    "wrong_when_timed",
    "without_state",
    "without_weights",
    "leave_child",
    "hang_with_child",
    "hang_when_timed",
    "noisy",
    "odd_message",
    "tell",
    "leave_early",
    "scribble",
)
PER_DEVICE = (
    "replicated",
    "crash_rank1",
    "kill_rank1",
    "hang_rank1",
    "crash_in_timing",
    "stale_rank1",
    "abort_after_rank1",
    "wrong_then_killed",
    "slow",
    "slow_when_timed",
)

# Options that the harness understands, under names that it does not know.
MEET_AFTER = Option(
    name="meet_after",
    summary="steps between two meetings",
    default=2,
    least=1,
    role="averaging_interval",
    always_shown=True,
    in_parity=lambda interval, phase: min(interval, 3),
)
HOW = Option(
    name="how",
    summary="which formula",
    default="mean",
    choices=("mean", "from_the_first"),
    not_applicable=lambda how, cell: "nobody to meet" if how != "mean" and cell.devices == 1 else "",
)
PIECES = Option(name="pieces", summary="number of pieces", default=2, least=1, role="micro_batches")
PIECE = Option(
    name="piece",
    summary="size of a piece",
    default=0,
    role="micro_batch_size",
    replaces="pieces",
)

FRAMEWORK = FrameworkSpec(
    name="fake",
    title="Fake",
    package="fake_impl",
    modules=("numpy",),
    distributions=("numpy",),
    install_hint="it is here",
    execution="numpy",
    forks=os.environ.get("FAKE_FORKS", "") == "1",
    strategies=(
        StrategySpec(name="single", summary="right", processes="one", parallelism="none"),
        *(StrategySpec(name=name, summary=name, processes="one", parallelism="none") for name in ONE_PROCESS),
        *(StrategySpec(name=name, summary=name, processes="per_device", min_devices=2) for name in PER_DEVICE),
        StrategySpec(
            name="meet_rarely", summary="local", processes="one", algorithm="local", options=(MEET_AFTER, HOW)
        ),
        StrategySpec(
            name="pieces",
            summary="a pipeline",
            processes="one",
            parallelism="pipeline",
            normalization="per_microbatch",
            options=(PIECES, PIECE),
        ),
    ),
)
