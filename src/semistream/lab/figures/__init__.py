"""The papers' figures and ours, measured again: one file per question, tidy results out."""
