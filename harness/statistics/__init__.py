"""Statistics of measurements: intervals, ratios, verdicts, variance, steadiness. Pure functions of numbers.

A launch is the unit of replication: blocks and steps of one launch are not independent of each other (Kalibera & Jones
2013, ISMM). docs/method.md says why each method was chosen, and how well it does in simulations.
"""
