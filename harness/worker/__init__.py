"""What a rank process does with a program: prove it, time it, train it.

Imports NumPy and the standard library alone.
"""
