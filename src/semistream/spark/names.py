"""Column names as Spark understands them: in any case, unless spark.sql.caseSensitive says otherwise.

The join itself compares names exactly. So what a user wrote is replaced here by the names that the columns have, before
anything else looks at them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import SparkSession

from semistream.errors import ConfigError, SchemaError
from semistream.master.format import is_store
from semistream.master.pages import PageMaster
from semistream.spec import JoinSpec


def folds_case(spark: SparkSession) -> bool:
    """Whether names that differ in case only are the same to this session."""
    return str(spark.conf.get("spark.sql.caseSensitive")).lower() != "true"


def actual(name: str, columns: Sequence[str], where: str) -> str:
    """The column that a name means, whatever its case; an unknown one stays as it is, for others to refuse."""
    meant = list(dict.fromkeys(column for column in columns if column.lower() == name.lower()))
    if len(meant) > 1:
        raise SchemaError(
            f"{name!r} may be {' or '.join(map(repr, meant))} of {where}, which differ in case only: rename one, "
            "or set spark.sql.caseSensitive to true"
        )
    return meant[0] if meant else name


def resolved(spec: JoinSpec, stream: Sequence[str], master: Path) -> JoinSpec:
    """The join with the names that the columns of stream and master data have."""
    if not spec.fold_case:
        return spec
    known = _columns(master)
    stream_on = tuple(actual(name, stream, "the stream") for name in spec.stream_on)
    master_on = tuple(actual(name, known, "the master data") for name in spec.master_on)
    for given, found in ((spec.stream_on, stream_on), (spec.master_on, master_on)):
        if len(set(found)) != len(found):
            raise ConfigError(f"on={list(given)} names a column twice, in another case; name every key column once")
    select = spec.select
    if select is not None:
        select = tuple(actual(name, known, "the master data") for name in select)
    if spec.as_of is not None and spec.valid is not None:
        start, end = (actual(name, known, "the master data") for name in spec.valid)
        if start == end:
            raise ConfigError(f"valid={list(spec.valid)} names a column twice, in another case; name two columns")
        spec = replace(spec, as_of=actual(spec.as_of, stream, "the stream"), valid=(start, end))
    return replace(spec, stream_on=stream_on, master_on=master_on, select=select)


def _columns(master: Path) -> list[str]:
    if is_store(master):
        with closing(PageMaster(master)) as opened:
            return list(opened.schema.names)
    try:
        return list(ds.dataset(str(master), format="parquet", partitioning="hive").schema.names)
    except (pa.ArrowException, OSError):
        # Whoever opens it says what is wrong with it.
        return []
