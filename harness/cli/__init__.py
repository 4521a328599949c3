"""The commands, their arguments, and what the terminal shows. Parent process."""
