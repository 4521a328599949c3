"""A framework in numpy, for tests: one strategy that is right, and one for each way to go wrong."""
