"""What a stream will do to a plan: key distributions, and how loads are shared by tuples that wait."""
