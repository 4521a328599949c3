"""Guarantees about processes: that none is left, and that a failure is named."""

from guarantee import Break, Guarantee

TITLE = "Processes"

GUARANTEES = (
    Guarantee(
        name="stdin-watchdog",
        promise="When the harness is gone, in whatever way, its supervisor ends every process of the launch: "
        "the closing of its standard input tells it.",
        breaks=(
            Break(
                fault="the supervisor takes the end of its standard input for nothing",
                edits=(
                    (
                        "harness/launch/supervisor.py",
                        "and not os.read(sys.stdin.fileno(), 1):",
                        'and os.read(sys.stdin.fileno(), 1) == b"end":',
                    ),
                ),
                tests=("test_processes::test_a_supervisor_whose_standard_input_closes_ends_its_ranks",),
            ),
        ),
    ),
    Guarantee(
        name="parent-death",
        promise="A rank dies with its supervisor and a golden run with the harness, even by SIGKILL and though nobody "
        "else can act: each asks the system for the parent-death signal.",
        breaks=(
            Break(
                fault="the parent-death signal is not asked for",
                edits=(("harness/spec/processes.py", "ctypes.CDLL(None).prctl(1, signal.SIGKILL)", "pass"),),
                tests=(
                    "test_processes::test_ranks_die_with_their_supervisor_whatever_the_harness_does",
                    "test_golden_runs::test_a_killed_harness_leaves_none",
                ),
            ),
            Break(
                fault="ranks do not ask for it",
                edits=(
                    (
                        "harness/worker/main.py",
                        "    die_with_parent()\n    faulthandler.enable()",
                        "    faulthandler.enable()",
                    ),
                ),
                tests=("test_processes::test_ranks_die_with_their_supervisor_whatever_the_harness_does",),
            ),
            Break(
                fault="golden runs do not ask for it",
                edits=(("harness/gate/runs.py", "    die_with_parent()\n    folder = Path", "    folder = Path"),),
                tests=("test_golden_runs::test_a_killed_harness_leaves_none",),
            ),
            Break(
                fault="a rank below a wrapper script does not wait for its supervisor's end",
                edits=(
                    (
                        "harness/spec/processes.py",
                        "    threading.Thread(target=_die_with, args=[int(supervisor)], daemon=True).start()\n",
                        "",
                    ),
                ),
                tests=("test_processes::test_a_rank_below_a_wrapper_that_stays_dies_with_the_supervisor",),
            ),
            Break(
                fault="a rank whose supervisor died before it could ask works on",
                edits=(
                    (
                        "harness/spec/processes.py",
                        "        os._exit(1)\n",
                        "        return\n",
                    ),
                ),
                tests=("test_processes::test_a_worker_whose_supervisor_died_before_it_began_does_nothing",),
            ),
        ),
    ),
    Guarantee(
        name="subreaper",
        promise="A process in a session of its own whose parent is gone is found and ended: the supervisor is a "
        "subreaper.",
        breaks=(
            Break(
                fault="the supervisor is no subreaper",
                edits=(("harness/launch/supervisor.py", "ctypes.CDLL(None).prctl(36, 1)", "pass"),),
                tests=(
                    "test_processes::test_a_process_whose_parent_is_gone_is_found_in_its_own_session",
                    "test_launch::test_children_in_their_own_session_are_ended",
                    "test_processes::test_nothing_is_left_after_sigkill[rank]",
                ),
            ),
        ),
    ),
    Guarantee(
        name="ended-for-certain",
        promise="The supervisor ends its ranks when it gets a signal itself, and kills what holds out against SIGTERM.",
        breaks=(
            Break(
                fault="SIGTERM ends the supervisor at once",
                edits=(
                    (
                        "harness/launch/supervisor.py",
                        "SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)",
                        "SIGNALS = (signal.SIGINT, signal.SIGHUP)",
                    ),
                ),
                tests=("test_processes::test_a_supervisor_that_gets_a_signal_ends_its_ranks[15]",),
            ),
            Break(
                fault="no SIGKILL follows",
                edits=(
                    (
                        "harness/launch/supervisor.py",
                        "for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGKILL):",
                        "for number in (signal.SIGTERM,):",
                    ),
                ),
                tests=("test_processes::test_what_holds_out_against_sigterm_is_killed",),
            ),
        ),
    ),
    Guarantee(
        name="nothing-left",
        promise="After SIGKILL of any one process of a run (harness, supervisor, rank, a rank's child, golden run, "
        "watcher of the scratch folder) no process is left, and nothing in the temporary folder.",
        breaks=(
            Break(
                fault="what a killed supervisor's ranks had started is not looked for",
                edits=(
                    (
                        "harness/launch/local.py",
                        "            end_orphans(self._supervisor.pid)\n",
                        "            pass\n",
                    ),
                ),
                tests=("test_processes::test_nothing_is_left_after_sigkill[supervisor]",),
            ),
            Break(
                fault="a killed supervisor counts as a crash of the cell, which --resume does not try again",
                edits=(("harness/launch/local.py", "if code < 0:", "if code < -1000:"),),
                tests=("test_processes::test_nothing_is_left_after_sigkill[supervisor]",),
            ),
            Break(
                fault="what a killed rank had started is not found",
                edits=(("harness/launch/supervisor.py", "process.children(recursive=True)", "process.children()[:0]"),),
                tests=("test_processes::test_nothing_is_left_after_sigkill[rank]",),
            ),
            Break(
                fault="the watcher of the scratch folder does not remove it",
                edits=(("harness/launch/scratch.py", "shutil.rmtree(sys.argv[1], ignore_errors=True)", "pass"),),
                tests=("test_processes::test_nothing_is_left_after_sigkill[harness]",),
            ),
            Break(
                fault="the harness leaves all removing to the watcher",
                edits=(("harness/launch/scratch.py", "shutil.rmtree(self.folder, ignore_errors=True)", "pass"),),
                tests=("test_processes::test_nothing_is_left_after_sigkill[watcher of the scratch folder]",),
            ),
            Break(
                fault="nobody looks for what is left where harness and supervisor are killed together",
                edits=(("harness/launch/scratch.py", "        end_ranks()\n", "        pass\n"),),
                tests=("test_processes::test_nothing_is_left_where_harness_and_supervisor_are_killed_together",),
            ),
            Break(
                fault="a session ends without removing its scratch folder",
                edits=(("harness/session/measuring.py", "            self.scratch.remove()\n", ""),),
                tests=("test_processes::test_nothing_is_left_of_a_golden_run_that_is_killed",),
            ),
        ),
    ),
    Guarantee(
        name="whole-answers",
        promise="A rank that leaves with exit code 0 before it has answered is a crash, and never a shorter run.",
        breaks=(
            Break(
                fault="exit code 0 of all ranks is enough",
                edits=(
                    (
                        "harness/launch/local.py",
                        'return self._silent_rank() or ending if ending.status == "ok" else ending',
                        "return ending",
                    ),
                ),
                tests=("test_launch::test_a_training_that_leaves_early_is_not_taken_for_a_shorter_one",),
            ),
        ),
    ),
    Guarantee(
        name="no-time-with-a-pause",
        promise="A launch whose processes were stopped while it was timed (SIGSTOP, a paused container) has no times: "
        "its row says so, and --resume measures it again.",
        breaks=(
            Break(
                fault="a rank that was stopped and goes on is timed on",
                edits=(("harness/worker/main.py", "        pauses.end_after_pause(draft)\n", "        pass\n"),),
                tests=("test_processes::test_a_launch_that_was_stopped_while_it_was_timed_has_no_times[rank-0.1]",),
            ),
            Break(
                fault="the supervisor does not notice that nothing ran for a while",
                edits=(("harness/launch/supervisor.py", "looked - before > PAUSE_SECONDS", "False"),),
                tests=(
                    "test_processes::test_a_launch_that_was_stopped_while_it_was_timed_has_no_times[supervisor-3.0]",
                ),
            ),
            Break(
                fault="a pause in a parity phase, which times nothing, costs the proof",
                edits=(("harness/launch/supervisor.py", "if group.timed and looked", "if looked"),),
                tests=("test_processes::test_a_proof_that_was_stopped_meanwhile_goes_on",),
            ),
        ),
    ),
    Guarantee(
        name="first-failing-rank",
        promise="The rank that failed first is named, with its own reason, even where others fail because of it and "
        "are seen to end before it.",
        breaks=(
            Break(
                fault="the lowest rank of those that failed is blamed",
                edits=(
                    ("harness/launch/supervisor.py", "key=lambda entry: entry[:2])", "key=lambda entry: entry[1])"),
                ),
                tests=(
                    "test_processes::test_the_rank_that_ends_first_is_blamed_where_none_could_answer",
                    "test_launch::test_the_rank_that_failed_first_is_blamed_even_if_another_then_dies_without_a_word",
                ),
            ),
            Break(
                fault="ranks that have failed get no time to say so",
                edits=(
                    (
                        "harness/launch/supervisor.py",
                        "if exits and time.monotonic() - min(exits.values()) > GRACE_SECONDS:",
                        "if exits:",
                    ),
                ),
                tests=("test_processes::test_a_rank_that_failed_first_may_take_a_moment_to_say_so",),
            ),
            Break(
                fault="what a rank answered is not read",
                edits=(
                    (
                        "harness/launch/supervisor.py",
                        'if answer is not None and answer.status != "ok":',
                        "if answer == {}:",
                    ),
                ),
                tests=(
                    "test_processes::test_a_rank_that_failed_first_may_take_a_moment_to_say_so",
                    "test_launch::test_the_rank_that_failed_first_is_blamed_even_if_another_then_dies_without_a_word",
                ),
            ),
            Break(
                fault="the rank is not named",
                edits=(
                    (
                        "harness/launch/supervisor.py",
                        'where = f"rank {rank}: " if len(codes) > 1 or rank else ""',
                        'where = ""',
                    ),
                ),
                tests=("test_processes::test_a_killed_rank_is_named_with_its_signal",),
            ),
        ),
    ),
    Guarantee(
        name="stuck",
        promise="A rank that is stuck is ended as hung, with where each rank was and the stack of the stuck one; one "
        "that makes progress for too long is ended as out of time.",
        breaks=(
            Break(
                fault="stuck ranks are not asked for their stack",
                edits=(("harness/launch/supervisor.py", "process.send_signal(signal.SIGUSR1)", "pass"),),
                tests=("test_launch::test_a_stuck_rank_is_hung_and_says_where",),
            ),
            Break(
                fault="a rank does not say how far it is",
                edits=(
                    (
                        "harness/worker/draft.py",
                        "total=total, detail=detail, said=self._last.said)\n        write(",
                        "total=total, detail=detail, said=self._last.said)\n        (lambda *_: None)(",
                    ),
                ),
                tests=("test_launch::test_a_stuck_rank_is_hung_and_says_where",),
            ),
            Break(
                fault="progress makes a trial last as long as it likes",
                edits=(("harness/launch/supervisor.py", " or time.monotonic() > deadline:", ":"),),
                tests=("test_launch::test_out_of_time_while_making_progress_is_a_timeout",),
            ),
        ),
    ),
    Guarantee(
        name="interruption",
        promise="Ctrl-C and SIGTERM end everything, exit with 130 and 143, and keep a row for every trial with its "
        "proof; a second signal kills.",
        breaks=(
            Break(
                fault="SIGTERM is not handled",
                edits=(
                    (
                        "harness/launch/interrupts.py",
                        "SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)",
                        "SIGNALS = (signal.SIGINT, signal.SIGHUP)",
                    ),
                ),
                tests=("test_launch::test_a_signal_ends_everything_and_keeps_what_was_measured[15-143]",),
            ),
            Break(
                fault="trials that were interrupted get no row",
                edits=(
                    (
                        "harness/session/measuring.py",
                        "self._give_up(trials, *why_ended(error), status=status)",
                        "assert error",
                    ),
                ),
                tests=(
                    "test_launch::test_a_signal_ends_everything_and_keeps_what_was_measured[2-130]",
                    "test_processes::test_nothing_is_left_after_sigkill[child]",
                ),
                error="UsageError",
            ),
            Break(
                fault="a signal comes between the rows of a cell that failed",
                edits=(
                    (
                        "harness/session/proving.py",
                        "with signals_held():  # of all launches",
                        "if True:  # of all launches",
                    ),
                ),
                tests=("test_sessions::test_a_wrong_result_counts_for_all_launches_though_a_signal_comes",),
            ),
            Break(
                fault="signals are not held while a row is written",
                edits=(
                    (
                        "harness/launch/interrupts.py",
                        "signal.signal(number, lambda number, frame: arrived.append(number))",
                        "signal.getsignal(number)",
                    ),
                ),
                tests=(
                    "test_interrupts::test_a_signal_waits_for_what_must_be_whole_though_other_threads_could_take_it",
                ),
            ),
            Break(
                fault="a display whose terminal is gone ends the run",
                edits=(
                    (
                        "harness/cli/terminal.py",
                        "            except OSError:\n",
                        "            except RecursionError:\n",
                    ),
                ),
                tests=("test_cli::test_a_display_whose_terminal_is_gone_shows_nothing_more",),
                error="OSError",
            ),
            Break(
                fault="the second SIGHUP of a closed terminal kills",
                edits=(
                    (
                        "harness/launch/interrupts.py",
                        "signal.SIG_IGN if each == number == signal.SIGHUP else signal.SIG_DFL",
                        "signal.SIG_DFL",
                    ),
                ),
                tests=("test_interrupts::test_a_second_sighup_does_not_kill",),
            ),
            Break(
                fault="a second signal is handled like the first",
                edits=(
                    ("harness/launch/interrupts.py", "signal.signal(each, signal.SIG_IGN if", "int(signal.SIG_IGN if"),
                ),
                tests=(
                    "test_interrupts::test_a_signal_waits_for_what_must_be_whole_though_other_threads_could_take_it",
                ),
            ),
        ),
    ),
    Guarantee(
        name="device-lock",
        promise="Two runs never share a device unseen: the second one ends before its first launch and names the "
        "first, or says so and both are marked. A killed run holds nothing.",
        breaks=(
            Break(
                fault="the run that holds a device does not learn of one that only warns",
                edits=(("harness/session/device_guard.py", "        self._locks.join_holders()\n", ""),),
                tests=(
                    "test_device_guard::test_the_run_that_holds_a_device_sees_who_measures_beside_it",
                    "test_device_guard::test_a_run_that_comes_and_goes_beside_a_launch_is_seen",
                ),
            ),
            Break(
                fault="a run that comes and goes while a launch runs is not seen by it",
                edits=(("harness/session/run_locks.py", " or now.came != then.came:", ":"),),
                tests=("test_device_guard::test_a_run_that_comes_and_goes_beside_a_launch_is_seen",),
            ),
            Break(
                fault="a lock that another process holds counts as free",
                edits=(
                    (
                        "harness/machine/device_locks.py",
                        "            return Attempt(holder=_holder_of(descriptor))",
                        "            pass",
                    ),
                ),
                tests=(
                    "test_device_locks::test_a_lock_is_held_once_and_given_back",
                    "test_device_guard::test_a_second_run_that_only_warns_is_marked_until_the_first_ends",
                ),
            ),
            Break(
                fault="a lock is written into a file that has another name as well",
                edits=(("harness/machine/device_locks.py", " or found.st_nlink > 1:", ":"),),
                tests=("test_device_locks::test_what_is_no_lock_file_is_neither_followed_nor_changed[hard link]",),
            ),
            Break(
                fault="a process id alone makes a holder",
                edits=(
                    (
                        "harness/machine/device_locks.py",
                        "and _start_of(holder.pid) == holder.started",
                        "and _start_of(holder.pid) is not None",
                    ),
                ),
                tests=("test_device_locks::test_a_live_holder_counts_where_the_file_system_has_no_locks",),
            ),
        ),
    ),
    Guarantee(
        name="other-programs",
        promise="Another program on the GPUs is named before a run begins, and marks each launch during which it was "
        "there. A lost GPU ends the run at once.",
        breaks=(
            Break(
                fault="nobody looks while a launch runs",
                edits=(
                    (
                        "harness/session/device_guard.py",
                        "while (self._gpus or sampled) and not ended.wait(POLL_SECONDS):",
                        "while not ended.wait(60) and self._gpus:",
                    ),
                ),
                tests=(
                    "test_device_guard::test_a_program_that_comes_and_goes_in_a_launch_is_seen",
                    "test_device_guard::test_a_lost_gpu_ends_the_launch_at_once",
                ),
            ),
            Break(
                fault="memory that nobody explains counts as free",
                edits=(
                    (
                        "harness/session/device_guard.py",
                        "if not (others or launched) and used > UNEXPLAINED_BYTES:",
                        "if not (others or launched) and used < 0:",
                    ),
                ),
                tests=("test_device_guard::test_a_program_that_computes_on_a_gpu_is_named",),
                error="Failed",
            ),
            Break(
                fault="our own processes count as somebody else's",
                edits=(
                    (
                        "harness/session/device_guard.py",
                        "if process.pid not in self._ours and (name or not launched):",
                        "if name or not launched:",
                    ),
                ),
                tests=("test_device_guard::test_our_own_processes_are_nobody_else",),
            ),
        ),
    ),
    Guarantee(
        name="unfit-gpus",
        promise="A GPU that cannot be used is named with what to do, and does not matter where it is hidden.",
        breaks=(
            Break(
                fault="a GPU of which one answer is missing costs all",
                edits=(
                    (
                        "harness/machine/nvml.py",
                        "            raise\n        return None",
                        "            raise\n        raise",
                    ),
                ),
                tests=("test_nvml::test_a_gpu_without_memory_of_its_own_can_be_used",),
            ),
            Break(
                fault="a hidden GPU that does not work costs all",
                edits=(("harness/machine/devices.py", "    for each in chosen:\n", "    for each in found:\n"),),
                tests=("test_nvml::test_a_gpu_that_is_hidden_does_not_matter",),
            ),
        ),
    ),
    Guarantee(
        name="held-ports",
        promise="Between the moment when a port is found for a server and the server's start, seconds later, nobody "
        "else is given it by chance.",
        breaks=(
            Break(
                fault="a port is found where Linux hands them out",
                edits=(
                    (
                        "harness/ports.py",
                        "    return max(range(LOWEST, first), range(last + 1, HIGHEST + 1), key=len)",
                        "    return range(0)",
                    ),
                ),
                tests=("test_ports::test_ports_are_free_and_all_different_and_none_is_handed_out_by_linux",),
            ),
            Break(
                fault="ranks with one seed look for the same ports",
                edits=(("harness/ports.py", "random.SystemRandom()", "random"),),
                tests=("test_ports::test_ranks_with_one_seed_are_given_different_ports",),
            ),
        ),
    ),
    Guarantee(
        name="kills",
        promise="After SIGKILL of the harness, a supervisor or a rank at any moment, of a run or of a resume, "
        "no acknowledged row is lost or there twice, nothing is left, and a resume comes to the same rows.",
        breaks=(
            Break(
                fault="a resume measures again what has a row",
                edits=(
                    (
                        "harness/session/measuring.py",
                        "trials = [spec for spec in self.plan.runnable() if not self.rows.has(spec)]",
                        "trials = self.plan.runnable()",
                    ),
                ),
                tests=(
                    "test_kills::test_nothing_acknowledged_is_lost_and_nothing_is_left_after_kills_at_random_moments",
                ),
            ),
        ),
    ),
)
