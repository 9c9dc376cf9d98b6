"""Compiled loops over tuples: the one place where tuples are touched one by one, free of Arrow and I/O."""
