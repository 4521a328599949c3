"""Commands, their options, and what the terminal shows. Parent process."""
