"""The golden reference: training in float64 with NumPy, independent of all frameworks. Runs in its own processes."""
