"""Join a stream of orders with products that stay on disk, with Polars at both ends."""

import tempfile
from pathlib import Path

import polars as pl
import pyarrow as pa

import semistream

products = pl.DataFrame({"sku": range(1000)}).with_columns(
    name=pl.format("product {}", "sku"), price=pl.col("sku") * 0.25 + 1.0
)
orders = pl.DataFrame({"order": range(6000)}).with_columns(sku=pl.col("order") * 7 % 1200)

with tempfile.TemporaryDirectory() as folder:
    # Once: lay the products out on disk, sorted by key, in pages with an index.
    store = Path(folder) / "products.pages"
    semistream.build_pages(products.to_arrow(), store, on="sku")

    # Then: push batches as they come. Every push gives the rows that are finished; drain gives the rest.
    with semistream.open_join("sweepjoin", master=store, on="sku", how="left", memory="16MB") as join:
        finished: list[pa.RecordBatch] = []
        for part in orders.iter_slices(2000):
            for batch in part.to_arrow().to_batches():
                finished += join.push(batch)
        finished += join.drain()
        counts, memory = join.stats, join.memory

enriched = pl.from_arrow(pa.Table.from_batches(finished))
assert isinstance(enriched, pl.DataFrame)
print(enriched.sort("order").head(3))
print(f"{counts.tuples_in} orders in, {enriched.height} rows out, {counts.unmatched} of them without a product")
print(f"inside the budget: {memory.peak_bytes <= memory.budget_bytes}")
