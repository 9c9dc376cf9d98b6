"""Pictures of figures, and the report that shows them beside what the papers say."""
