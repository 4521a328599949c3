"""The referee's checklist: 20 requirements of good benchmarking, each decided from the rows of a run alone.

One function per requirement; its docstring says what "pass" means. docs/method.md has the same rules as a table.
"""
