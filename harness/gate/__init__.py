"""What counts as correct: each cell's reference, the comparison with it, tolerances, precision. Used by ranks and
parent."""
