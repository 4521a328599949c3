"""The tables of a report that stand for themselves, one module each. A section's small table stands beside its text."""
