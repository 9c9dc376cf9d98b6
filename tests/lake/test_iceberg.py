"""Iceberg tables: types, partitions, other writers, snapshots that expire."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from tests.lake.lakes import SCHEMA, VALUES, expected, found_by, open_lake, rows_of, write_batch, write_files
from tests.lake.test_delta import COLUMNS, write_once

from semistream.errors import ConfigError, SchemaError, StoreError

APP = "query-1"


def catalog_of(folder: Path) -> Catalog:
    uri = f"sqlite:///{folder}/catalog.db"
    return load_catalog("semistream", type="sql", uri=uri, warehouse=f"file://{folder}/warehouse")


def test_types_come_back(tmp_path: Path) -> None:
    batch = pa.record_batch(COLUMNS)
    write_once(open_lake(tmp_path, "iceberg"), batch)
    found = catalog_of(tmp_path).load_table("ns.t").scan().to_arrow()
    want = repr(batch.to_pylist()).replace("zoneinfo.ZoneInfo(key='Europe/Berlin')", "zoneinfo.ZoneInfo(key='UTC')")
    assert repr(found.select(batch.schema.names).to_pylist()) == want.replace("2, 0, tzinfo", "1, 0, tzinfo")
    write_once(open_lake(tmp_path, "iceberg"), batch.select(batch.schema.names[::-1]), 1)
    assert catalog_of(tmp_path).load_table("ns.t").scan().to_arrow().num_rows == 6


@pytest.mark.parametrize("kind", [pa.uint32(), pa.timestamp("ns"), pa.duration("us"), pa.float16()], ids=str)
def test_types_without_a_form_are_refused(tmp_path: Path, kind: pa.DataType) -> None:
    with pytest.raises(SchemaError, match="which Iceberg has no form for"):
        open_lake(tmp_path, "iceberg").prepare(pa.schema([("c", kind)]))


def test_readers_leave_out_partitions(tmp_path: Path) -> None:
    table = open_lake(tmp_path, "iceberg")
    table.prepare(SCHEMA, ["p"])
    write_batch(table, APP, 0)
    found = catalog_of(tmp_path).load_table("ns.t")
    for value in VALUES:
        where = "p is null" if value is None else f"p == '{value}'"
        scan = found.scan(row_filter=where)
        assert scan.to_arrow().column("k").to_pylist() == [row[0] for row in expected([0]) if row[1] == value]
        assert {task.file.partition[0] for task in scan.plan_files()} == {value}


def test_the_last_batch_outlives_its_snapshot(tmp_path: Path) -> None:
    table = open_lake(tmp_path, "iceberg")
    table.prepare(SCHEMA)
    write_batch(table, APP, 0)
    write_batch(table, "another", 0)
    found = catalog_of(tmp_path).load_table("ns.t")
    summaries = [snapshot.summary.additional_properties for snapshot in found.snapshots() if snapshot.summary]
    assert [(one["semistream.app"], one["semistream.batch"]) for one in summaries] == [(APP, "0"), ("another", "0")]
    found.maintenance.expire_snapshots().by_id(found.snapshots()[0].snapshot_id).commit()
    assert table.done(APP, 0)
    assert not table.done(APP, 1)
    # The files of a snapshot that expired are still those of the table.
    assert table.clean(0) == []
    assert found_by("pyiceberg", tmp_path, "iceberg") == sorted(expected([0, 0]))


def test_other_writers_come_in_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at the table and the commit another process appends, and then one commits this very batch."""
    table = open_lake(tmp_path, "iceberg")
    table.prepare(SCHEMA)
    rival = open_lake(tmp_path, "iceberg")
    rival.prepare(SCHEMA)
    plain = table._commit_once  # type: ignore[attr-defined]
    batches: list[tuple[str, int]] = []

    def interrupted(*args: Any) -> None:
        if batches:
            assert not write_batch(rival, *batches.pop()).skipped
        plain(*args)

    monkeypatch.setattr(table, "_commit_once", interrupted)
    batches.append(("another", 0))
    assert not write_batch(table, APP, 0).skipped
    assert found_by("pyiceberg", tmp_path, "iceberg") == sorted(expected([0, 0]))
    batches.append((APP, 1))
    assert write_batch(table, APP, 1).skipped
    assert found_by("pyiceberg", tmp_path, "iceberg") == sorted(expected([0, 0, 1]))


def test_columns_that_change_in_between_are_noticed(tmp_path: Path) -> None:
    table = open_lake(tmp_path, "iceberg")
    table.prepare(SCHEMA)
    files = write_files(table.target(APP, 0), [rows_of(0)])
    with catalog_of(tmp_path).load_table("ns.t").update_schema() as update:
        update.rename_column("v", "w")
    with pytest.raises(SchemaError, match="no column 'v'"):
        table.commit(APP, 0, files)
    assert not table.done(APP, 0)


def test_tables_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    open_lake(tmp_path, "iceberg").prepare(SCHEMA, ["p"])
    found = catalog_of(tmp_path).load_table("ns.t")
    with found.transaction() as changing:
        changing.set_properties({"write.metadata.metrics.default": "none"})
    with pytest.raises(ConfigError, match="keeps no bounds of 'p'"):
        open_lake(tmp_path, "iceberg").prepare(SCHEMA, ["p"])
    found = catalog_of(tmp_path).create_table("ns.bucketed", SCHEMA)
    with found.update_spec() as spec:
        spec.add_field("k", "bucket[4]", "k_bucket")
    with pytest.raises(ConfigError, match="only columns as they are"):
        open_lake(tmp_path, "iceberg", "bucketed").prepare(SCHEMA, ["k"])


def test_a_table_that_is_gone_is_an_error_of_ours(tmp_path: Path) -> None:
    table = open_lake(tmp_path, "iceberg")
    table.prepare(SCHEMA)
    catalog_of(tmp_path).drop_table("ns.t")
    with pytest.raises(StoreError, match="cannot be opened"):
        table.done(APP, 0)
