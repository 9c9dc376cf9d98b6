"""Master data R on disk or in memory, read page by page: to scan, and where there is an index, to look up."""
