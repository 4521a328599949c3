from harness.spec import FrameworkSpec, StrategySpec

FRAMEWORK = FrameworkSpec(
    name="broken",
    title="Broken",
    package="broken_impl",
    modules=("numpy",),
    distributions=("numpy",),
    install_hint="reinstall it",
    execution="numpy",
    strategies=(StrategySpec(name="single", summary="never starts", processes="one", parallelism="none"),),
)
