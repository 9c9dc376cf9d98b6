"""Join a stream of sales with two dimensions of a star schema in one pass."""

import tempfile

from semistream.spark import build_master, enrich_star
from semistream.spark.session import open_session

spark = open_session("star_schema", "local[2]", {"spark.sql.shuffle.partitions": "2"})

with tempfile.TemporaryDirectory() as folder:
    products = spark.range(500).selectExpr("id AS sku", "concat('product ', id) AS product", "id * 2 AS price")
    towns = [(1, "Ulm", "DE"), (2, "Łódź", "PL"), (3, "Lyon", "FR")]
    shops = spark.createDataFrame(towns, "id INT, town STRING, land STRING")
    build_master(products, f"{folder}/products", on="sku")
    build_master(shops, f"{folder}/shops", on="id")

    made = spark.range(3000).selectExpr("id AS sale", "id * 11 % 500 AS sku", "CAST(id % 3 + 1 AS INT) AS shop")
    made.write.parquet(f"{folder}/sales")
    sales = spark.readStream.schema("sale LONG, sku LONG, shop INT").parquet(f"{folder}/sales")

    # Each dimension is (where it is, the key, the columns wanted). The memory is divided among them.
    enriched = enrich_star(
        sales,
        [(f"{folder}/products", "sku", ["price"]), (f"{folder}/shops", {"shop": "id"}, ["town", "land"])],
        memory="64MB",
    )
    query = (
        enriched.writeStream.option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{folder}/facts")
    )
    query.awaitTermination()

    facts = spark.read.parquet(f"{folder}/facts")
    for row in facts.groupBy("land").sum("price").orderBy("land").collect():
        print(f"{row[0]}: {row[1]}")
