"""A policy that tries candidates at once, whatever the clock says."""

from __future__ import annotations

from semistream.planner.policy import Policy

#: each operator has its turn for two tasks of a process, whatever they take, and nobody has a second one
HASTY = Policy(
    horizon=1e9,
    first_check=1,
    hit_points=1e9,
    window_s=0.0,
    most_warm_s=0.0,
    stretch_s=0.0,
    plan_from_s=0.0,
    trial_share=1e9,
    close=0.05,
    rate_error=5.0,
    longest_cycle_s=1e9,
    glance=1 << 60,
    even=2.0,
)
