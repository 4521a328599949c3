"""What can go wrong around a run: 25 faults, what the user sees of each, and the tests that inject it.

Edit `FAULTS` when a test is added or renamed; the page is made of it: python tests/net/guarantees.py >
docs/reliability.md. tests/test_reliability.py wants every test to be there.
"""

from __future__ import annotations

from dataclasses import dataclass

TITLE = "25 faults, and what you see"

INTRODUCTION = """\
Each of these faults is injected by a test, which also holds what the user then sees; nothing is promised where there
is no test yet. "A row" is a line of results.jsonl and of the report. `--resume` tries rows again that are killed, hung,
timed out, pending or unavailable.
"""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault around a run. `tests` are named as "test_launch::test_name"; without any, `seen` is not shown."""

    fault: str
    seen: str
    tests: tuple[str, ...] = ()

    @property
    def ids(self) -> tuple[str, ...]:
        """The tests as pytest names them."""
        return tuple(f"tests/{test.replace('::', '.py::', 1)}" for test in self.tests)


FAULTS: tuple[Fault, ...] = (  # in the order of their numbers, from 1
    Fault(
        fault="an unknown framework; 0, -1 or too many devices; GPUs where there are none",
        seen="exit code 2 and one line with the value and what is allowed; nothing is launched",
        tests=(
            "test_cli::test_usage_errors_are_one_line_and_launch_nothing",
            "test_plan::test_more_gpus_than_there_are",
            "test_plan::test_bad_requests_name_value_and_choice",
        ),
    ),
    Fault(
        fault="a TOML file with an unknown key, a wrong type, a key twice, a table; YAML; a misspelt variable",
        seen="exit code 2 and one line with the file, the key and a near name",
        tests=(
            "test_cli::test_bad_files_are_usage_errors",
            "test_cli::test_a_configuration_that_would_be_ignored_is_an_error",
        ),
    ),
    Fault(
        fault="a batch that the devices do not divide; more stages than the network has blocks",
        seen="`plan` shows the cell as skipped with the reason; asked for by itself, exit code 2",
        tests=(
            "test_plan::test_a_default_batch_that_does_not_divide_is_a_skipped_row_and_an_asked_one_an_error",
            "test_plan::test_in_a_matrix_of_everything_what_does_not_divide_is_skipped",
            "test_plan::test_more_stages_than_blocks",
        ),
    ),
    Fault(
        fault="a run folder that holds files, cannot be made, or has odd characters in its path",
        seen="exit code 2 or 3 with the path; spaces, #, ?, : and é work",
        tests=(
            "test_cli::test_usage_errors_are_one_line_and_launch_nothing",
            "test_cli::test_a_place_that_cannot_be_written_is_refused_by_run_and_plan",
            "test_cli::test_a_path_with_odd_characters_works",
        ),
    ),
    Fault(
        fault="a reason, traceback, strategy or path with a script, a pipe, a backtick, a newline or a formula",
        seen="inert text in Markdown, in pictures and in epochs.csv",
        tests=(
            "test_report::test_hostile_text_is_inert",
            "test_render::test_no_text_becomes_markup_in_any_node",
            "test_render::test_no_file_or_target_ends_its_link",
            "test_training::test_no_cell_of_epochs_csv_is_a_formula",
        ),
    ),
    Fault(
        fault="a framework that is not installed, or whose import fails",
        seen="rows `unavailable` with the reason and how to install it; the others run; exit code 1",
        tests=(
            "test_plan::test_a_missing_framework_is_unavailable_with_a_hint",
            "test_launch::test_a_framework_that_cannot_be_imported_is_unavailable_and_the_others_run",
            "test_cli::test_an_interpreter_without_the_framework_gives_unavailable_rows",
            "test_cli::test_a_bad_plugin_is_named_in_one_line",
        ),
    ),
    Fault(
        fault="no driver, GPUs in MIG or exclusive mode, GPUs of several models",
        seen="exit code 3 in plain words; without a driver, CPU devices; an exclusive GPU is used by one process",
        tests=(
            "test_nvml::test_a_machine_without_a_driver_has_no_gpus_and_runs_on_cpu_devices",
            "test_nvml::test_gpus_that_cannot_be_used_are_named_in_plain_words",
            "test_nvml::test_gpus_of_several_models_are_not_measured_together",
            "test_nvml::test_a_gpu_for_one_process_at_a_time_is_used_by_one",
        ),
    ),
    Fault(
        fault="a GPU that another process uses, before or during a run",
        seen="refused, or the row says so (`--device-guard`); strangers are never ended",
        tests=(
            "test_device_guard::test_a_program_on_the_gpu_and_what_each_mode_makes_of_it",
            "test_device_guard::test_a_program_that_computes_on_a_gpu_is_named",
            "test_device_guard::test_a_program_that_comes_and_goes_in_a_launch_is_seen",
        ),
    ),
    Fault(
        fault="two harnesses with one run folder, or on the same devices",
        seen="the second ends before it launches anything and names the folder, or the run that holds the device",
        tests=(
            "test_sessions::test_two_sittings_at_a_time_are_refused",
            "test_processes::test_a_run_holds_its_folder_as_long_as_it_lasts",
            "test_device_guard::test_a_second_run_names_the_first_and_leaves_nothing",
        ),
    ),
    Fault(
        fault="a lock whose holder is dead",
        seen="it is taken over; a run that was killed can go on at once",
        tests=(
            "test_processes::test_nothing_is_left_after_sigkill[harness]",
            "test_device_locks::test_the_lock_of_a_killed_process_is_taken_over_and_its_name_told",
            "test_device_locks::test_a_live_holder_counts_where_the_file_system_has_no_locks",
        ),
    ),
    Fault(
        fault="one rank raises at some step; then others die as well",
        seen="a row `crashed` with the first failing rank and its traceback; all ranks are ended",
        tests=(
            "test_launch::test_each_failure_is_a_row",
            "test_launch::test_the_rank_that_failed_first_is_blamed_even_if_another_then_dies_without_a_word",
            "test_processes::test_a_rank_that_failed_first_may_take_a_moment_to_say_so",
        ),
    ),
    Fault(
        fault="a rank or its supervisor is ended by SIGKILL, as the kernel does without memory",
        seen="a row `killed` with the rank, the signal and a hint at memory; nothing is left; `--resume` tries again",
        tests=(
            "test_processes::test_a_killed_rank_is_named_with_its_signal",
            "test_processes::test_nothing_is_left_after_sigkill[rank]",
            "test_processes::test_nothing_is_left_after_sigkill[supervisor]",
            "test_processes::test_ranks_die_with_their_supervisor_whatever_the_harness_does",
        ),
    ),
    Fault(
        fault="a rank that lives but waits forever",
        seen="a row `hung` with the place in the code of each rank",
        tests=("test_launch::test_a_stuck_rank_is_hung_and_says_where",),
    ),
    Fault(
        fault="a worker that ignores SIGTERM, and one with children in sessions of their own",
        seen="nothing is left",
        tests=(
            "test_processes::test_what_holds_out_against_sigterm_is_killed",
            "test_processes::test_a_process_whose_parent_is_gone_is_found_in_its_own_session",
            "test_launch::test_children_in_their_own_session_are_ended",
        ),
    ),
    Fault(
        fault="Ctrl-C once and twice, SIGTERM, SIGHUP, SIGKILL of the harness, nohup",
        seen="exit code 128 + signal; every trial has a row, `killed` if it was not finished; no process is left",
        tests=(
            "test_launch::test_a_signal_ends_everything_and_keeps_what_was_measured",
            "test_launch::test_nothing_outlives_a_killed_harness",
            "test_interrupts::test_a_signal_waits_for_what_must_be_whole_though_other_threads_could_take_it",
            "test_interrupts::test_an_ignored_signal_stays_ignored",
            "test_processes::test_a_run_whose_terminal_is_closed_ends_as_interrupted_and_keeps_all_rows",
        ),
    ),
    Fault(
        fault="out of memory on a device",
        seen="a row `oom` with what was asked for; the next cell begins in fresh processes; exit code 1",
        tests=("test_launch::test_each_failure_is_a_row[out_of_memory-oom-facts2]",),
    ),
    Fault(
        fault="a loss that is NaN or leaves the reference's curve",
        seen="a row `diverged` with the step; it has no speed and no rank",
        tests=(
            "test_launch::test_each_failure_is_a_row[diverge-diverged-facts3]",
            "test_launch::test_a_timed_run_that_leaves_the_golden_curve_is_void",
            "test_training::test_a_loss_that_is_not_finite_ends_the_cell_with_its_step",
        ),
    ),
    Fault(
        fault="a full disk",
        seen="one line and exit code 3; rows that were there can be read, and no line is half written",
        tests=(
            "test_store::test_a_full_disk_leaves_no_part_of_a_line",
            "test_store::test_a_file_is_replaced_whole_or_not_at_all",
            "test_processes::test_an_outcome_is_there_whole_or_not_at_all",
            "test_sessions::test_on_a_full_disk_rows_are_kept_and_the_user_knows_how_to_go_on",
        ),
    ),
    Fault(
        fault="SIGKILL at random moments of runs and resumes (`make kills`: 1,000 of them)",
        seen="each acknowledged row once; `--resume` comes to the rows of an unkilled run",
        tests=("test_kills::test_nothing_acknowledged_is_lost_and_nothing_is_left_after_kills_at_random_moments",),
    ),
    Fault(
        fault="records that are torn, noise, of a newer schema, or with values that no launch can have",
        seen="a torn last line is passed over; else exit code 2 with the line's number and what is wrong",
        tests=(
            "test_store::test_a_torn_last_line_is_passed_over",
            "test_store::test_what_is_no_run_is_refused",
            "test_records::test_a_row_that_is_none_is_refused_in_one_line",
            "test_altered_records::test_an_altered_row_is_reported_or_refused_in_one_line",
            "test_records::test_a_row_of_version_1_that_is_none_is_refused_in_one_line",
            "test_sessions::test_a_run_of_another_version_is_refused_and_not_ruined",
        ),
    ),
    Fault(
        fault="an output folder that cannot be written, is a file, or a current folder that was deleted",
        seen="exit code 2 or 3 with the path, before anything is launched; with --out elsewhere it works",
        tests=(
            "test_cli::test_a_place_that_cannot_be_written_is_refused_by_run_and_plan",
            "test_cli::test_a_deleted_current_folder_is_named_and_another_place_works",
        ),
    ),
    Fault(
        fault="stale variables of other launchers (MASTER_ADDR, RANK, TF_CONFIG), CUDA_VISIBLE_DEVICES in all its "
        "forms, a port that is taken",
        seen="what would change the program is removed, the rest is honoured and recorded; processes meet by files, or "
        "at ports that are free",
        tests=(
            "test_launch::test_workers_get_a_scrubbed_environment",
            "test_launch::test_no_secret_reaches_a_worker_or_a_report",
            "test_workers::test_a_worker_has_the_variables_that_it_may_have_and_no_others",
            "test_meeting::test_addresses_are_all_different_and_free",
        ),
    ),
    Fault(
        fault="a worker that prints without an end, text that is not UTF-8, or sequences for a terminal",
        seen="the trial is not held up; the log keeps its first and last part; text is shown inert",
        tests=(
            "test_processes::test_of_a_long_log_the_disk_holds_the_first_and_the_last_part",
            "test_sessions::test_text_that_is_not_utf_8_costs_no_row",
            "test_report::test_characters_that_steer_a_terminal_are_written_out",
        ),
    ),
    Fault(
        fault="a clock that jumps; GPUs that are throttled while they are timed",
        seen="times come from a monotonic clock; the row says that clocks were reduced",
        tests=("test_device_guard::test_lowered_clocks_are_told",),
    ),
    Fault(
        fault="weights and data from others: a pickle, a torn file, wrong shapes, token numbers, labels without "
        "an output",
        seen="refused by name before anything is computed; nothing is unpickled; tied weights train as they should",
        tests=(
            "test_workers::test_a_worker_refuses_a_file_that_holds_a_pickle",
            "test_training::test_a_checkpoint_is_whole_or_refused",
            "test_data::test_damaged_idx_files_are_refused",
            "test_data::test_labels_that_are_none_are_refused",
            "test_other_networks::test_samples_that_would_be_misread_are_refused",
            "test_other_networks::test_the_gradient_of_a_parameter_that_is_used_twice_is_the_sum",
        ),
    ),
)


def section() -> list[str]:
    """The part of docs/reliability.md: a row for each fault."""
    head = ["| # | fault | what you see | injected by |", "|--:|---|---|---|"]
    return [f"## {TITLE}\n", INTRODUCTION, *head, *(_row(*numbered) for numbered in enumerate(FAULTS, 1)), ""]


def _row(number: int, fault: Fault) -> str:
    tests = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in fault.ids)
    cells = [str(number), fault.fault, fault.seen if tests else "", tests or "no test yet"]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
