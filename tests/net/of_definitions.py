"""Guarantees about what the reference and all programs share, and about the trainings that are judged by it."""

from guarantee import Break, Guarantee

TITLE = "Shared definitions, and trainings"

DATASETS = "harness/datasets/__init__.py"
TRAINING_CHECKS, CHUNK_CHECKS = "harness/worker/training_checks.py", "harness/worker/chunk_checks.py"
RESUME_CHECK = "harness/worker/resume_check.py"
NOT_REPLAYED = (
    CHUNK_CHECKS,
    "        if self._begun is None:\n            return False",
    "        if True:\n            return False",
)
CAUGHT = "test_training_faults::test_a_training_that_is_wrong_is_caught"

GUARANTEES = (
    Guarantee(
        name="published-facts",
        promise="What the reference and all programs share is held to published facts: transforms, initial weights, "
        "rates, labels.",
        breaks=(
            Break(
                fault="images of MNIST are normalized by another deviation",
                edits=(("harness/workloads/mnist_cnn.py", "MEAN, STD = 0.1307, 0.3081", "MEAN, STD = 0.1307, 0.5"),),
                tests=("test_definitions::test_mnist_is_normalized_by_its_published_mean_and_deviation",),
            ),
            Break(
                fault="initial weights are a tenth of what their rule says",
                edits=(
                    (
                        "harness/layers/base.py",
                        "bound = 1 / np.sqrt(self.fan)",
                        "bound = 0.1 / np.sqrt(self.fan)",
                    ),
                ),
                tests=("test_definitions::test_linear_layers_and_convolutions_begin_as_in_torch",),
            ),
            Break(
                fault="convolutions of ResNet-50 begin with another spread",
                edits=(
                    (
                        "harness/layers/base.py",
                        "rng.normal(0.0, np.sqrt(2 / self.fan)",
                        "rng.normal(0.0, np.sqrt(1 / self.fan)",
                    ),
                ),
                tests=("test_definitions::test_convolutions_of_resnet50_begin_as_in_torchvision",),
            ),
            Break(
                fault="a workload's rate is ten times its recipe's",
                edits=(
                    (
                        "harness/workloads/mnist_cnn.py",
                        'optimizer=OptimizerSpec(name="sgd", learning_rate=0.01, momentum=0.5)',
                        'optimizer=OptimizerSpec(name="sgd", learning_rate=0.1, momentum=0.5)',
                    ),
                ),
                tests=("test_definitions::test_rates_are_those_of_the_recipes",),
            ),
            Break(
                fault="labels of MNIST are shifted by one",
                edits=(
                    (
                        "harness/datasets/mnist.py",
                        '"y": table[:, -1]}',
                        '"y": (table[:, -1] + 1) % 10}',
                    ),
                ),
                tests=("test_definitions::test_mnist_has_the_labels_of_its_source",),
            ),
        ),
    ),
    Guarantee(
        name="samples",
        promise="Training, validation and test samples are disjoint; each epoch has its own order; an evaluation "
        "counts every sample once.",
        breaks=(
            Break(
                fault="the test set is the training set",
                edits=(
                    (
                        DATASETS,
                        'chosen = order[:-test] if split == "train" else order[-test:]',
                        "chosen = order[:-test]",
                    ),
                ),
                tests=("test_definitions::test_training_validation_and_test_samples_are_disjoint",),
            ),
            Break(
                fault="a training is tested on its training samples",
                edits=(
                    (
                        "harness/planning/samples.py",
                        "arrays[split] = workload.load(split,",
                        'arrays[split] = workload.load("train",',
                    ),
                ),
                tests=("test_definitions::test_a_training_gets_its_samples_from_the_parts_that_they_are_named_after",),
            ),
            Break(
                fault="all epochs have the same order",
                edits=((DATASETS, "np.random.default_rng([seed, epoch])", "np.random.default_rng([seed, 0])"),),
                tests=(
                    "test_data::test_epochs_differ_and_seeds_differ",
                    "test_training::test_every_sample_is_trained_on_once_whoever_shares_the_work",
                ),
            ),
            Break(
                fault="every step has the first batch",
                edits=(
                    (
                        DATASETS,
                        "positions = np.arange(step * global_batch, (step + 1) * global_batch)",
                        "positions = np.arange(global_batch)",
                    ),
                ),
                tests=(
                    "test_data::test_an_epoch_takes_every_sample_once_whatever_the_batch",
                    "test_training::test_the_first_epoch_is_what_run_times",
                ),
            ),
            Break(
                fault="an evaluation leaves out the last batch",
                edits=(
                    (
                        DATASETS,
                        "for step in epochs.steps(0) if first is None else epochs.steps(0)[:1]:",
                        "for step in epochs.steps(0)[:-1] if first is None else epochs.steps(0)[:1]:",
                    ),
                ),
                tests=("test_training::test_every_test_sample_counts_once",),
            ),
        ),
    ),
    Guarantee(
        name="other-networks",
        promise="A parameter that layers share gets the sum of its gradients, and one draw; a network or samples that "
        "the reference would misread are refused by name.",
        breaks=(
            Break(
                fault="of a parameter that a chain uses twice only one gradient is kept",
                edits=(
                    (
                        "harness/layers/chains.py",
                        "gradients = summed(gradients, grads)",
                        "gradients |= grads",
                    ),
                ),
                tests=(
                    "test_other_networks::test_the_gradient_of_a_parameter_that_is_used_twice_is_the_sum",
                    "test_other_networks::test_a_shared_parameter_is_updated_once_with_the_sum",
                    "test_other_networks::test_a_rounded_gradient_of_a_parameter_that_is_used_twice_is_the_sum",
                ),
            ),
            Break(
                fault="of a parameter that both paths of a residual block use only one gradient is kept",
                edits=(("harness/layers/chains.py", "summed(grads, grads_around)", "grads | grads_around"),),
                tests=("test_other_networks::test_the_gradient_of_a_parameter_that_is_used_twice_is_the_sum",),
            ),
            Break(
                fault="a residual block adds what NumPy broadcasts",
                edits=(("harness/layers/chains.py", "if outputs != around:", "if len(outputs) != len(around):"),),
                tests=("test_other_networks::test_layers_that_do_not_fit_are_refused",),
            ),
            Break(
                fault="a shared parameter is counted once for each use",
                edits=(
                    (
                        "harness/workloads/__init__.py",
                        "return each_once(parameter for layer in self.layers for parameter in layer.parameters())",
                        "return tuple(parameter for layer in self.layers for parameter in layer.parameters())",
                    ),
                ),
                tests=("test_other_networks::test_a_shared_parameter_is_drawn_and_counted_once_and_its_work_twice",),
            ),
            Break(
                fault="samples are not checked before a run",
                edits=(
                    (
                        "harness/planning/samples.py",
                        "            workloads.check_samples(workload, arrays[split])\n",
                        "",
                    ),
                ),
                tests=("test_other_networks::test_a_run_refuses_samples_that_would_be_misread",),
            ),
            Break(
                fault="token numbers are taken as inputs",
                edits=(("harness/workloads/__init__.py", 'if kind.kind != "f":', 'if kind.kind not in "fi":'),),
                tests=("test_other_networks::test_samples_that_would_be_misread_are_refused[token numbers as inputs]",),
            ),
            Break(
                fault="the reference takes a row of labels for a label with a factor",
                edits=(
                    (
                        "harness/reference/losses.py",
                        'if targets.shape != with_factors or targets.dtype.kind != "f":',
                        "if targets.ndim != 2:",
                    ),
                ),
                tests=("test_other_networks::test_the_reference_refuses_targets_that_it_would_misread",),
            ),
        ),
    ),
    Guarantee(
        name="saved-state",
        promise="At its end, a training goes on from its saved state as it would have gone on without, in the same "
        "program and in a fresh one.",
        breaks=(
            Break(
                fault="the state is not loaded into a fresh program",
                edits=((RESUME_CHECK, 'getattr(context.program, "once_a_process", False)', "True"),),
                tests=(f"{CAUGHT}[torch-a_fresh_program_begins_with_the_first_rate]",),
            ),
            Break(
                fault="weights on CPU devices need not be equal",
                edits=(("harness/gate/trained.py", "EXACT if exact else RESUMED", "RESUMED"),),
                tests=(f"{CAUGHT}[torch-velocities_are_saved_in_bfloat16]",),
            ),
            Break(
                fault="a state may be saved right after an averaging",
                edits=(
                    (RESUME_CHECK, "made % spec.exchange_interval == 0:", "made < 0:"),
                    # which loads the state too, and so changes the count on which it depends what is lost
                    NOT_REPLAYED,
                ),
                tests=(f"{CAUGHT}[torch-a_checkpoint_does_not_count_the_steps]",),
            ),
        ),
    ),
    Guarantee(
        name="formats-of-trainings",
        promise="At its end, a training's program is read: it must compute and keep its state in the number formats of "
        "its precision.",
        breaks=(
            Break(
                fault="the formats of a training are read and not judged",
                edits=((TRAINING_CHECKS, "self.found += formats.judged(self.context, found)", "pass"),),
                tests=(f"{CAUGHT}[torch-convolutions_of_a_training_left_in_float32]",),
            ),
        ),
    ),
    Guarantee(
        name="chunks",
        promise="What a training's clock sees is the training: no work is left when it stops, steps that nobody waits "
        "for are those that are made one by one, and of each evaluation more than its last batch is computed again.",
        breaks=(
            Break(
                fault="the work that a chunk leaves is not measured",
                edits=(
                    (
                        CHUNK_CHECKS,
                        "self._left.append((len(losses), seconds, left))",
                        "self._left.append((len(losses), seconds, 0.0))",
                    ),
                ),
                tests=(f"{CAUGHT}[torch-steps_are_put_off_until_somebody_reads]",),
            ),
            Break(
                fault="no chunk is replayed",
                edits=(NOT_REPLAYED,),
                tests=(f"{CAUGHT}[torch-every_other_step_is_skipped_where_nobody_waits]",),
            ),
            Break(
                fault="a training goes on although its replayed chunk differs",
                edits=(("harness/results/judge.py", 'check.quantity == "replayed block"', "False"),),
                tests=(
                    "test_training::test_a_training_that_diverges_after_a_wrong_chunk_is_a_wrong_training"
                    "[replayed block]",
                ),
            ),
            Break(
                fault="placing batches may change the state",
                edits=((TRAINING_CHECKS, '(state, "state after', '(self.state_digests(), "state after'),),
                tests=(f"{CAUGHT}[torch-steps_are_made_while_batches_are_placed]",),
            ),
            Break(
                fault="of an evaluation only the last batch is computed again",
                edits=(
                    (TRAINING_CHECKS, "(last or len(chosen) < 2)", "(last or len(chosen) < 1)"),
                    ("harness/worker/training_loop.py", "last=ends)", "last=False)"),
                ),
                tests=(f"{CAUGHT}[torch-whole_batches_evaluated_before_count_as_right]",),
            ),
        ),
    ),
)
