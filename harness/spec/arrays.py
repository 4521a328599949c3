"""Arrays by canonical name: what the harness and every framework hand to each other."""

import numpy as np

Arrays = dict[str, np.ndarray]
"""Images NHWC, convolution kernels HWIO, linear weights (in, out): see harness/contract.py."""
