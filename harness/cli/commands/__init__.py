"""The commands, one module for each family. A command's docstring is its help."""
