"""Seeded generators of streams and master data, so that a run can be repeated anywhere."""
