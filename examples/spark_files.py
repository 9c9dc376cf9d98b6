"""Read files of orders as a stream on Spark, add the customer to each, and write Parquet."""

import tempfile

from semistream.spark import build_master, enrich
from semistream.spark.session import open_session

spark = open_session("spark_files", "local[2]", {"spark.sql.shuffle.partitions": "2"})

with tempfile.TemporaryDirectory() as folder:
    # Once: lay the customers out as a page store. A later call gives the store a new version.
    customers = spark.range(1000).selectExpr("id AS customer_id", "concat('customer ', id) AS name")
    build_master(customers, f"{folder}/customers", on="customer_id")

    # Some orders; those of customers 1000 to 1199 have no match.
    made = spark.range(6000).selectExpr("id AS order_id", "id * 7 % 1200 AS customer_id")
    made.repartition(3).write.json(f"{folder}/orders")

    orders = spark.readStream.schema("order_id LONG, customer_id LONG").json(f"{folder}/orders")
    enriched = enrich(orders, f"{folder}/customers", on="customer_id", how="left", memory="64MB")
    query = (
        enriched.writeStream.format("parquet")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{folder}/enriched")
    )
    query.awaitTermination()

    result = spark.read.parquet(f"{folder}/enriched").orderBy("order_id")
    result.show(3)
    print(f"{result.count()} rows, {result.filter('name IS NULL').count()} without a customer")
