"""Unit costs of this machine by micro-runs and short runs, and the best sizes by real runs."""
