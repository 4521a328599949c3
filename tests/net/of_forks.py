"""Guarantees about forked launches: that they are what launches in processes of their own are."""

from guarantee import Break, Guarantee

TITLE = "Forked launches"
ZYGOTE, SUPERVISORS = "harness/launch/zygote.py", "harness/launch/supervisors.py"
LIKE_STARTED = "test_forks::test_a_forked_rank_has_what_a_started_one_has"

GUARANTEES = (
    Guarantee(
        name="forked-like-started",
        promise="A rank that is forked has the variables, paths, open files, signal handlers, session, limits and "
        "cores of one that is started, and random numbers of its own.",
        breaks=(
            Break(
                fault="it keeps the variables of the process that imported the framework",
                edits=((ZYGOTE, "    os.environ.clear()\n", ""),),
                tests=(LIKE_STARTED,),
            ),
            Break(
                fault="it lacks the variables that an import sets",
                edits=((ZYGOTE, "os.environ.update(imported.variables | variables)", "os.environ.update(variables)"),),
                tests=(LIKE_STARTED,),
            ),
            Break(
                fault="it keeps the files that are open in its supervisor",
                edits=((ZYGOTE, "                os.close(int(entry.name))\n", "                pass\n"),),
                tests=(LIKE_STARTED,),
            ),
            Break(
                fault="it keeps the supervisor's handlers of signals",
                edits=((ZYGOTE, "for number in supervisor.SIGNALS:", "for number in ():"),),
                tests=(LIKE_STARTED, "test_forks::test_however_a_forked_rank_ends_it_is_seen"),
            ),
            Break(
                fault="signals stay blocked in it",
                edits=(
                    (
                        ZYGOTE,
                        "signal.SIG_DFL)\n    signal.pthread_sigmask(signal.SIG_UNBLOCK, supervisor.SIGNALS)\n",
                        "signal.SIG_DFL)\n",
                    ),
                ),
                tests=(LIKE_STARTED,),
            ),
            Break(
                fault="it is in its supervisor's session",
                edits=((ZYGOTE, "    os.setsid()\n    os.chdir(folder)\n", "    os.chdir(folder)\n"),),
                tests=(LIKE_STARTED,),
            ),
            Break(
                fault="its supervisor is bound to the cores of the imports",
                edits=((ZYGOTE, "    os.sched_setaffinity(0, cores)\n", ""),),
                tests=("test_forks::test_a_forked_supervisor_may_use_all_cores",),
            ),
            Break(
                fault="all ranks draw the same random numbers",
                edits=((ZYGOTE, "    np.random.seed()", "    pass"),),
                tests=("test_forks::test_forked_ranks_draw_different_numbers",),
            ),
            Break(
                fault="an import may leave a thread",
                edits=((ZYGOTE, "return not opened and len(", "return not opened or len("),),
                tests=("test_forks::test_imports_that_leave_more_than_modules_are_not_forked",),
            ),
        ),
    ),
    Guarantee(
        name="forked-and-ended",
        promise="However a forked rank, its supervisor or the process that imported the framework ends, it is seen, "
        "and nothing is left.",
        breaks=(
            Break(
                fault="a signal that ends a rank is not seen",
                edits=((ZYGOTE, "os.waitstatus_to_exitcode(status) if found", "abs(status) if found"),),
                tests=("test_forks::test_however_a_forked_rank_ends_it_is_seen",),
            ),
            Break(
                fault="the supervisor's end is not reported",
                edits=((ZYGOTE, "                    os.write(report, ", "                    print("),),
                tests=("test_forks::test_however_a_forked_rank_ends_it_is_seen",),
            ),
            Break(
                fault="the system shows no supervisor of what a rank has forked",
                edits=((ZYGOTE, "    block[where : where + len(after)] = after\n", ""),),
                tests=("test_forks::test_of_a_forked_supervisor_that_is_killed_nothing_is_left",),
            ),
            Break(
                fault="a launch ends with the process that imported the framework",
                edits=((ZYGOTE, "    take_over(stdin, log, log, report)", "    take_over(stdin, log, log)"),),
                tests=("test_forks::test_a_launch_outlives_its_zygote",),
            ),
            Break(
                fault="a zygote that has died is not replaced",
                edits=((SUPERVISORS, "                del self._zygotes[key]\n", ""),),
                tests=("test_forks::test_a_zygote_that_has_died_is_replaced",),
            ),
            Break(
                fault="zygotes are not ended",
                edits=(("harness/launch/local.py", "        self._supervisors.close()\n", "        pass\n"),),
                tests=("test_forks::test_a_zygote_that_has_died_is_replaced",),
            ),
        ),
    ),
    Guarantee(
        name="compared-times-started",
        promise="Ranks are forked on CPU devices of one host only, under the harness's own interpreter, and never "
        "where their times are compared with those of other launches of the cell. Launches of both ways are never one "
        "row.",
        breaks=(
            Break(
                fault="launches are pooled however their processes began",
                edits=(
                    (
                        "harness/results/condition_rules.py",
                        '"conditions.start_method": "pool"',
                        '"conditions.start_method": "report"',
                    ),
                ),
                tests=(
                    "test_forks::test_a_forked_launch_and_a_started_one_record_the_same_variables_and_how_they_began",
                ),
            ),
            Break(
                fault="all launches are forked",
                edits=((SUPERVISORS, "and not compared", ""),),
                tests=("test_forks::test_times_that_are_compared_and_other_interpreters_have_processes_of_their_own",),
            ),
            Break(
                fault="launches over several hosts are forked",
                edits=((SUPERVISORS, "len(launch.place.hosts) == 1", "True"),),
                tests=("test_forks::test_launches_over_several_hosts_have_processes_of_their_own",),
            ),
        ),
    ),
)
