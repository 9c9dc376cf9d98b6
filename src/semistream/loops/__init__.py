"""The main loops that algorithms share, each with the counts that it predicts."""
