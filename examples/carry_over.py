"""Let rows wait for up to a second, so that micro-batches share a pass over master data without an index."""

import tempfile

from semistream.spark import enrich, metrics
from semistream.spark.session import open_session

spark = open_session("carry_over", "local[2]", {"spark.sql.shuffle.partitions": "2"})

with tempfile.TemporaryDirectory() as folder:
    # Plain Parquet files are read in place, from front to back and again.
    sensors = spark.range(50_000).selectExpr("id AS sensor", "concat('room ', id % 90) AS room")
    sensors.write.parquet(f"{folder}/sensors")
    readings = spark.range(20_000).selectExpr("id AS reading", "id * 13 % 60000 AS sensor")
    readings.repartition(2).write.parquet(f"{folder}/readings")

    stream = spark.readStream.schema("reading LONG, sensor LONG").option("maxFilesPerTrigger", 1)
    enriched = enrich(
        stream.parquet(f"{folder}/readings"),
        f"{folder}/sensors",
        on="sensor",
        memory="64MB",
        algorithm="ssbj",
        max_delay="1s",
        checkpoint=f"{folder}/checkpoint",  # what waits is kept with the query's own state
    )
    query = (
        enriched.writeStream.option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{folder}/enriched")
    )
    query.awaitTermination()  # ends when nobody waits any more

    result = spark.read.parquet(f"{folder}/enriched")
    last = query.lastProgress
    assert last is not None
    counted = metrics.of(str(query.id), last.batchId)
    assert counted is not None
    print(f"{result.count()} rows, {result.filter('room IS NULL').count()} without a sensor")
    print(f"waiting at the end: {counted['carried']}")
