"""What counts as right: comparison with the reference, tolerances, precision. Ranks and parent."""
