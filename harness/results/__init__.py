"""What was measured: the run folder, the judgement of each trial, intervals. Runs in the parent process."""
