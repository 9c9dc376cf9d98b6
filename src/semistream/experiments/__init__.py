"""The papers' figures and ours, measured again: one file a question, tidy results out."""
