"""Guarantees about what is written: that it is whole, kept, and read back as it was."""

from guarantee import Break, Guarantee

TITLE = "Records and reports"

GUARANTEES = (
    Guarantee(
        name="a-row-a-trial",
        promise="Every trial has one row, whatever becomes of it: a failure is a row with a reason, and a trial that "
        "was tried again has its last.",
        breaks=(
            Break(
                fault="a rank that crashed does not say why",
                edits=(
                    (
                        "harness/worker/main.py",
                        "return workload_packages.first_line(error, most=500)",
                        "return type(error).__name__",
                    ),
                ),
                tests=("test_launch::test_each_failure_is_a_row[crash_in_timing-crashed-facts5]",),
            ),
            Break(
                fault="a cell that fails gets a row for its first launch alone",
                edits=(("harness/session/proving.py", "for other in self._plan.runnable():", "for other in [spec]:"),),
                tests=("test_launch::test_every_launch_of_a_failing_cell_gets_its_row_and_none_is_timed",),
            ),
            Break(
                fault="a trial that was tried again has both rows",
                edits=(("harness/results/store.py", "return list(last.values())", "return results"),),
                tests=("test_store::test_a_trial_that_was_tried_again_has_one_row",),
            ),
            Break(
                fault="cells whose golden run cannot be computed are left out",
                edits=(
                    (
                        "harness/session/measuring.py",
                        "self.rows.add(row, tell=spec.cell not in told)",
                        "assert row",
                    ),
                ),
                tests=(
                    "test_sessions::test_without_a_golden_run_its_cells_have_their_rows_and_others_are_measured",
                    "test_processes::test_nothing_is_left_of_a_golden_run_that_is_killed",
                ),
            ),
        ),
    ),
    Guarantee(
        name="on-disk",
        promise="A row is on the disk (fsync) before the run goes on, and a checkpoint before it has its name.",
        breaks=(
            Break(
                fault="a row is not synchronized",
                edits=(
                    (
                        "harness/results/json_lines.py",
                        "            os.fsync(descriptor)\n        except BaseException",
                        "        except BaseException",
                    ),
                ),
                tests=("test_store::test_a_row_is_on_disk_when_it_has_been_written",),
            ),
            Break(
                fault="a checkpoint is not synchronized",
                edits=(("harness/checkpoints.py", "    _to_disk(temporary)\n", ""),),
                tests=("test_store::test_a_checkpoint_is_on_disk_before_it_has_its_name",),
            ),
            Break(
                fault="a checkpoint's name is not synchronized",
                edits=(("harness/checkpoints.py", "    _to_disk(path.parent)\n", ""),),
                tests=("test_store::test_a_checkpoint_is_on_disk_before_it_has_its_name",),
            ),
        ),
    ),
    Guarantee(
        name="whole-or-not-at-all",
        promise="A rank's answer, a launch's outcome, run.json and a checkpoint are replaced whole or not at all.",
        breaks=(
            Break(
                fault="a rank writes its answer in place",
                edits=(
                    (
                        "harness/messages.py",
                        "whole_files.write(path, codec.dumps(message).encode())",
                        "path.write_bytes(codec.dumps(message).encode())",
                    ),
                ),
                tests=("test_store::test_a_file_is_replaced_whole_or_not_at_all",),
            ),
            Break(
                fault="run.json is written in place",
                edits=(
                    (
                        "harness/results/store.py",
                        "whole_files.write(path, text.encode(), durable=True, new=new)",
                        "path.write_bytes(text.encode())",
                    ),
                ),
                tests=("test_store::test_a_file_is_replaced_whole_or_not_at_all",),
            ),
            Break(
                fault="the supervisor writes the outcome in place",
                edits=(
                    (
                        "harness/launch/supervisor.py",
                        "    write(folder / ENDING, ending)",
                        "    (folder / ENDING).write_text(codec.dumps(ending))",
                    ),
                ),
                tests=("test_processes::test_an_outcome_is_there_whole_or_not_at_all",),
            ),
            Break(
                fault="a checkpoint is written in place",
                edits=(("harness/checkpoints.py", 'temporary = path.with_suffix(".tmp")', "temporary = path"),),
                tests=("test_store::test_a_checkpoint_is_on_disk_before_it_has_its_name",),
            ),
            Break(
                fault="a checkpoint that is torn or a pickle ends in an exception of the library's",
                edits=(
                    (
                        "harness/checkpoints.py",
                        "except (OSError, SafetensorError, KeyError, ValueError, TypeError, RecursionError) as error:",
                        "except (OSError, KeyError, ValueError, TypeError, RecursionError) as error:",
                    ),
                ),
                tests=("test_training::test_a_checkpoint_is_whole_or_refused",),
                error="SafetensorError",
            ),
        ),
    ),
    Guarantee(
        name="torn-line",
        promise="A line that a crash has torn is passed over when rows are read, and cut off before the next is "
        "written.",
        breaks=(
            Break(
                fault="a torn last line is read like any other",
                edits=(
                    (
                        "harness/results/store.py",
                        'if number == len(lines) and not line.endswith(b"\\n"):',
                        'if not line and not line.endswith(b"\\n"):',
                    ),
                ),
                tests=("test_store::test_a_torn_last_line_is_passed_over",),
                error="UsageError",
            ),
            Break(
                fault="a run that goes on writes its first row onto the torn one",
                edits=(("harness/results/store.py", "    json_lines.drop_torn_line(folder / RESULTS)\n", ""),),
                tests=("test_store::test_a_run_that_goes_on_writes_no_row_onto_a_torn_one",),
                error="UsageError",
            ),
            Break(
                fault="a proof is written onto a torn one",
                edits=(("harness/results/proof_store.py", "    json_lines.drop_torn_line(path)\n", ""),),
                tests=("test_store::test_proofs_that_cannot_be_read_are_passed_over",),
            ),
        ),
    ),
    Guarantee(
        name="full-disk",
        promise="A disk that fills up leaves no part of a row: the next row is written behind a whole one.",
        breaks=(
            Break(
                fault="the part of a row that was written stays",
                edits=(("harness/results/json_lines.py", "os.ftruncate(descriptor, whole)", "pass"),),
                tests=("test_store::test_a_full_disk_leaves_no_part_of_a_line",),
                error="UsageError",
            ),
            Break(
                fault="it is not seen that the system took a part of a row alone",
                edits=(
                    (
                        "harness/whole_files.py",
                        "    while content:",
                        "    for _ in range(1):",
                    ),
                ),
                tests=("test_store::test_a_full_disk_leaves_no_part_of_a_line",),
            ),
        ),
    ),
    Guarantee(
        name="folder-lock",
        promise="One process at a time measures a run: another is refused, and however the first ends, its lock ends "
        "with it.",
        breaks=(
            Break(
                fault="the folder is not locked",
                edits=(("harness/results/store.py", "fcntl.flock(run, fcntl.LOCK_EX | fcntl.LOCK_NB)", "pass"),),
                tests=(
                    "test_sessions::test_two_sittings_at_a_time_are_refused",
                    "test_processes::test_a_run_holds_its_folder_as_long_as_it_lasts",
                ),
            ),
            Break(
                fault="a run does not hold its own folder, but one that goes on does",
                edits=(
                    (
                        "harness/session/command.py",
                        "        with store.held(folder):\n            return _measure_and_report(intent, folder, []",
                        "        if folder:\n            return _measure_and_report(intent, folder, []",
                    ),
                ),
                tests=("test_processes::test_a_run_holds_its_folder_as_long_as_it_lasts",),
            ),
        ),
    ),
    Guarantee(
        name="resume",
        promise="--resume keeps what was measured, does the rest, takes trainings up at their last checkpoint on the "
        "same samples, and refuses another machine.",
        breaks=(
            Break(
                fault="what was measured is measured again",
                edits=(
                    (
                        "harness/session/command.py",
                        "folder.resolve(), finished, display, budget_minutes",
                        "folder.resolve(), [], display, budget_minutes",
                    ),
                ),
                tests=("test_sessions::test_a_run_that_goes_on_keeps_the_rows_that_it_has",),
            ),
            Break(
                fault="a training goes on from new weights",
                edits=(("harness/worker/checkpointing.py", "        load(context, state)\n", ""),),
                tests=("test_training::test_a_training_goes_on_from_its_checkpoint_on_the_same_samples_alone",),
            ),
            Break(
                fault="a checkpoint is taken up on other samples",
                edits=(
                    (
                        "harness/worker/checkpointing.py",
                        'if about["samples"] != context.batches.digest():',
                        'if about["samples"] is None:',
                    ),
                ),
                tests=("test_training::test_a_training_goes_on_from_its_checkpoint_on_the_same_samples_alone",),
            ),
            Break(
                fault="a run goes on where the hardware is another",
                edits=(
                    (
                        "harness/planning/resume.py",
                        "    differs = machine_record.other_hardware(then, now)\n",
                        '    differs = ""\n',
                    ),
                ),
                tests=("test_sessions::test_another_machine_is_named_with_what_it_has",),
            ),
        ),
    ),
    Guarantee(
        name="valid-json",
        promise="Rows are valid JSON, what is not finite included, and are read back as they were.",
        breaks=(
            Break(
                fault="NaN is written as Python writes it",
                edits=(("harness/spec/result.py", '"ser_json_inf_nan": "strings"', '"ser_json_inf_nan": "constants"'),),
                tests=("test_store::test_what_is_not_finite_survives_in_valid_json",),
            ),
            Break(
                fault="NaN is written as null",
                edits=(("harness/spec/result.py", '"ser_json_inf_nan": "strings"', '"ser_json_inf_nan": "null"'),),
                tests=("test_store::test_what_is_not_finite_survives_in_valid_json",),
                error="UsageError",
            ),
        ),
    ),
    Guarantee(
        name="newer-schema",
        promise="Records of a newer schema are refused, neither misread nor written over.",
        breaks=(
            Break(
                fault="rows of a newer schema are read",
                edits=(
                    (
                        "harness/results/store.py",
                        "if version > SCHEMA_VERSION:",
                        "if isinstance(version, int) and version < 0:",
                    ),
                ),
                tests=("test_store::test_what_is_no_run_is_refused",),
            ),
            Break(
                fault="a run of a newer schema goes on",
                edits=(("harness/results/store.py", "if intent.schema_version != SCHEMA_VERSION:", "if not intent:"),),
                tests=("test_sessions::test_a_run_of_another_version_is_refused_and_not_ruined",),
            ),
        ),
    ),
    Guarantee(
        name="older-schema",
        promise="Rows that an earlier version wrote keep their meaning, also where a name has changed since.",
        breaks=(
            Break(
                fault="rows of version 1 are refused for their old names",
                edits=(
                    (
                        "harness/results/older_records.py",
                        'current["spec"] = spec = _renamed(row.get("spec"), {"band": "tolerances"})',
                        'current["spec"] = spec = row.get("spec")',
                    ),
                ),
                tests=("test_records::test_a_row_of_version_1_is_read_under_todays_names",),
                error="UsageError",
            ),
            Break(
                fault="what a session cut short is forgotten with the prose that said so",
                edits=(
                    (
                        "harness/results/older_records.py",
                        '{"kind": "cut_short" if cut_short else "not_begun"}',
                        '{"kind": "not_begun"}',
                    ),
                ),
                tests=("test_records::test_a_pending_row_of_version_1_has_its_cause",),
            ),
            Break(
                fault="a run that an earlier version began goes on",
                edits=(
                    (
                        "harness/results/store.py",
                        "if intent.schema_version != SCHEMA_VERSION:",
                        "if intent.schema_version > SCHEMA_VERSION:",
                    ),
                ),
                tests=("test_sessions::test_a_run_of_another_version_is_refused_and_not_ruined",),
            ),
        ),
    ),
    Guarantee(
        name="like-with-like",
        promise="Launches share a row, and speeds are divided, only where nothing differs that must match: workload, "
        "batch, optimizer, versions, code, data, hardware and the rest. A row without a base says why.",
        breaks=(
            Break(
                fault="any single is a base",
                edits=(
                    (
                        "harness/results/condition_rules.py",
                        'return ("divide", "pool") if purpose == "pool" else ("divide",)',
                        'return ("divide", "pool") if purpose == "pool" else ()',
                    ),
                ),
                tests=(
                    "test_records::test_every_condition_has_a_rule_and_the_rule_holds",
                    "test_records::test_a_base_under_other_conditions_is_no_base_and_the_row_says_why",
                ),
            ),
            Break(
                fault="all launches of a cell share a row",
                edits=(
                    (
                        "harness/results/pooling.py",
                        "if not any(comparisons.differences(other, result) for other in kinds[id(launches)].values()):",
                        "if launches:",
                    ),
                ),
                tests=(
                    "test_records::test_launches_under_other_conditions_are_rows_of_their_own",
                    "test_records::test_runs_with_another_configuration_are_not_one_row",
                ),
                error="ValueError",
            ),
            Break(
                fault="a launch that is in two folders counts twice",
                edits=(
                    (
                        "harness/results/merging.py",
                        "        if again := seen & own:",
                        "        if again := seen & set():",
                    ),
                ),
                tests=("test_records::test_a_launch_that_is_in_two_folders_is_refused",),
            ),
            Break(
                fault="cells with other batches are ranked together",
                edits=(
                    (
                        "harness/reporting/contrasts.py",
                        "any(comparisons.differences(cell.first, alike[0].first) for alike in group.values())",
                        "any(cell.spec.workload != alike[0].spec.workload for alike in group.values())",
                    ),
                ),
                tests=("test_records::test_cells_under_other_conditions_are_not_ranked_together",),
            ),
            Break(
                fault="any two batches count as grown",
                edits=(
                    (
                        "harness/results/condition_rules.py",
                        'return ours.batch_growth == "per_device" and equal_shares',
                        "return bool(equal_shares or ours)",
                    ),
                ),
                tests=("test_records::test_a_batch_grows_with_its_devices_only_where_the_workload_says_so",),
            ),
            Break(
                fault="what is not recorded matches everything",
                edits=(
                    (
                        "harness/results/condition_rules.py",
                        "same_run = bool(one.run.started) and one.run.started == other.run.started",
                        "same_run = True",
                    ),
                ),
                tests=("test_records::test_what_is_not_recorded_matches_within_one_run_alone",),
            ),
            Break(
                fault="launches of one cell are cut differently in each session",
                edits=(
                    (
                        "harness/session/proofs.py",
                        "if earlier is None or",
                        'if earlier is None or spec.options.get("cut") == "time" or',
                    ),
                    (
                        "harness/session/conditions.py",
                        "        cut=first.cut,\n",
                        "        cut=first.cut + str(outcome.answers[0].ended),\n",
                    ),
                ),
                tests=("test_pipelines::test_a_cut_by_time_is_measured_once_and_recorded",),
            ),
        ),
    ),
    Guarantee(
        name="wrong-losses-have-no-speed",
        promise="A cell whose timed losses are not those of the cells that take the same steps has no speed and no "
        "rank, and the command ends with 1. Where two disagree, both fail.",
        breaks=(
            Break(
                fault="a cell that disagrees keeps its speed",
                edits=(
                    (
                        "harness/reporting/summary.py",
                        "return replace(cell, disagreement=disagreement, estimate=None, over_bare=None)",
                        "return replace(cell, disagreement=disagreement)",
                    ),
                ),
                tests=("test_records::test_a_cell_whose_losses_disagree_has_no_speed_no_rank_and_fails",),
            ),
            Break(
                fault="two cells meet in the middle",
                edits=(
                    (
                        "harness/results/agreement.py",
                        "share = 0.5 if len(cells) == 2 else 1.0",
                        "share = 1.0",
                    ),
                ),
                tests=("test_records::test_two_cells_that_disagree_both_fail",),
            ),
            Break(
                fault="the command ends with 0",
                edits=(
                    (
                        "harness/session/command.py",
                        "fits.failed(summary.summarize(self.results))",
                        "any(not cell.launches for cell in summary.summarize(self.results))",
                    ),
                ),
                tests=("test_records::test_a_run_with_wrong_losses_ends_with_1",),
            ),
        ),
    ),
    Guarantee(
        name="the-record-speaks",
        promise="A report says what the record says. Other manifests and workloads leave an older report as it was.",
        breaks=(
            Break(
                fault="the framework's title is today's",
                edits=(
                    (
                        "harness/reporting/naming.py",
                        "return result.described.framework or result.spec.framework",
                        '__import__("harness.spec.registry")\n'
                        "    from harness.spec import registry\n\n"
                        "    return registry.framework(result.spec.framework).title",
                    ),
                ),
                tests=("test_records::test_a_report_does_not_change_with_the_manifests_of_today",),
            ),
            Break(
                fault="ranks with other versions are taken for one",
                edits=(
                    (
                        "harness/session/conditions.py",
                        "    for answer in answers[1:]:",
                        "    for answer in answers[:0]:",
                    ),
                ),
                tests=("test_records::test_ranks_that_ran_with_other_versions_are_no_result",),
            ),
        ),
    ),
    Guarantee(
        name="inert-markup",
        promise="Nothing in a result can become markup in a report: text is escaped, and no traceback ends its block.",
        breaks=(
            Break(
                fault="< and > stay what they are",
                edits=(("harness/reporting/markdown.py", '.replace("<", "&lt;").replace(">", "&gt;")', ""),),
                tests=("test_report::test_hostile_text_is_inert", "test_report::test_escape"),
            ),
            Break(
                fault="a pipe begins a column",
                edits=(("harness/reporting/markdown.py", "([\\\\`*\\[\\]|#~$])", "([\\\\`*\\[\\]#~$])"),),
                tests=("test_report::test_hostile_text_is_inert", "test_report::test_escape"),
            ),
            Break(
                fault="all code blocks have fences of three",
                edits=(("harness/reporting/markdown.py", "max(least, longest + 1)", "max(least, 0 * longest)"),),
                tests=("test_report::test_hostile_text_is_inert",),
            ),
            Break(
                fault="a sentence that begins with a hyphen becomes a list",
                edits=(
                    (
                        "harness/reporting/markdown.py",
                        'return ["\\n".join(map(_literal_start, lines))]',
                        'return ["\\n".join(lines)]',
                    ),
                ),
                tests=("test_render::test_no_text_becomes_markup_in_any_node",),
            ),
        ),
    ),
    Guarantee(
        name="typed-reports",
        promise="Between the records and the renderer, a report's numbers are numbers, and each kind of node and value "
        "has a rendering.",
        breaks=(
            Break(
                fault="a column of numbers is text before it reaches a renderer",
                edits=(
                    (
                        "harness/reporting/tables/scaling_columns.py",
                        "    return 100 * cell.over_single.value / cell.spec.devices\n",
                        '    return f"{100 * cell.over_single.value / cell.spec.devices:.0f}%"\n',
                    ),
                ),
                tests=("test_render::test_all_numbers_of_a_report_are_numbers",),
            ),
            Break(
                fault="a kind of node that the renderer does not know is left out",
                edits=(
                    ("harness/reporting/markdown.py", "            assert_never(node)\n", "            return []\n"),
                ),
                tests=("test_render::test_every_kind_of_node_has_a_rendering",),
            ),
        ),
    ),
    Guarantee(
        name="reports-regenerate",
        promise="A report is made from the records alone: made again it is the same, to the last byte.",
        breaks=(
            Break(
                fault="numbers have four digits",
                edits=(("harness/reporting/formatting.py", 'f"{value:.3g}"', 'f"{value:.4g}"'),),
                tests=("test_published::test_published_reports_regenerate",),
            ),
            Break(
                fault="a report depends on the moment at which it is made",
                edits=(
                    (
                        "harness/reporting/__init__.py",
                        "markdown.render(report).encode())",
                        "f\"{markdown.render(report)}{__import__('time').time_ns()}\".encode())",
                    ),
                ),
                tests=("test_report::test_written_from_results_alone_and_again",),
            ),
        ),
    ),
    Guarantee(
        name="no-claim-without-ground",
        promise="A cell that failed has no throughput, one that trains differently no rank, and CPU devices, few "
        "launches and ranges that overlap allow no order.",
        breaks=(
            Break(
                fault="what trains differently is ranked with the others",
                edits=(("harness/reporting/naming.py", 'return spec.algorithm == "synchronous"', "return True"),),
                tests=("test_report::test_a_different_algorithm_is_never_ranked",),
            ),
            Break(
                fault="a cell that failed has a throughput",
                edits=(
                    (
                        "harness/reporting/summary.py",
                        "return self.estimate.value if self.estimate else None",
                        "return self.estimate.value if self.estimate else 1.0",
                    ),
                ),
                tests=("test_report::test_a_failed_cell_has_no_throughput_and_never_zero",),
            ),
            Break(
                fault="one good launch is enough for a cell to be ok",
                edits=(
                    (
                        "harness/reporting/summary.py",
                        "if result.status in FAILURES), self.first.status)",
                        "if result.status == self.first.status), self.first.status)",
                    ),
                ),
                tests=("test_report::test_one_failed_launch_is_the_cells_status_and_the_others_still_count",),
            ),
            Break(
                fault="speeds of CPU devices are ranked",
                edits=(
                    (
                        "harness/reporting/descriptions.py",
                        'return results[0].spec.platform == "cpu"',
                        "return not results",
                    ),
                ),
                tests=("test_report::test_cpu_reports_claim_no_speed",),
            ),
            Break(
                fault="a difference is an order although its interval includes 1",
                edits=(
                    (
                        "harness/statistics/verdicts.py",
                        "adjusted_p < SIGNIFICANCE and abs(ratio.log) > widest",
                        "abs(ratio.log) > widest",
                    ),
                ),
                tests=("test_report::test_gpu_reports_claim_an_order_only_where_the_interval_shows_one",),
            ),
            Break(
                fault="one launch is enough for an order",
                edits=(("harness/statistics/verdicts.py", 'outcome = "unknown"', 'outcome = "faster"'),),
                tests=("test_report::test_one_launch_shows_no_order",),
            ),
        ),
    ),
    Guarantee(
        name="rounds",
        promise="The launches of a round are of one hold, as far as a budget and interruptions allow: a round begins "
        "only if it fits, and one that was begun elsewhere is measured anew. Most launches of a cell compile anew.",
        breaks=(
            Break(
                fault="a round begins whatever it takes",
                edits=(("harness/session/rounds.py", "expected < left or never", "expected < math.inf or never"),),
                tests=(
                    "test_sessions::test_a_round_begins_if_it_fits_and_one_that_never_fits_goes_cell_by_cell",
                    "test_sessions::test_rounds_begin_as_the_budget_allows_and_are_told",
                ),
            ),
            Break(
                fault="a round is completed in another hold",
                edits=(("harness/results/holds.py", "hold_of(row.conditions.hardware) != hold_of(here)", "False"),),
                tests=(
                    "test_holds::test_only_a_round_that_is_not_complete_is_set_aside",
                    "test_holds::test_in_another_hold_the_round_is_measured_anew_and_every_row_stays",
                ),
            ),
            Break(
                fault="rows of another hold count until their launch has a new one",
                edits=(
                    (
                        "harness/session/rows.py",
                        "            store.append(self._folder, self._as_written(row))\n        if",
                        "            assert row\n        if",
                    ),
                ),
                tests=("test_holds::test_a_session_that_is_killed_leaves_no_rows_of_two_holds_in_a_round",),
            ),
            Break(
                fault="all launches of a cell share what the first one compiled",
                edits=(("harness/session/phase_launches.py", '{"": cold_launches(plan.launches), ', '{"": 1, '),),
                tests=("test_tracks::test_most_launches_compile_anew_and_the_others_share_the_code_of_the_first",),
            ),
        ),
    ),
)
