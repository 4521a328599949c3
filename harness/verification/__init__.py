"""A second implementation of a report's numbers, which a published report is checked with.

It computes the numbers of report.md again from results.jsonl, and shares no code with the rooms that wrote them:
harness.reporting, harness.results, harness.statistics (tests/test_architecture.py). The one exception is
harness.results.older_records, which gives rows of schema version 1 today's names; it computes nothing. MLPerf's package
checker is independent of the submitters' code for the same reason.
"""
