"""Found by the harness through the entry point beside this package, as any plug-in is."""

from harness.spec import FrameworkSpec, StrategySpec

ONE_PROCESS = (
    "wrong_gradient",
    "out_of_memory",
    "diverge",
    "wrong_when_timed",
    "leave_child",
    "hang_with_child",
    "hang_when_timed",
    "noisy",
    "slow_when_timed",
    "tell",
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
)

FRAMEWORK = FrameworkSpec(
    name="fake",
    title="Fake",
    package="fake_impl",
    modules=("numpy",),
    distributions=("numpy",),
    install_hint="it is here",
    execution="numpy",
    strategies=(
        StrategySpec(name="single", summary="right", processes="one", parallelism="none"),
        *(StrategySpec(name=name, summary=name, processes="one", parallelism="none") for name in ONE_PROCESS),
        *(StrategySpec(name=name, summary=name, processes="per_device", min_devices=2) for name in PER_DEVICE),
    ),
)
