"""Ours and today's tools on the same join: who takes part, in which form each reads R, and how they compete."""
