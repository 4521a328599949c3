"""Guarantees about the program that is timed, as it is after its last block."""

from guarantee import Break, Guarantee

TITLE = "The timed program"

INSPECTIONS = "harness/worker/after_blocks.py"
CAUGHT = "test_timed_faults::test_a_timed_program_that_is_wrong_is_caught"


def _left_out(inspection: str, planted: str) -> Break:
    """The inspection is not made, so the planted fault must go unseen by it."""
    return Break(
        fault=f"the inspection `{inspection}` is left out",
        edits=((INSPECTIONS, f"    {inspection},\n", ""),),
        tests=(f"{CAUGHT}[{planted}]",),
    )


GUARANTEES = (
    Guarantee(
        name="after-the-blocks",
        promise="After its last block the timed program is inspected: replicas, one more step, calls from where it "
        "ended and from the initial weights, the curve once more, number formats, and what each device holds and "
        "sends.",
        breaks=(
            _left_out("replicas", "torch-ddp_falls_silent_after_the_curve"),
            _left_out("further_step", "torch-half_of_the_batch_in_the_blocks"),
            _left_out("call_on_new_batches", "torch-large_gradients_are_clipped"),
            _left_out("statistics_kept", "torch-each_micro_batch_moves_the_statistics_as_a_step_does"),
            _left_out("further_call", "torch-half_of_the_layers_learn_for_twenty_five_updates"),
            _left_out("number_formats", "torch-buckets_compressed_unasked"),
            _left_out("exported_parameters", "torch-exports_the_weights_of_rank_0"),
            _left_out("devices_and_traffic", "torch-every_rank_takes_the_whole_batch"),
            _left_out("curve_from_the_start", "torch-works_no_more_after_twenty_five_steps"),
            Break(
                fault="one right call of several is enough",
                edits=(("harness/gate/further_update.py", "PASSES, ATTEMPTS = 2, 4", "PASSES, ATTEMPTS = 1, 4"),),
                tests=(f"{CAUGHT}[torch-three_of_four_new_batches_make_no_update]",),
            ),
            Break(
                fault="counts of updates are not known by their names",
                edits=(
                    (
                        "harness/gate/timed_program.py",
                        'COUNTS = ("step", "steps", "count", "updates")',
                        "COUNTS = ()",
                    ),
                ),
                tests=("test_timed_program::test_every_count_of_updates_is_read[optimizer/updates]",),
            ),
            Break(
                fault="the wait after sync is not measured",
                edits=(
                    (
                        "harness/worker/timing.py",
                        "return found, (first - start) - (clock() - first)",
                        "return found, 0.0",
                    ),
                ),
                tests=(f"{CAUGHT}[jax-jax_does_not_wait]",),
            ),
            Break(
                fault="reading the state after the watched block is not timed",
                edits=(
                    (
                        "harness/worker/watched_block.py",
                        "left.append(longer)",
                        "left.append(0.0)",
                    ),
                ),
                tests=(f"{CAUGHT}[torch-steps_are_put_off]",),
            ),
            Break(
                fault="the watched block may take as long as it likes",
                edits=(("harness/gate/timed_program.py", '"gpu": 2.0, "cpu": 6.0', '"gpu": 1e9, "cpu": 1e9'),),
                tests=(f"{CAUGHT}[torch-all_steps_are_made_only_where_the_state_is_read]",),
            ),
            Break(
                fault="replicas are compared with a NaN",
                edits=(
                    (
                        "harness/gate/distances.py",
                        "if found.shape != right.shape or not np.all(np.isfinite(found)):",
                        "if found.shape != right.shape:",
                    ),
                ),
                tests=("test_timed_program::test_replicas_may_not_differ",),
            ),
        ),
    ),
    Guarantee(
        name="noise",
        promise="Tolerances of the timed curve come from the noise of each workload and precision, within limits.",
        breaks=(
            Break(
                fault="noise may widen a tolerance without a limit",
                edits=(
                    (
                        "harness/gate/timed_curve.py",
                        "return min(max(getattr(least, field), getattr(rounded, field), needed), getattr(MOST, field))",
                        "return max(getattr(least, field), getattr(rounded, field), needed)",
                    ),
                ),
                tests=("test_timed_program::test_noise_widens_tolerances_up_to_a_limit",),
            ),
            Break(
                fault="noise widens no tolerance",
                edits=(("harness/gate/timed_curve.py", "FACTOR = 5.0", "FACTOR = 0.0"),),
                tests=("test_timed_program::test_noise_widens_tolerances_up_to_a_limit",),
            ),
            Break(
                fault="residual blocks do not round",
                edits=(
                    (
                        "harness/layers/chains.py",
                        "Residual(mapped(layer.body, change), mapped(layer.shortcut, change))",
                        "layer",
                    ),
                ),
                tests=("test_timed_program::test_residual_blocks_round_within",),
            ),
        ),
    ),
)
