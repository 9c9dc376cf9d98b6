"""What `semistream demo` shows: a retailer's sales, enriched on Spark and loaded into a warehouse."""
