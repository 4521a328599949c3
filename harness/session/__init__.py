"""One command from its plan to its report, and one session of measuring. Parent process."""
