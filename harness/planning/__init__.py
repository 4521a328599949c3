"""From a request to a plan: which trials run, in which order, and why other cells do not. Parent process."""
