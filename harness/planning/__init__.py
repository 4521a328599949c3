"""From a request to the ordered list of trials, and the cells that cannot run, with reasons. Parent process."""
