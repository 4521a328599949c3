"""The tables of a report, one module each. Each declares its columns, and nothing else does."""
