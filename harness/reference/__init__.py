"""The golden reference: training in float64 with NumPy, independent of all frameworks. Processes of its own."""
