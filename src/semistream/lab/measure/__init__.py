"""Measuring: when a join is steady, how fast it is, how long tuples stay, and what its process holds."""
