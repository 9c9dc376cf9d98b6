"""What a test of a join needs, for this repository and for anyone who writes an operator of their own.

The reference join shares nothing with the operators: no kernel, no key code, no page. It is a dictionary over
Python values, so that a mistake in a kernel cannot hide in the answer it is compared with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import chain, repeat
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from semistream.engine.protocol import Join
from semistream.errors import BudgetError
from semistream.master.base import Bytes, Int64s, Master, PageBlock, PageFile, PageReader, RunRead
from semistream.planner.open import open_join
from semistream.spec import DEFAULT_HOW, On

__all__ = [
    "FakeClock",
    "FaultyMaster",
    "FaultyReader",
    "as_multiset",
    "assert_same_rows",
    "colliding_codes",
    "reference_join",
    "run_join",
    "smallest_budget",
    "split",
]

Batches: TypeAlias = pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch]


class _NaN:
    """Stands for NaN, which equals nothing and would never be found again in a dictionary."""

    def __repr__(self) -> str:
        return "nan"


_NAN = _NaN()


def _hashable(value: Any) -> Hashable:
    """A value of Arrow's `to_pylist` as something a dictionary can hold; equal as SQL sees it."""
    if isinstance(value, float):
        return value if value == value else _NAN
    if isinstance(value, list | tuple):
        return tuple(_hashable(item) for item in value)
    if isinstance(value, dict):
        return tuple((name, _hashable(item)) for name, item in value.items())
    if isinstance(value, bytearray):
        return bytes(value)
    result: Hashable = value
    return result


def _values(column: pa.ChunkedArray) -> list[Hashable]:
    """The column as hashable values; times as the integers they are, since Python's stop at microseconds."""
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], type=kind.storage_type)
        kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        column = column.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    values: list[Hashable] = column.to_pylist()
    if pa.types.is_floating(kind) or pa.types.is_nested(kind):
        return [_hashable(value) for value in values]
    return values


def _rows(table: pa.Table) -> list[tuple[Hashable, ...]]:
    if table.num_columns == 0:
        return [()] * table.num_rows
    return list(zip(*(_values(column) for column in table.columns), strict=True))


def _table(batches: Batches) -> pa.Table:
    if isinstance(batches, pa.Table):
        return batches
    if isinstance(batches, pa.RecordBatch):
        return pa.Table.from_batches([batches])
    return pa.Table.from_batches(list(batches))


def _take(column: pa.ChunkedArray, rows: Sequence[int | None]) -> pa.ChunkedArray:
    """The rows, null where a row is None. Arrow cannot take from views: they go through their plain type."""
    kind = column.type
    plain = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}.get(kind, kind)
    return column.cast(plain).take(pa.array(rows, pa.int64())).cast(kind)


def _pairs(on: On) -> tuple[list[str], list[str]]:
    """Names of the key columns in the stream and in the master data."""
    if isinstance(on, str):
        return [on], [on]
    if isinstance(on, Mapping):
        return list(on.keys()), list(on.values())
    return list(on), list(on)


def _times(column: pa.ChunkedArray) -> list[int | None]:
    """The column as whole numbers, those of dates and timestamps in nanoseconds."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    scale = 1
    if pa.types.is_timestamp(kind):
        scale = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[kind.unit]
    elif pa.types.is_date(kind):
        scale = 86_400 * 10**9 if pa.types.is_date32(kind) else 10**6
    values: list[Any] = _values(column)
    return [None if value is None else value * scale for value in values]


def reference_join(
    stream: Batches,
    master: pa.Table,
    on: On,
    how: str = DEFAULT_HOW,
    select: Sequence[str] | None = None,
    suffix: str = "_right",
    as_of: str | None = None,
    valid: Sequence[str] | None = None,
) -> pa.Table:
    """The relational join of stream and master data, done the plain way.

    A null in any key column matches nothing; -0.0 equals 0.0 and NaN equals NaN. The rows come in the order
    of the stream, the matches of one stream tuple in the order of the master data. With `as_of` and `valid` those rows
    match only that were valid at the tuple's time.

    >>> stream = pa.table({"k": [1, 2, 2, None], "n": [10, 20, 21, 30]})
    >>> master = pa.table({"k": [2, 2, None], "name": ["b", "B", "?"]})
    >>> reference_join(stream, master, "k", how="inner").to_pydict()
    {'k': [2, 2, 2, 2], 'n': [20, 20, 21, 21], 'name': ['b', 'B', 'b', 'B']}
    >>> reference_join(stream, master, "k", how="anti").to_pydict()
    {'k': [1, None], 'n': [10, 30]}
    """
    table = _table(stream)
    stream_on, master_on = _pairs(on)
    found: dict[tuple[Hashable, ...], list[int]] = {}
    for row, key in enumerate(_rows(master.select(master_on))):
        if None not in key:
            found.setdefault(key, []).append(row)

    left: list[int] = []
    right: list[int | None] = []
    times = [] if as_of is None else _times(table.column(as_of))
    starts, ends = ([], []) if valid is None else (_times(master.column(name)) for name in valid)
    for row, key in enumerate(_rows(table.select(stream_on))):
        matches = [] if None in key else found.get(key, [])
        if as_of is not None:
            time = times[row]
            matches = [at for at in matches if time is not None and _is_valid(starts[at], time, ends[at])]
        if how == "inner" or (how == "left" and matches):
            left.extend([row] * len(matches))
            right.extend(matches)
        elif how == "left" or (how == "semi" and matches) or (how == "anti" and not matches):
            left.append(row)
            right.append(None)
        elif how not in ("semi", "anti"):
            raise ValueError(f"how is {how!r}; allowed are inner, left, semi, anti")

    taken = [_take(column, left) for column in table.columns]
    result = pa.table(taken, schema=table.schema)
    if how in ("semi", "anti"):
        return result
    for name in master.column_names if select is None else select:
        if name not in master_on:
            clash = name in table.column_names
            field = master.schema.field(name).with_name(name + suffix if clash else name)
            result = result.append_column(field.with_nullable(True), _take(master.column(name), right))
    return result


def _is_valid(start: int | None, time: int, end: int | None) -> bool:
    return (start is None or start <= time) and (end is None or time < end)


def as_multiset(table: pa.Table) -> Counter[tuple[Hashable, ...]]:
    """The rows of a table with their counts, whatever their order; NaN equals NaN.

    >>> as_multiset(pa.table({"a": [1, 1, 2], "b": [[0], [0], None]}))
    Counter({(1, (0,)): 2, (2, None): 1})
    """
    return Counter(_rows(table))


def _is_sortable(kind: pa.DataType) -> bool:
    return not (pa.types.is_nested(kind) or pa.types.is_null(kind) or isinstance(kind, pa.BaseExtensionType))


def _equal_when_sorted(actual: pa.Table, expected: pa.Table) -> bool:
    """Whether the tables are equal for certain; False means nothing (NaN and nested columns end here)."""
    if not all(_is_sortable(kind) for kind in expected.schema.types) or expected.num_columns == 0:
        return False
    plain = pa.schema(
        [
            (f"c{i}", kind.value_type if pa.types.is_dictionary(kind) else kind)
            for i, kind in enumerate(expected.schema.types)
        ]
    )
    keys = [(name, "ascending") for name in plain.names]
    tables = [table.rename_columns(plain.names).cast(plain) for table in (actual, expected)]
    left, right = (table.take(pc.sort_indices(table, sort_keys=keys)) for table in tables)
    return bool(left.equals(right))


def assert_same_rows(actual: pa.Table, expected: pa.Table, limit: int = 10) -> None:
    """Fail unless both tables have the same columns (names, order, types) and the same multiset of rows.

    The message shows at most `limit` rows that are missing and as many that are too many.
    """
    columns = [[(field.name, field.type) for field in table.schema] for table in (actual, expected)]
    if columns[0] != columns[1]:
        raise AssertionError(f"the columns differ\n  actual:   {_named(columns[0])}\n  expected: {_named(columns[1])}")
    if actual.num_rows == expected.num_rows and actual.num_rows > 10_000 and _equal_when_sorted(actual, expected):
        return
    got, wanted = as_multiset(actual), as_multiset(expected)
    if got == wanted:
        return
    lines = [f"the rows differ: {actual.num_rows} rows, expected {expected.num_rows}"]
    for title, rows in (("missing", wanted - got), ("too many", got - wanted)):
        lines.append(f"  {title}: {rows.total()}")
        lines += [f"    {count} × {row}" for row, count in list(rows.items())[:limit]]
    raise AssertionError("\n".join(lines))


def _named(columns: list[tuple[str, pa.DataType]]) -> str:
    return ", ".join(f"{name}: {kind}" for name, kind in columns)


def run_join(join: Join, batches: Batches) -> pa.Table:
    """Everything the join gives for these batches, pushed one by one and drained at the end."""
    out = list(join.run(batches))
    return pa.Table.from_batches(out, schema=join.output_schema)


def split(table: pa.Table, sizes: int | Iterable[int]) -> list[pa.RecordBatch]:
    """The table as batches of the given sizes (the last ones repeat the final size; 0 gives an empty batch).

    >>> [batch.num_rows for batch in split(pa.table({"a": range(7)}), [0, 1, 4])]
    [0, 1, 4, 2]
    """
    wanted = [sizes] if isinstance(sizes, int) else list(sizes)
    if wanted[-1] < 1:
        raise ValueError(f"the last size is {wanted[-1]}: it repeats to the end of the table and must be at least 1")
    whole = next(iter(table.combine_chunks().to_batches()), None) or _empty_batch(table.schema)
    batches: list[pa.RecordBatch] = []
    start = 0
    for size in chain(wanted, repeat(wanted[-1])):
        if start >= whole.num_rows and len(batches) >= len(wanted):
            break
        batches.append(whole.slice(start, size))
        start += size
    return batches


def _empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


class FakeClock:
    """A clock that moves only when told to, for whatever takes a function that gives seconds.

    >>> clock = FakeClock()
    >>> clock.advance(1.5)
    >>> clock()
    1.5
    """

    def __init__(self, start_s: float = 0.0) -> None:
        self.now_s = start_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        """Let that much time pass."""
        if seconds < 0:
            raise ValueError(f"a clock cannot go back: {seconds} s")
        self.now_s += seconds


def colliding_codes(bits: int) -> dict[str, int]:
    """The option that leaves only `bits` bits of a hashed key code, so that different keys collide.

    It goes to whatever builds the master data: `build_pages(..., **colliding_codes(2))`.

    >>> colliding_codes(3)
    {'code_mask': 7}
    """
    if not 0 <= bits <= 63:
        raise ValueError(f"{bits} bits of a key code; allowed are 0 to 63")
    return {"code_mask": (1 << bits) - 1}


def smallest_budget(algorithm: str, **arguments: Any) -> int:
    """The least `memory` with which `open_join(algorithm, **arguments)` works, as its own error tells it."""
    try:
        open_join(algorithm, memory=1, **arguments).close()
    except BudgetError as error:
        if error.minimum_bytes is None:
            raise
        return error.minimum_bytes
    return 1


def _broken_disk() -> Exception:
    return OSError(5, "Input/output error (injected)")


class FaultyMaster(Master):
    """Master data whose disk fails once: the `fail_at`-th access to pages raises (1 is the first).

    All readers opened from it count together. An operator over it must raise, and whatever it does then, it
    must not answer as though the pages had been read.
    """

    def __init__(self, master: Master, fail_at: int, error: Callable[[], Exception] = _broken_disk) -> None:
        self.inner = master
        self.fail_at = fail_at
        self.error = error
        self.accesses = 0
        self.schema = master.schema
        self.on = master.on
        self.n_rows = master.n_rows
        self.page_rows = master.page_rows
        self.order = master.order
        self.has_index = master.has_index
        self.coder = master.coder
        self.version = master.version
        self.identity = master.identity
        self.lineage = master.lineage
        self.row_bytes = master.row_bytes

    @property
    def n_pages(self) -> int:
        return self.inner.n_pages

    @property
    def page_files(self) -> Sequence[PageFile] | None:
        return self.inner.page_files

    @property
    def has_failed(self) -> bool:
        """Whether the access that fails has come."""
        return self.accesses >= self.fail_at

    def open(self, columns: Sequence[str], direct: bool = False, page_rows: int | None = None) -> PageReader:
        return FaultyReader(self, self.inner.open(columns, direct, page_rows))

    def access(self) -> None:
        """Count an access, and fail if it is the one that is to."""
        self.accesses += 1
        if self.accesses == self.fail_at:
            raise self.error()


class FaultyReader(PageReader):
    """A reader of a `FaultyMaster`."""

    def __init__(self, master: FaultyMaster, reader: PageReader) -> None:
        self.master = master
        self.inner = reader
        self.physical = reader.physical
        self.n_rows = reader.n_rows
        self.page_rows = reader.page_rows
        self.n_pages = reader.n_pages
        self.has_index = reader.has_index
        self.fences = reader.fences
        self.continues = reader.continues

    @property
    def index_bytes(self) -> int:
        return self.inner.index_bytes

    def held_bytes(self, n_pages: int) -> int:
        return self.inner.held_bytes(n_pages)

    def buffer_bytes(self, n_pages: int) -> int:
        return self.inner.buffer_bytes(n_pages)

    def read(self, first_page: int, n_pages: int, buffer: Bytes) -> PageBlock:
        self.master.access()
        return self.inner.read(first_page, n_pages, buffer)

    def read_runs(self, pages: Int64s, buffer: Bytes, gap_bytes: int) -> RunRead:
        self.master.access()
        return self.inner.read_runs(pages, buffer, gap_bytes)

    def fitting(self, pages: Int64s, size: int, gap_bytes: int) -> int:
        return self.inner.fitting(pages, size, gap_bytes)

    def map(self, pages: Int64s) -> PageBlock:
        self.master.access()
        return self.inner.map(pages)

    def locate(self, codes: Int64s) -> tuple[Int64s, Int64s]:
        return self.inner.locate(codes)

    def close(self) -> None:
        self.inner.close()
