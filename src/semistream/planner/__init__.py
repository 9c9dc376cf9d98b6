"""Which operator, with which sizes, and why: statistics in, a plan and its explanation out."""
