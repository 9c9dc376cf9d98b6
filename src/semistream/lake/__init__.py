"""Results in a lake: files that tasks write, and tables that take them over batch by batch, each batch once."""
