"""What every semi-stream join is: batches in, joined batches out, inside one budget.

    push(batch) -> chunks -> key codes -> the algorithm (`_consume`) -> pairs -> record batches

An algorithm deals in codes, slots and row numbers. This module does the rest once for all of them: it reads keys, sets
null keys aside, builds the output (`output.py`), and keeps the ledgers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.columns.border import check_batch
from semistream.columns.keys import KeyCoder, check_key_types
from semistream.columns.physical import PhysicalSchema
from semistream.columns.plain import cut_rows, with_plain_dictionary
from semistream.columns.rows import BatchColumns, RowLayout
from semistream.errors import BudgetError, IndexRequiredError, SchemaError, SemiStreamError, StoreError
from semistream.kernels.cache import ROW_HEADER
from semistream.master.base import Master, PageReader, require_columns
from semistream.operators.chunk import SCRATCH_BYTES_PER_ROW, Chunk, JoinStats, Scratch
from semistream.operators.lifecycle import JoinLife
from semistream.operators.output import JoinOutput
from semistream.operators.snapshot import Snapshot
from semistream.operators.stream_shape import StreamShape, required_batch
from semistream.parts.arena import Arena, beyond_machine, within_machine
from semistream.parts.budget import Budget, MemoryReport
from semistream.parts.disk_buffer import DiskBuffer
from semistream.parts.generation import Generation
from semistream.spec import JoinSpec, OperatorPlan

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

MIN_CHUNK_ROWS, MAX_CHUNK_ROWS = 64, 16384
_ASSUMED_STREAM_SLOT = 512
_LEAST_PAGE_ROWS = 16


class SemiStreamJoin(JoinOutput, JoinLife):
    """Joins a stream with master data; each algorithm is a subclass in a file of its own.

    Use it as a context manager. `push` and `drain` do their work while what they give is iterated, and that must have
    come to its end before the next call (see `lifecycle.py`).
    """

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    access: ClassVar[str]
    #: keys of docs/papers.md, with the section that describes the algorithm; "ours" where no paper does
    paper: ClassVar[str]
    needs_index: ClassVar[bool] = False
    wants_frequency_order: ClassVar[bool] = False
    #: keeps its hot keys in `cache`, so that several joins may put theirs together in a shared one (`front`)
    shares_cache: ClassVar[bool] = False
    #: disk buffers and scratch areas the algorithm keeps
    buffers: ClassVar[int] = 1
    scratches: ClassVar[int] = 1

    def __init__(
        self,
        master: Master,
        spec: JoinSpec,
        budget_bytes: int,
        *,
        direct: bool = False,
        buffer_bytes: int | None = None,
    ) -> None:
        if self.needs_index and not master.has_index:
            raise IndexRequiredError(
                f"{self.name} looks keys up through an index, and this master data has none; build a page store "
                "with semistream.build_pages, or use a scan operator: meshjoin, rmeshjoin, ssj, ssbj"
            )
        JoinLife.__init__(self)
        self.master = master
        self.spec = spec
        self._counts = JoinStats()
        self.budget = Budget(within_machine(budget_bytes))
        self._exact = master.coder.exact
        self._select = self._selected_columns()
        columns = list(self._select)
        if not self._exact:
            columns += [name for name in spec.master_on if name not in columns]
        self._direct = direct
        self._reader_columns = columns
        self.reader: PageReader = master.open(columns, direct=direct, page_rows=self._page_rows(budget_bytes))
        try:
            self._master_keys = [] if self._exact else [columns.index(name) for name in spec.master_on]
            self._master_layout = RowLayout(
                self.reader.physical, ROW_HEADER, [master.may_be_null(name) for name in columns]
            )
            with self._allocating():
                self._plan_fixed(budget_bytes, buffer_bytes)
        except BaseException:
            self.reader.close()
            raise
        #: the master data was opened for this join, and is closed with it
        self.owns_master = False
        #: a cache shared with other joins on the same master data, asked before the algorithm's own parts
        self.front: Generation | None = None
        #: says what was expected of this join and why it was chosen; set by whoever planned it
        self.explainer: Callable[[SemiStreamJoin], Any] | None = None
        #: time spent in `push` and `drain`
        self.seconds = 0.0
        self.output_schema: pa.Schema | None = None
        self._schema: pa.Schema | None = None
        self._is_restored = False

    # ------------------------------------------------------------------------------------- the budget

    def _page_rows(self, budget_bytes: int) -> int | None:
        """Rows per page for master data that can be cut at will (Parquet): a 64th of the budget."""
        if self.master.has_index:
            return None
        return int(min(max(budget_bytes / 64 / max(self.master.row_bytes, 1.0), _LEAST_PAGE_ROWS), 65536))

    def _plan_fixed(self, total: int, wanted_buffer: int | None) -> None:
        """Divide the budget: index, work arrays, disk buffers; the rest is the arena's."""
        one_page = self._buffer_bytes_for(1)
        widest = max(self._master_layout.slot_bytes, _ASSUMED_STREAM_SLOT)
        least_arena = 16 * max(4096, 16 * widest)
        fixed = self.reader.index_bytes + self._extra_fixed_bytes(total)
        least = fixed + one_page + Scratch.bytes_for(MIN_CHUNK_ROWS) * self.scratches + least_arena
        if total < least and not self.master.has_index and self.reader.page_rows > _LEAST_PAGE_ROWS:
            self.reader.close()
            self.reader = self.master.open(self._reader_columns, self._direct, page_rows=_LEAST_PAGE_ROWS)
            self._plan_fixed(total, wanted_buffer)
            return
        if total < least:
            hint = "" if self.master.has_index else "; a page store (build_pages) needs less than Parquet in place"
            raise BudgetError(
                f"a budget of {total} bytes is too small for {self.name} on this master data; "
                f"it needs at least {least} bytes{hint}",
                minimum_bytes=least,
            )
        room = total - fixed - one_page - least_arena
        chunk = min(max(total // 1024, MIN_CHUNK_ROWS), MAX_CHUNK_ROWS)
        chunk = max(min(chunk, room // (SCRATCH_BYTES_PER_ROW * self.scratches)), MIN_CHUNK_ROWS)
        room -= Scratch.bytes_for(chunk) * self.scratches
        share = self._default_buffer_bytes(total) if wanted_buffer is None else wanted_buffer
        share = max(min(share, room + one_page), one_page)
        self.buffer_pages = DiskBuffer.pages_within(self.reader, share // self.buffers)
        self.chunk_rows = chunk
        self.scratch = Scratch(chunk)
        self.budget.hold("index", fixed)
        self.budget.hold("scratch", Scratch.bytes_for(chunk) * self.scratches)
        self.budget.hold("disk buffer", self._buffer_bytes_for(self.buffer_pages))
        self.disk = DiskBuffer(self.reader, self.buffer_pages)
        self.plan = OperatorPlan(
            algorithm=self.name,
            budget_bytes=total,
            index_bytes=fixed,
            buffer_bytes=self._buffer_bytes_for(self.buffer_pages),
            buffer_pages=self.buffer_pages,
            chunk_rows=chunk,
            table_bytes=self.budget.spare,
        )

    def _default_buffer_bytes(self, total: int) -> int:
        return min(total // 10, 4 << 20)

    def _buffer_bytes_for(self, pages: int) -> int:
        return DiskBuffer.bytes_for(self.reader, pages) * self.buffers

    def _extra_fixed_bytes(self, total: int) -> int:
        """Bytes an algorithm needs besides the common parts, whatever the stream looks like."""
        return 0

    @property
    def stats(self) -> JoinStats:
        """What the join did so far, in counts."""
        return self._counts

    @property
    def memory(self) -> MemoryReport:
        """Bytes by component, now and at their peak."""
        return self.budget.report()

    def explain(self) -> Any:
        """The plan in words and numbers (`str()`, `to_json()`); after a run, predicted beside measured."""
        if self.explainer is None:
            raise SemiStreamError(
                "this join was not planned; open it with semistream.open_join, then ask it to explain"
            )
        return self.explainer(self)

    # ------------------------------------------------------------------------------------ the schemas

    def _selected_columns(self) -> list[str]:
        require_columns(self.master.schema, self.spec.master_on, "master data")
        if tuple(self.spec.master_on) != tuple(self.master.on):
            raise SchemaError(
                f"the join is on {list(self.spec.master_on)}, but the master data was opened on {list(self.master.on)}"
            )
        if self.spec.select is not None:
            require_columns(self.master.schema, self.spec.select, "master data")
        if not self.spec.carries_master:
            return []
        if self.spec.select is None:
            return [name for name in self.master.schema.names if name not in self.spec.master_on]
        pairs = zip(self.spec.stream_on, self.spec.master_on, strict=True)
        doubled = {there for here, there in pairs if self.spec.folded(here) == self.spec.folded(there)}
        return [name for name in dict.fromkeys(self.spec.select) if name not in doubled]

    def start(self, schema: pa.Schema) -> None:
        """Fix the stream's schema and build the tables; called by the first `push` if not before."""
        with self._turn:
            self._require_idle()
            if self._schema is not None:
                raise SemiStreamError(f"this {self.name} join knows its stream's schema; open a new one for another")
            self._prepare(schema)
            try:
                with self._allocating():
                    self._build()
            except BaseException as error:
                # The parts are half made: a stream of another schema needs a new join.
                self._fail(error)
                raise

    def _prepare(self, schema: pa.Schema) -> None:
        """What the stream's schema decides; nothing has changed if it is refused."""
        output_schema, stream = self.check(schema), PhysicalSchema(schema)
        self._coder = KeyCoder.for_stream(
            [schema.field(name).type for name in self.spec.stream_on],
            [self.master.schema.field(name).type for name in self.spec.master_on],
            mask=self.master.coder.mask,
        )
        self._stream = stream
        self._key_at = [schema.get_field_index(name) for name in self.spec.stream_on]
        self._every_column = np.arange(len(schema), dtype=np.int64)
        #: what every batch must look like
        self.shape = StreamShape(schema)
        self._schema, self.output_schema = schema, output_schema

    @contextmanager
    def _allocating(self) -> Iterator[None]:
        try:
            yield
        except MemoryError as error:
            raise beyond_machine(self.budget.total, str(error) or "out of memory") from error

    def check(self, schema: pa.Schema) -> pa.Schema:
        """The result's schema for such a stream; refuses one that cannot be joined. Nothing is read or built."""
        spec = self.spec
        require_columns(schema, spec.stream_on, "the stream")
        stream_fields = [schema.field(name) for name in spec.stream_on]
        check_key_types(stream_fields, [self.master.schema.field(name) for name in spec.master_on])
        fields = list(schema)
        taken = {spec.folded(name) for name in schema.names}
        for name in self._select:
            column = self.master.schema.field(name)
            label = name if spec.folded(name) not in taken else name + spec.suffix
            if spec.folded(label) in taken:
                raise SchemaError(
                    f"master column {name!r} would be named {label!r} in the result, which the stream has already; "
                    "choose another suffix, or leave the column out with select"
                )
            taken.add(spec.folded(label))
            nullable = column.nullable or spec.how == "left"
            fields.append(pa.field(label, column.type, nullable=nullable, metadata=column.metadata))
        return pa.schema(fields, metadata=schema.metadata)

    def _stream_layout(self, header: int, counter: bool = False) -> RowLayout:
        """Packed form of a waiting stream tuple; an exact key is not stored twice."""
        aliases: list[int] = []
        kind = self._stream.columns[self._key_at[0]]
        if self._exact and not pa.types.is_floating(kind.physical):
            aliases = [self._key_at[0]]
        assert self._schema is not None
        nullable = [column.nullable for column in self._schema]
        return RowLayout(self._stream, header, nullable, aliases, flag=self.spec.how != "inner", counter=counter)

    def _make_arena(self, *slots: int) -> Arena:
        """All bytes that are left, less the arena's own table; refuses what cannot hold a few tuples."""
        arena = Arena(int(self.budget.spare * 0.998) - 512, max(slots))
        if arena.extents_total < 8:
            extra = 8 * arena.extent_bytes + 1024 - self.budget.spare
            raise BudgetError(
                f"a budget of {self.budget.total} bytes leaves {self.budget.spare} for tuples of up to {max(slots)} "
                f"bytes; {self.name} needs at least {self.budget.total + extra} bytes for this stream",
                minimum_bytes=self.budget.total + extra,
            )
        self.budget.hold("arena table", arena.table_bytes)
        return arena

    @abstractmethod
    def _build(self) -> None:
        """Make the parts, now that both schemas are known."""

    @abstractmethod
    def _settle(self) -> None:
        """Write the current bytes of the moving parts into the ledger."""

    # -------------------------------------------------------------------------------------- the stream

    def push(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Join a batch; tuples that must wait for the disk come out of a later call."""
        with self._turn:
            self._require_idle()
            required_batch(batch)
            check_batch(batch, "this batch of the stream")
            if self._schema is None:
                self.start(batch.schema)
            return self._take_on("push", self._push(self.shape.fitted(batch)))

    def drain(self) -> Iterator[pa.RecordBatch]:
        """Finish every waiting tuple."""
        with self._turn:
            self._require_idle()
            return self._take_on("drain", self._drain() if self._schema is not None else iter(()))

    def _made(self, batch: pa.RecordBatch | None, seconds: float) -> None:
        self.seconds += seconds
        if batch is not None:
            self.stats.rows_out += batch.num_rows
            self.stats.batches_out += 1

    def _push(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        for part in self._parts(batch):
            self.stats.tuples_in += part.num_rows
            codes, valid = self._coder.codes([part.column(i) for i in self._key_at])
            arrays = self._stream.encode(part.columns)
            if valid is not None:
                nulls = int(len(valid) - valid.sum())
                self.stats.null_keys += nulls
                self.stats.unmatched += nulls
                self.stats.finished += nulls
                if self.spec.keeps_unmatched:
                    alone = pa.array(~valid)
                    yield from self._with_nulls([array.filter(alone) for array in arrays])
                usable = pa.array(valid)
                arrays, codes = [array.filter(usable) for array in arrays], codes[valid]
            if len(codes):
                columns = BatchColumns(self._stream, arrays, len(codes))
                chunk = Chunk(len(codes), codes, columns, self._unmatched(len(codes)))
                if self.front is not None:
                    chunk = yield from self._ask_front(self.front, chunk, arrays)
                if chunk.n_rows:
                    yield from self._consume(chunk)
                self._settle()

    def _parts(self, rows: pa.RecordBatch | pa.Table) -> Iterator[pa.RecordBatch]:
        """All rows in their order, at most a chunk at once, and no more than a piece of bytes in plain form."""
        for batch in rows.to_batches() if isinstance(rows, pa.Table) else [rows]:
            columns = [with_plain_dictionary(array) for array in batch.columns]
            loose = pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
            varying = [columns[i] for i in self._stream.var_columns]
            for start, count in cut_rows(varying, batch.num_rows, self.chunk_rows, self.piece_bytes):
                yield loose.slice(start, count)

    def _encoded(self, part: pa.RecordBatch) -> tuple[Int64s, BatchColumns]:
        """Codes and columns of tuples that wait already: no tuple waits with a null key."""
        codes, valid = self._coder.codes([part.column(i) for i in self._key_at])
        if valid is not None:
            raise StoreError("a tuple with a null key waits in the snapshot: it was damaged, or made for another join")
        return codes, BatchColumns(self._stream, self._stream.encode(part.columns), part.num_rows)

    def _unmatched(self, rows: int) -> Bools:
        return np.zeros(rows if self.spec.how != "inner" else 0, dtype=np.bool_)

    def _ask_front(
        self, front: Generation, chunk: Chunk, arrays: list[pa.Array]
    ) -> Generator[pa.RecordBatch, None, Chunk]:
        """Finish what the shared cache can answer; returns the other tuples."""
        scratch = self.scratch
        missed = yield from self._probe_cache(front.cache, chunk, scratch)
        hits = chunk.n_rows - missed
        front.tally(chunk.n_rows, hits)
        self.stats.shared_hits += hits
        self.stats.cache_misses -= missed
        rest = scratch.misses[:missed].copy()
        if front.complete:
            self.stats.cache_hits += missed
            self.stats.finished += missed
            yield from self._emit_unmatched(self._take_chunk(chunk), rest, missed)
            return Chunk(0, chunk.codes[:0], chunk.columns, chunk.matched[:0])
        if not hits:
            return chunk
        indices = pa.array(rest)
        left = BatchColumns(self._stream, [array.take(indices) for array in arrays], missed)
        return Chunk(missed, chunk.codes[rest], left, self._unmatched(missed))

    @abstractmethod
    def _consume(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """The algorithm: take all tuples of a chunk."""

    @abstractmethod
    def _drain(self) -> Iterator[pa.RecordBatch]:
        """The algorithm: finish all tuples that wait."""

    # -------------------------------------------------------------------------------- snapshot, closing

    def snapshot(self) -> Snapshot:
        """What a restart needs: waiting tuples and where they are on their way. The cache is soft state."""
        with self._turn:
            self._require_idle()
            if self._schema is None:
                return Snapshot(self._origin, None)
            return Snapshot({**self._origin, **self._snapshot_state()}, self._snapshot_tuples())

    @property
    def _origin(self) -> dict[str, Any]:
        """What a snapshot comes from, and can go on with."""
        master = self.master
        # A table in memory is another object after a restart, so nothing more can be asked of it.
        identity = "" if master.identity == master.lineage else master.identity
        return {"algorithm": self.name, "master_version": master.version, "master": identity}

    def restore(self, snapshot: Snapshot) -> None:
        """Go on where a snapshot was taken; to be called before the first push."""
        with self._turn:
            self._require_idle()
            if self._is_restored or self.stats.tuples_in:
                raise SemiStreamError("restore one snapshot into a fresh join, before its first push")
            state = snapshot.state
            for what, mine in self._origin.items():
                if state.get(what) != mine:
                    raise SemiStreamError(
                        f"the snapshot was taken with {what} {state.get(what)!r}, this join has {mine!r}: "
                        "open the join as it was then"
                    )
            if snapshot.tuples is not None:
                snapshot.check()
                if self._schema is None:
                    self.start(snapshot.stream_schema)
                elif _columns(snapshot.stream_schema) != _columns(self._schema):
                    raise SchemaError(
                        f"the snapshot holds tuples of [{_columns(snapshot.stream_schema)}], this join was started "
                        f"with [{_columns(self._schema)}]: open the join as it was then"
                    )
                self._is_restored = True
                try:
                    self._restore(snapshot)
                    self._settle()
                except BaseException as error:
                    self._fail(error)
                    raise

    @abstractmethod
    def _snapshot_state(self) -> dict[str, Any]:
        """Positions and counters, as JSON values."""

    @abstractmethod
    def _snapshot_tuples(self) -> pa.Table:
        """Waiting tuples, oldest first, in the stream's schema (flags may follow in a column of their own)."""

    @abstractmethod
    def _restore(self, snapshot: Snapshot) -> None:
        """Put waiting tuples back."""

    def borrow_disk(self) -> DiskBuffer:
        """The disk buffer, for loads that are not the algorithm's own; only while the join is idle."""
        return self.disk

    def _release(self) -> None:
        self.reader.close()
        if self.owns_master:
            self.master.close()


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{column.name}: {column.type}" for column in schema)
