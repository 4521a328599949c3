"""Guarantees about what leaves the suite as data, and about two runs that are compared."""

from guarantee import Break, Guarantee

TITLE = "Data for others, and two runs compared"

COLUMNS, COMPARISON, COMPARE = (
    "harness/results/tidy_columns.py",
    "harness/reporting/run_comparison.py",
    "harness/cli/commands/compare.py",
)

GUARANTEES = (
    Guarantee(
        name="data-without-void-speeds",
        promise="`harness.load` and `export` give a speed only to launches to which the report gives one, and no text "
        "of a record becomes a formula or markup.",
        breaks=(
            Break(
                fault="a launch that failed after it was timed has a throughput",
                edits=((COLUMNS, 'timed = self.status == "ok" and ', "timed = "),),
                tests=("test_tidy::test_a_failed_launch_has_no_speed_even_if_it_was_timed",),
            ),
            Break(
                fault="launches with wrong losses have a throughput",
                edits=((COLUMNS, 'return "disagrees" if self.disagrees and', 'return "disagrees" if not self and'),),
                tests=("test_tidy::test_launches_with_wrong_losses_have_no_speed",),
            ),
            Break(
                fault="a text in a CSV file begins as a formula",
                edits=(("harness/reporting/comma_separated.py", 'FORMULA = ("=", ', "FORMULA = ("),),
                tests=("test_show_export::test_no_text_becomes_a_formula",),
            ),
            Break(
                fault="a backslash reaches LaTeX",
                edits=(("harness/reporting/latex.py", '    "\\\\": r"\\textbackslash{}",\n', ""),),
                tests=("test_show_export::test_no_text_becomes_latex_markup",),
            ),
        ),
    ),
    Guarantee(
        name="regression-gate",
        promise="`compare --fail-above` fails a cell if its whole interval lies beyond the bound, and passes no run of "
        "which nothing was compared, or in which a cell failed that had a speed.",
        breaks=(
            Break(
                fault="a ratio beyond the bound is enough, whatever its interval",
                edits=((COMPARISON, "self.ratio.tested.high < bound", "self.ratio.value < bound"),),
                tests=("test_compare::test_the_gate_asks_whether_the_whole_interval_lies_beyond_its_bound",),
            ),
            Break(
                fault="the first run is divided by the second",
                edits=((COMPARISON, "speed_ratio(after, before)", "speed_ratio(before, after)"),),
                tests=("test_compare::test_the_ratio_is_b_over_a_with_welchs_interval",),
            ),
            Break(
                fault="the first run is divided by the second if they were on different machines",
                edits=((COMPARISON, "for side in (after, before)))", "for side in (before, after)))"),),
                tests=("test_compare::test_runs_without_a_common_hold_are_compared_and_marked",),
            ),
            Break(
                fault="a cell that fails in the second run passes",
                edits=((COMPARE, "return FAILED if found.broken else 0", "return 0"),),
                tests=("test_compare::test_a_cell_that_fails_in_b_does_not_pass_the_gate",),
            ),
            Break(
                fault="runs without a cell in common pass",
                edits=((COMPARE, "    check_common(a, b, found)\n", ""),),
                tests=("test_compare::test_runs_that_cannot_be_compared_are_refused",),
            ),
            Break(
                fault="3 means 3%, and 0.03 means 0.03%",
                edits=((COMPARE, r'\s*%")', r'\s*%?")'),),
                tests=("test_compare::test_a_bound_that_is_no_percentage_is_refused",),
            ),
        ),
    ),
)
