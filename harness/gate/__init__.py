"""What counts as right: the reference of each cell, the comparison with it, tolerances, precision. Ranks and parent."""
