"""Guarantees about the proof that cells compute the same training, and about what may be timed."""

from guarantee import Break, Guarantee

TITLE = "The gate, and what is timed"

REPEATED = "test_sessions::test_a_proof_is_made_again_on_other_samples_and_kept_on_the_same"
EVERY_FILE = "test_workers::test_every_file_on_the_workers_side_counts_for_a_proof"
SKIPPED = "test_fits::test_a_cell_out_of_memory_is_skipped_at_larger_batches_and_the_others_go_on"
DOUBLED_RATE = (
    "torch_impl/optim.py",
    "rate: float | torch.Tensor = spec.learning_rate\n",
    "rate: float | torch.Tensor = 2 * spec.learning_rate\n",
)

GUARANTEES = (
    Guarantee(
        name="independent-reference",
        promise="The reference is computed by none of the frameworks: nothing in the harness imports one, or an "
        "implementation, and every golden loop runs where none can be imported.",
        breaks=(
            Break(
                fault="a layer of the reference imports a framework",
                edits=(
                    ("harness/layers/activations.py", "import numpy as np\n", "import numpy as np\nimport torch\n"),
                ),
                tests=(
                    "test_architecture::test_harness_imports_no_framework_and_no_implementation[harness/layers/activations.py]",
                    "test_golden_runs::test_references_are_computed_where_no_framework_can_be_imported",
                ),
            ),
            Break(
                fault="the reference's optimizer loads a framework by its name, which its source does not show",
                edits=(
                    (
                        "harness/reference/loops.py",
                        "            after_first = params\n    if kept",
                        '            after_first = params\n        __import__("".join(["j", "ax"]))\n    if kept',
                    ),
                ),
                tests=("test_golden_runs::test_references_are_computed_where_no_framework_can_be_imported",),
            ),
        ),
    ),
    Guarantee(
        name="reference-by-derivatives",
        promise="The reference itself is held by finite differences and by definitions written out.",
        breaks=(
            Break(
                fault="the pullback of ReLU lets everything through",
                edits=(("harness/layers/activations.py", "(dy * (y > 0), {})", "(dy * (y >= 0), {})"),),
                tests=("test_golden::test_every_pullback_is_the_derivative[relu]",),
            ),
            Break(
                fault="the gradient of the mean loss is that of the sum",
                edits=(
                    (
                        "harness/reference/losses.py",
                        "factors[:, None] * gradient / count",
                        "factors[:, None] * gradient",
                    ),
                ),
                tests=("test_golden::test_loss_gradients_are_derivatives_of_the_mean",),
            ),
        ),
    ),
    Guarantee(
        name="planted-faults",
        promise="The gate catches every planted fault of docs/parity.md, each of which proves that its wrong code ran, "
        "and passes the same cells without them; every strategy has a fault of its own.",
        breaks=(
            Break(
                fault="the gate lets everything through",
                edits=(
                    (
                        "harness/gate/parity.py",
                        "return float(np.max(np.abs(found - expected)) / scale)",
                        "return 0.0 * scale",
                    ),
                ),
                tests=(
                    "test_faults::test_the_gate_catches[torch-loss_divided_twice]",
                    "test_faults::test_the_gate_catches[jax-no_pmean]",
                    "test_faults::test_the_gate_catches[tf-rate_through_float32]",
                ),
            ),
            Break(
                fault="faults are not planted",
                edits=(
                    (
                        "tests/forked/zygote.py",
                        "planted.plant(fault, folder)",
                        'importlib.import_module("planted")',
                    ),
                ),
                tests=("test_faults::test_the_gate_catches[torch-loss_divided_twice]",),
            ),
            Break(
                fault="a fault's code never runs, and its cell is wrong for another reason",
                edits=(
                    (
                        "tests/faults/torch_faults.py",
                        'replaced(losses, "get", lambda original: lambda name: firing(lambda out, y: '
                        "original(name)(out, y) / len(y)))",
                        'replaced(losses, "accuracy", lambda original: lambda name: firing(lambda out, y: '
                        "original(name)(out, y) / len(y)))",
                    ),
                    DOUBLED_RATE,
                ),
                tests=("test_faults::test_the_gate_catches[torch-loss_divided_twice]",),
            ),
            Break(
                fault="a cell is wrong without any fault",
                edits=(DOUBLED_RATE,),
                tests=("test_faults::test_without_a_fault_the_gate_passes[torch single]",),
            ),
            Break(
                fault="a strategy has no fault",
                edits=(("tests/faults/jax_faults.py", '@planted("jax fsdp")', '@planted("jax pmap")'),),
                tests=("test_faults::test_every_strategy_has_a_fault_of_its_own",),
            ),
            Break(
                fault="a fault is not in docs/parity.md",
                edits=(("docs/parity.md", "| `lost_update` |", "| lost update |"),),
                tests=("test_faults::test_the_documentation_lists_every_fault",),
            ),
        ),
    ),
    Guarantee(
        name="nothing-slips-through",
        promise="Every quantity, tensor, replica and rank counts, what is not finite is infinitely wrong, and no noise "
        "of the reference excuses more than 1e-6.",
        breaks=(
            Break(
                fault="the first replica alone is compared",
                edits=(
                    (
                        "harness/gate/parity.py",
                        "for index, replica in enumerate(replicas):",
                        "for index, replica in enumerate(list(replicas)[:1]):",
                    ),
                ),
                tests=("test_parity::test_every_replica_counts",),
            ),
            Break(
                fault="the first rank alone is judged",
                edits=(
                    (
                        "harness/gate/parity.py",
                        "    ranks = list(ranks)\n",
                        "    ranks = list(ranks)[:1]\n",
                    ),
                ),
                tests=("test_parity::test_merge_takes_the_worst_rank_and_wants_every_quantity",),
            ),
            Break(
                fault="what no rank could show has passed",
                edits=(
                    (
                        "harness/gate/parity.py",
                        "missing = Check(quantity=quantity, error=math.inf,",
                        "missing = Check(quantity=quantity, error=0.0,",
                    ),
                ),
                tests=("test_parity::test_merge_takes_the_worst_rank_and_wants_every_quantity",),
            ),
            Break(
                fault="tensors that are missing are passed over",
                edits=(("harness/gate/parity.py", "    if found.keys() != expected.keys():\n", "    if not found:\n"),),
                tests=("test_parity::test_missing_extra_or_misshapen_tensors_fail",),
                error="KeyError",
            ),
            Break(
                fault="NaN is compared like a number",
                edits=(
                    (
                        "harness/gate/parity.py",
                        " or not np.all(np.isfinite(found)):\n        return math.inf",
                        ":\n        return math.inf",
                    ),
                ),
                tests=("test_parity::test_what_is_not_finite_is_infinitely_wrong",),
            ),
            Break(
                fault="parameters are judged by their size, not by how they moved",
                edits=(("harness/gate/parity.py", "np.abs(expected[name] - start)", "np.abs(expected[name])"),),
                tests=("test_parity::test_parameters_are_judged_by_their_movement",),
            ),
            Break(
                fault="noise of the reference excuses anything",
                edits=(("harness/gate/parity.py", "min(MOST_ALLOWED, NOISE_FACTOR *", "max(0.0, NOISE_FACTOR *"),),
                tests=("test_parity::test_what_the_reference_cannot_hold_itself_is_not_asked_of_others",),
            ),
        ),
    ),
    Guarantee(
        name="never-timed",
        promise="A cell that fails the gate is never timed; a wrong result counts though another rank fails, and is "
        "not tried again.",
        breaks=(
            Break(
                fault="cells are timed whatever the gate said",
                edits=(
                    (
                        "harness/session/measuring.py",
                        'if proof is None or proof.status != "ok":\n            self.display.advance()',
                        "if proof is None:\n            self.display.advance()",
                    ),
                ),
                tests=("test_launch::test_every_launch_of_a_failing_cell_gets_its_row_and_none_is_timed",),
            ),
            Break(
                fault="where a rank was killed, what others found is not looked at",
                edits=(
                    (
                        "harness/results/judge.py",
                        "_wrong([check for proof in proofs for check in proof.checks])",
                        "_wrong([])",
                    ),
                ),
                tests=("test_proofs::test_a_wrong_result_counts_though_another_rank_is_killed",),
            ),
            Break(
                fault="a wrong result beside others is tried again alone",
                edits=(
                    (
                        "harness/launch/pool.py",
                        'TRIED_ALONE: tuple[Status, ...] = ("oom",',
                        'TRIED_ALONE: tuple[Status, ...] = ("oom", "parity_failed",',
                    ),
                ),
                tests=("test_proofs::test_what_fails_beside_others_is_tried_alone_but_a_wrong_result_counts",),
            ),
        ),
    ),
    Guarantee(
        name="void",
        promise="A timed run that leaves the golden curve, or computes in another precision than it says, is void.",
        breaks=(
            Break(
                fault="the timed run's losses are not compared",
                edits=(
                    (
                        "harness/results/judge.py",
                        "if off := off_golden(result.losses, result.golden_losses, result.spec, "
                        "deep=result.described.normalizes):",
                        'if off := "":',
                    ),
                    (
                        "harness/gate/timed_curve.py",
                        'Check(quantity="timed losses", error=error,',
                        'Check(quantity="timed losses", error=0.0,',
                    ),
                ),
                tests=("test_launch::test_a_timed_run_that_leaves_the_golden_curve_is_void",),
            ),
            Break(
                fault="nobody looks which precision was at work",
                edits=(
                    (
                        "harness/results/judge.py",
                        "if off := precision_probe.wrong(result.precision_errors, result.spec.precision):",
                        'if off := "":',
                    ),
                ),
                tests=("test_precision::test_a_trial_in_another_precision_counts_for_nothing",),
            ),
            Break(
                fault="TF32 passes for float32",
                edits=(
                    (
                        "harness/gate/precision_probe.py",
                        'if precision == "fp32" and not error < ROUGH:',
                        'if precision == "fp32" and not error < COARSE:',
                    ),
                ),
                tests=("test_precision::test_another_precision_than_the_one_asked_for_shows",),
            ),
            Break(
                fault="losses that are too good for bfloat16 are believed",
                edits=(("harness/results/judge.py", "TOO_GOOD = 1e-5", "TOO_GOOD = 0.0"),),
                tests=("test_precision::test_a_network_that_loses_its_cast_on_the_way_shows",),
            ),
        ),
    ),
    Guarantee(
        name="peers",
        promise="A network that NumPy cannot train is judged by the model of another framework, never by the one that "
        "is judged.",
        breaks=(
            Break(
                fault="the framework that is judged is its own judge",
                edits=(
                    (
                        "harness/planning/judges.py",
                        "framework = names[(names.index(spec.framework) + 1) % len(names)]",
                        "framework = spec.framework",
                    ),
                ),
                tests=("test_own_models::test_no_framework_judges_itself",),
            ),
        ),
    ),
    Guarantee(
        name="timed-curve",
        promise="In fp32 and fp64, the timed program's first losses and the weights after them are compared with the "
        "reference: a program that is right when it is proved and wrong when it is timed has no speed.",
        breaks=(
            Break(
                fault="nobody looks at the comparison",
                edits=(
                    (
                        "harness/results/judge.py",
                        "wrong = [check for timing in result.timings for check in timing.checks if not check.passed]",
                        "wrong: list[Check] = []",
                    ),
                ),
                tests=("test_timed_faults::test_a_timed_program_that_is_wrong_is_caught[torch-never_updates_a_toy]",),
            ),
            Break(
                fault="weights are not compared",
                edits=(
                    (
                        "harness/worker/loss_curve.py",
                        "replicas=context.replicas() if averaged else _mean_of_workers(context),",
                        "replicas=[golden.params],",
                    ),
                ),
                tests=("test_timed_faults::test_a_timed_program_that_is_wrong_is_caught[torch-never_updates_a_toy]",),
            ),
        ),
    ),
    Guarantee(
        name="proof-reuse",
        promise="A proof is reused for equal code, samples, versions and variables only: every file that a worker "
        "imports counts, and every number of every sample.",
        breaks=(
            Break(
                fault="a proof is reused whatever it was made with",
                edits=(
                    (
                        "harness/session/proofs.py",
                        "(earlier.code, earlier.data) != self.inputs_of(spec)",
                        "earlier.result is None",
                    ),
                ),
                tests=(
                    "test_sessions::test_a_proof_is_kept_for_the_very_same_code_and_samples_alone",
                    REPEATED,
                ),
            ),
            Break(
                fault="a proof is never reused",
                edits=(
                    (
                        "harness/session/proofs.py",
                        "self._earlier.get(spec.computation)",
                        "{}.get(spec.computation)",
                    ),
                ),
                tests=(REPEATED,),
            ),
            Break(
                fault="the workloads do not count",
                edits=(
                    (
                        "harness/launch/worker_code.py",
                        'if path.parts[0] != "reporting"]\n',
                        'if path.parts[0] not in ("reporting", "workloads")]\n',
                    ),
                ),
                tests=(EVERY_FILE,),
            ),
            Break(
                fault="the framework's package does not count",
                edits=(
                    (
                        "harness/launch/worker_code.py",
                        '!= "reporting"]\n    return _digest({"harness": harness} | _packages(framework, workload))',
                        '!= "reporting"]\n    return _digest({"harness": harness})',
                    ),
                ),
                tests=(EVERY_FILE, "test_sessions::test_the_code_of_a_plug_in_counts_too"),
            ),
            Break(
                fault="a worker imports a module of the reports, which do not count",
                edits=(
                    (
                        "harness/worker/main.py",
                        "from harness.contract import",
                        "from harness.reporting import markdown as _markdown\nfrom harness.contract import",
                    ),
                ),
                tests=(EVERY_FILE,),
            ),
            Break(
                fault="a worker imports a module that its source does not show",
                edits=(
                    (
                        "harness/workloads/classifier.py",
                        "from harness.workloads import",
                        '__import__("importlib").import_module("harness.launch.x".replace("x", "interrupts"))\n'
                        "from harness.workloads import",
                    ),
                ),
                tests=("test_workers::test_workers_import_what_can_be_reached_from_their_source",),
            ),
            Break(
                fault="the samples do not count",
                edits=(
                    (
                        "harness/session/proofs.py",
                        "self._references.data_digest(spec)\n\n",
                        '"the samples"\n\n',
                    ),
                ),
                tests=(REPEATED,),
            ),
            Break(
                fault="of the samples their labels alone count",
                edits=(
                    (
                        "harness/datasets/__init__.py",
                        "for name, array in sorted(arrays.items()):",
                        'for name, array in [("y", arrays["y"])]:',
                    ),
                ),
                tests=("test_sessions::test_every_sample_counts_in_the_key_of_a_proof", REPEATED),
            ),
            Break(
                fault="versions do not count",
                edits=(
                    (
                        "harness/session/proofs.py",
                        "code + _different(before.versions, now.versions) + [",
                        "code + [",
                    ),
                ),
                tests=("test_sessions::test_other_versions_are_proved_again",),
            ),
            Break(
                fault="code that is edited during a run does not count",
                edits=(
                    (
                        "harness/session/proofs.py",
                        'code = ["code"] if before.code != now.code else []',
                        "code: list[str] = []",
                    ),
                ),
                tests=("test_sessions::test_variables_that_share_gpus_make_no_other_proof",),
            ),
            Break(
                fault="variables do not count",
                edits=(
                    (
                        "harness/session/proofs.py",
                        "variables = _different(before.environment, now.environment)",
                        "variables: list[str] = []",
                    ),
                ),
                tests=("test_sessions::test_under_other_variables_it_is_proved_again",),
            ),
        ),
    ),
    Guarantee(
        name="seeded-order",
        promise="Launches of all cells are interleaved, each round in an order of its own that the seed gives.",
        breaks=(
            Break(
                fault="every round has the same order",
                edits=(
                    (
                        "harness/planning/launch_order.py",
                        'random.Random(f"{seed}/{number}" if number else seed).sample(group, len(group))',
                        "group",
                    ),
                ),
                tests=("test_plan::test_launches_are_interleaved_in_a_seeded_order",),
            ),
            Break(
                fault="the order is another in every plan",
                edits=(
                    (
                        "harness/planning/launch_order.py",
                        'random.Random(f"{seed}/{number}" if number else seed)',
                        "random.Random()",
                    ),
                ),
                tests=("test_plan::test_launches_are_interleaved_in_a_seeded_order",),
            ),
            Break(
                fault="the launches of a cell stand together",
                edits=(
                    (
                        "harness/planning/launch_order.py",
                        "    for launch in range(launches):\n"
                        '        yield from ((launch, index) for index in _shuffled(groups, f"{seed}/{launch}"))\n',
                        '    for index in _shuffled(groups, f"{seed}/0"):\n'
                        "        yield from ((launch, index) for launch in range(launches))\n",
                    ),
                ),
                tests=("test_plan::test_launches_are_interleaved_in_a_seeded_order",),
            ),
        ),
    ),
    Guarantee(
        name="what-fits",
        promise="A sweep of batches takes the smallest first. A cell that ran out of memory is skipped at larger "
        "batches, where it is not proved either, and does not count as failed; the others go on.",
        breaks=(
            Break(
                fault="all batches of a round are shuffled together",
                edits=(
                    (
                        "harness/planning/launch_order.py",
                        "if len(batches) < 2 or",
                        "if True or",
                    ),
                ),
                tests=(
                    "test_fits::test_cells_of_a_sweep_differ_in_their_batch_alone",
                    "test_fits::test_cells_of_several_batches_that_are_no_sweep_are_shuffled_together",
                ),
            ),
            Break(
                fault="a cell that ran out of memory is launched at larger batches",
                edits=(
                    (
                        "harness/session/rows.py",
                        "        if batch is None:\n            return False\n",
                        "        if True:\n            return False\n",
                    ),
                ),
                tests=(SKIPPED,),
            ),
            Break(
                fault="a cell that ran out of memory is proved at larger batches",
                edits=(
                    (
                        "harness/session/measuring.py",
                        "self.proving.prove(first_of_each_computation(fitting))",
                        "self.proving.prove(first_of_each_computation(alike))",
                    ),
                ),
                tests=("test_fits::test_what_cannot_fit_is_not_proved",),
            ),
            Break(
                fault="all batches of a sweep are proved before any is timed",
                edits=(
                    (
                        "harness/session/measuring.py",
                        "        self.proving.prove(first)\n",
                        "        self.proving.prove(ready)\n",
                    ),
                ),
                tests=("test_fits::test_what_cannot_fit_is_not_proved",),
            ),
            Break(
                fault="what ran out of memory keeps other cells from larger batches",
                edits=(
                    (
                        "harness/session/rows.py",
                        "for each in full if each.at_any_batch == spec.at_any_batch",
                        "for each in full",
                    ),
                ),
                tests=(SKIPPED,),
            ),
            Break(
                fault="out of memory is a failure of a sweep",
                edits=(("harness/reporting/fits.py", "if cell.failed and id(cell) not in expected", "if cell.failed"),),
                tests=(SKIPPED, "test_fits::test_out_of_memory_is_an_answer_only_of_a_sweep"),
            ),
            Break(
                fault="a crash beside a launch without memory is an answer as well",
                edits=(
                    (
                        "harness/reporting/fits.py",
                        'if result.status in FAILURES} == {"oom"}',
                        'if result.status in FAILURES} >= {"oom"}',
                    ),
                ),
                tests=("test_fits::test_out_of_memory_is_an_answer_only_of_a_sweep",),
            ),
        ),
    ),
    Guarantee(
        name="large-plans",
        promise="The work and the memory of showing a plan depend on its cells, not on their launches; a plan of more "
        "cells than anybody reads is summed up.",
        breaks=(
            Break(
                fault="what a framework has is looked up for each strategy",
                edits=(
                    (
                        "harness/planning/matrix.py",
                        "            has_model=has_model,\n",
                        "            has_model=registry.has_model(framework, workload.name),\n",
                    ),
                ),
                tests=("test_large_plans::test_what_frameworks_have_is_looked_up_once_and_not_for_each_cell",),
            ),
            Break(
                fault="a plan of any size is listed",
                edits=(("harness/cli/commands/plan.py", "MOST_ROWS = 400", "MOST_ROWS = 40_000"),),
                tests=("test_large_plans::test_a_plan_is_shown_without_making_its_launches",),
            ),
            Break(
                fault="a plan as JSON has the first launches alone",
                edits=(("harness/cli/commands/plan.py", "order(specs, made.launches)", "order(specs, 1)"),),
                tests=("test_large_plans::test_a_plan_as_json_has_every_launch_and_describes_each_cell_once",),
            ),
            Break(
                fault="a run that goes on compares all its trials",
                edits=(
                    (
                        "harness/planning/resume.py",
                        'if trial.status != "unavailable" or',
                        "if trial not in unavailable or",
                    ),
                ),
                tests=("test_large_plans::test_a_run_that_goes_on_compares_no_trials_with_each_other",),
            ),
        ),
    ),
    Guarantee(
        name="slowest-rank",
        promise="A block lasts from when all ranks are ready until the slowest one's devices are idle, and throughput "
        "is all work over all time.",
        breaks=(
            Break(
                fault="the fastest rank counts",
                edits=(("harness/results/rates.py", "return [max(ranks) for ranks", "return [min(ranks) for ranks"),),
                tests=(
                    "test_timing::test_the_slowest_rank_counts_block_by_block",
                    "test_report::test_throughput_is_total_work_over_total_time_of_the_slowest_rank",
                ),
            ),
            Break(
                fault="the clock is read before the devices are idle",
                edits=(
                    (
                        "harness/worker/timing.py",
                        "    program.sync()  # steps are asynchronous: without this",
                        "    # steps are asynchronous: without this",
                    ),
                ),
                tests=(
                    "test_timing::test_blocks_are_exact_and_barriers_are_free",
                    "test_timing::test_a_block_synchronizes_on_both_edges",
                ),
            ),
            Break(
                fault="work of the block before runs into a block",
                edits=(
                    (
                        "harness/worker/timing.py",
                        "    program.sync()  # no work of the previous block",
                        "    # nothing of the block before",
                    ),
                ),
                tests=("test_timing::test_work_enqueued_before_a_block_is_not_in_it",),
            ),
            Break(
                fault="ranks do not wait for each other before a block",
                edits=(
                    (
                        "harness/worker/timing.py",
                        "    barrier()  # the ranks start together,",
                        "    # the ranks start together,",
                    ),
                ),
                tests=("test_timing::test_a_block_synchronizes_on_both_edges",),
            ),
        ),
    ),
    Guarantee(
        name="same-work",
        promise="Every cell trains on the same samples in the same order, each sample once an epoch, whoever shares "
        "the work; and a CPU device is the same share of the cores for all.",
        breaks=(
            Break(
                fault="all ranks take the first rank's share",
                edits=(("harness/spec/partition.py", "(step * ranks + rank) * size", "(step * ranks) * size"),),
                tests=("test_training::test_every_sample_is_trained_on_once_whoever_shares_the_work",),
            ),
            Break(
                fault="the order of samples is one for all seeds",
                edits=(
                    (
                        "harness/datasets/__init__.py",
                        "return np.random.default_rng([seed, epoch]).permutation(count)",
                        "return np.random.default_rng([0, epoch]).permutation(count)",
                    ),
                ),
                tests=("test_data::test_epochs_differ_and_seeds_differ",),
            ),
            Break(
                fault="a device is a larger share of the cores where a cell has fewer",
                edits=(("harness/launch/local.py", "len(cores) // plan_devices)", "len(cores) // trial_devices)"),),
                tests=("test_launch::test_every_cpu_device_is_an_equal_share_of_the_cores",),
            ),
        ),
    ),
)
