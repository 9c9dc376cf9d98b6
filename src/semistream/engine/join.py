"""A running join: batches in, joined batches out, inside one budget, whatever the algorithm.

    push(batch) -> border (checked) -> intake (chunks, key codes) -> shared cache -> loop.consume -> output -> batches

An algorithm deals in codes, slots and row numbers. This module does the rest once for all of them: it opens R, asks the
algorithm for its plan, sets null keys aside, and keeps the ledgers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import Any

import pyarrow as pa

from semistream.columns.border import check_batch
from semistream.columns.keys import check_key_types
from semistream.columns.rows import RowLayout
from semistream.columns.validity import Validity, check_times
from semistream.engine.algorithm import Algorithm
from semistream.engine.chunk import Chunk, JoinStats, Scratch
from semistream.engine.facts import MasterFacts, StreamFacts
from semistream.engine.front import CacheFront
from semistream.engine.intake import Encoded, Intake
from semistream.engine.lifecycle import JoinLife
from semistream.engine.loop import Loop
from semistream.engine.options import WaitingOptions
from semistream.engine.output import Output, Sides, is_apart
from semistream.engine.plan import Plan
from semistream.engine.snapshot import Snapshot
from semistream.engine.stream_shape import StreamShape
from semistream.engine.workplace import Workplace
from semistream.errors import BudgetError, IndexRequiredError, SchemaError, SemiStreamError
from semistream.master.base import Master, PageReader, require_columns
from semistream.master.page_reader import PageStoreReader
from semistream.master.pages import PageMaster
from semistream.parts.arena import beyond_machine, within_machine
from semistream.parts.budget import Budget, MemoryReport
from semistream.parts.cache import Cache
from semistream.parts.disk_buffer import DiskBuffer
from semistream.parts.generation import Generation
from semistream.spec import JoinSpec

LEAST_PAGE_ROWS, _MOST_PAGE_ROWS = 16, 65536


class SemiStreamJoin(JoinLife):
    """Joins a stream with master data by one algorithm.

    Use it as a context manager. `push` and `drain` do their work while what they give is iterated, and that must have
    come to its end before the next call (see `lifecycle.py`).
    """

    def __init__(
        self,
        algorithm: Algorithm,
        master: Master,
        spec: JoinSpec,
        budget_bytes: int,
        options: Mapping[str, Any] | None = None,
        *,
        direct: bool = False,
        follows: bool = False,
    ) -> None:
        """`follows`: the join may be told to go on with later versions of R (`follow`), if it can."""
        self.name = algorithm.name
        super().__init__()
        self.algorithm, self.master, self.spec = algorithm, master, spec
        self.options = algorithm.checked(options or {})
        #: whether R is read past the page cache
        self.direct = direct
        #: whether what it knows of R stays true when R has more changes
        self.follows = follows and algorithm.follows and master.reserved_from is not None
        if algorithm.needs_index and not master.has_index:
            raise index_required(algorithm.name)
        self.budget = Budget(within_machine(budget_bytes))
        self.stats = JoinStats()
        self._select = selected_columns(master, spec)
        columns = read_columns(master, spec)
        self._columns = columns
        self.reader = master.open(columns, self.direct, page_rows_for(master, budget_bytes))
        try:
            nullable = [master.may_be_null(name) for name in columns]
            #: packed form of a master row in a cache
            leading = [columns.index(name) for name in spec.valid or ()]
            self.row_layout = RowLayout(self.reader.physical, Cache.HEADER, nullable, leading=leading)
            # What is too small for the narrowest stream is too small for all.
            self.plan = self._planned(StreamFacts.unknown())
        except BaseException:
            self.reader.close()
            raise
        #: the master data was opened for this join, and is closed with it
        self.owns_master = False
        #: a cache shared with other joins on the same master data, asked before the algorithm's own parts
        self.shared: Generation | None = None
        #: says what was expected of this join and why it was chosen; set by whoever planned it
        self.explainer: Callable[[SemiStreamJoin], Any] | None = None
        #: time spent in `push`, `drain` and `advance`
        self.seconds = 0.0
        self.output_schema: pa.Schema | None = None
        self._loop: Loop | None = None
        self._is_restored = False

    # --------------------------------------------------------------------------------------- the plan

    def _planned(self, stream: StreamFacts) -> Plan[Any]:
        """The plan for such a stream. Where the budget is too small for the usual cut of Parquet, it is cut finer."""
        try:
            return self._plan_with(self.reader, stream)
        except BudgetError:
            if self.master.has_index or self.reader.page_rows <= LEAST_PAGE_ROWS:
                raise
        self.reader.close()
        self.reader = self.master.open(self._columns, self.direct, LEAST_PAGE_ROWS)
        return self._plan_with(self.reader, stream)

    def _plan_with(self, reader: PageReader, stream: StreamFacts) -> Plan[Any]:
        facts = MasterFacts.of(self.master, reader, self.row_layout, self.direct)
        try:
            return self.algorithm.plan(facts, stream, self.budget.total, self.options)
        except BudgetError as error:
            raise BudgetError(f"{self.name}: {error}", minimum_bytes=error.minimum_bytes) from None

    @property
    def memory(self) -> MemoryReport:
        """Bytes by component, now and at their peak."""
        return self.budget.report()

    def explain(self) -> Any:
        """The plan in words and numbers (`str()`, `to_json()`); after a run, predicted beside measured."""
        if self.explainer is None:
            raise SemiStreamError("nobody planned this join; open it with semistream.open_join, then ask it to explain")
        return self.explainer(self)

    # ------------------------------------------------------------------------------------ the schemas

    def check(self, schema: pa.Schema) -> pa.Schema:
        """The result's schema for such a stream; refuses one that cannot be joined. Nothing is read or built."""
        return result_schema(self.master, self.spec, schema)

    def start(self, schema: pa.Schema) -> None:
        """Fix the stream's schema and make the tables; called by the first `push` if not before."""
        with self._turn:
            self._require_idle()
            if self._loop is not None:
                raise SemiStreamError(f"this {self.name} join knows its stream's schema; open a new one for another")
            output_schema = self.check(schema)
            stream = StreamFacts.of(schema, self.spec, self.master.coder.is_key)
            try:
                with self._allocating():
                    self.plan = self._planned(stream)
                    self._loop = self.algorithm.run(self.plan, self._workplace(schema, output_schema))
            except BaseException as error:
                # The parts are half made: a stream of another schema needs a new join.
                self._fail(error)
                raise
            self.output_schema = output_schema

    def _workplace(self, schema: pa.Schema, output_schema: pa.Schema) -> Workplace:
        division, master, spec = self.plan.division, self.master, self.spec
        self.budget.hold("index", division.index)
        self.budget.hold("scratch", division.scratch)
        self.budget.hold("disk buffer", division.buffer)
        intake = Intake(schema, spec, master, division.chunk_rows, self.budget.piece_bytes, follows=self.follows)
        sides = Sides(
            stream=intake.physical,
            master=self.reader.physical,
            selected=len(self._select),
            exact=master.coder.exact,
            stream_keys=intake.key_at,
            master_keys=[] if master.coder.exact else [self._columns.index(name) for name in spec.master_on],
            schema=output_schema,
            validity=None
            if spec.as_of is None or spec.valid is None
            else Validity.between(schema, spec.as_of, master.schema, spec.valid, self._columns),
        )
        self._work = Workplace(
            name=self.name,
            spec=spec,
            master=master,
            reader=self.reader,
            row_layout=self.row_layout,
            intake=intake,
            output=Output(spec, sides, self.budget, self.stats),
            budget=self.budget,
            stats=self.stats,
            scratch=Scratch(division.chunk_rows),
            disk=DiskBuffer(self.reader, division.pages),
            direct=self.direct,
        )
        return self._work

    @contextmanager
    def _allocating(self) -> Iterator[None]:
        try:
            yield
        except MemoryError as error:
            raise beyond_machine(self.budget.total, str(error) or "out of memory") from error

    @property
    def loop(self) -> Loop:
        """The running algorithm, once the stream's schema is known."""
        if self._loop is None:
            raise SemiStreamError(f"this {self.name} join does not know its stream's schema yet; push a batch first")
        return self._loop

    @property
    def work(self) -> Workplace:
        """What the running algorithm works with, once the stream's schema is known."""
        return self.loop.work

    def share(self, generation: Generation | None) -> None:
        """Ask this cache before the algorithm's own parts from now on, or none; only while the join is idle."""
        with self._turn:
            self._require_idle()
            self.shared = generation
            if generation is not None:
                self.loop.hand_over(generation.cache)

    def follow(self, master: Master, budget_bytes: int) -> bool:
        """Go on with a version of R that has more changes, and with all that was learnt of the one before.

        False if that cannot be: nothing has changed then, and a new join must be opened. `budget_bytes` may be more
        than the join was opened with, for the index of R grows with its changes. Master data that the join owns is
        closed, and the other taken over.
        """
        with self._turn:
            self._require_idle()
            if not self.follows or self._loop is None or self.waiting or not self._loop.may_follow:
                return False
            before, reader = self.master, self.reader
            if not isinstance(before, PageMaster) or not isinstance(master, PageMaster):
                return False
            if not before.may_be_followed_by(master) or not isinstance(reader, PageStoreReader):
                return False
            # A row of the cache has room for the nulls that its columns had.
            if any(master.may_be_null(name) and not before.may_be_null(name) for name in self._columns):
                return False
            growth = reader.growth_bytes(master)
            # The tables have all of the budget that they were promised, whether they use it or not.
            total, room = self.budget.total + growth, self._work.disk.buffer.nbytes
            if total > budget_bytes or not reader.reads_with(master, room):
                return False
            reader.extend(master)
            self._work.disk.follow()
            self.budget.total = total
            self.budget.hold("index", self.memory.now["index"] + growth)
            self._work.intake.follow(master)
            self._work.master = self.master = master
            self.plan = replace(self.plan, r=MasterFacts.of(master, reader, self.row_layout, self.direct))
            if self.owns_master:
                before.close()
            return True

    @property
    def stream_schema(self) -> pa.Schema | None:
        """The stream's schema, once it is known."""
        return None if self._loop is None else self._work.intake.schema

    # -------------------------------------------------------------------------------------- the stream

    def _shape_for(self, batches: list[pa.RecordBatch]) -> StreamShape:
        if self._loop is None:
            self.start(batches[0].schema)
        return self._work.intake.shape

    def push_parts(self, parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Join a batch that comes in parts, each read when it is joined; the join must have been started.

        All parts share their reads of R, as the tuples of one batch do. A part that is refused ends the join.
        """
        with self._turn:
            self._require_idle()
            return self._take_on("push", self._push(self._fitted(iter(parts), self.work.intake.shape)))

    def _fitted(self, parts: Iterator[pa.RecordBatch], shape: StreamShape) -> Iterator[pa.RecordBatch]:
        while True:
            since = time.perf_counter()
            part = next(parts, None)
            # Whoever makes the parts takes this time, not the join.
            self.seconds -= time.perf_counter() - since
            if part is None:
                return
            check_batch(part, "this batch of the stream")
            yield shape.fitted(part)

    def advance(self, steps: int = 1) -> Iterator[pa.RecordBatch]:
        """Work on what waits when no tuple arrives: `steps` turns of the main loop, fewer if nobody waits."""
        with self._turn:
            self._require_idle()
            return self._take_on("advance", iter(()) if self._loop is None else self._turns(self._loop, steps))

    def drain(self) -> Iterator[pa.RecordBatch]:
        """Finish every waiting tuple."""
        with self._turn:
            self._require_idle()
            return self._take_on("drain", iter(()) if self._loop is None else self._loop.drain())

    @property
    def waiting(self) -> int:
        """Tuples that wait."""
        return 0 if self._loop is None else self._loop.waiting

    def _made(self, batch: pa.RecordBatch | None, seconds: float) -> None:
        self.seconds += seconds
        # Tuples that come apart are no rows of the result.
        if batch is not None and not (self.spec.apart and is_apart(batch)):
            self.stats.rows_out += batch.num_rows
            self.stats.batches_out += 1

    def _turns(self, loop: Loop, steps: int) -> Iterator[pa.RecordBatch]:
        for _ in range(steps):
            if not loop.waiting:
                break
            yield from loop.advance()

    def _push(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Join batches. When the stream has nothing, or the join is eager, those who wait have their turn."""
        intake, loop, before = self._work.intake, self.loop, self.stats.tuples_in
        # What is read part by part is not there any more when its rows are made.
        held = isinstance(batches, list)
        loop.begin_batch()
        try:
            for part in chain.from_iterable(map(intake.parts, batches)):
                self.stats.tuples_in += part.num_rows
                tuples = intake.encoded(part)
                if tuples.valid is not None:
                    self.stats.null_keys += tuples.nulls
                    if not (self.algorithm.keeps_null_keys and self.spec.keeps_unmatched):
                        yield from self._let_through(tuples)
                        tuples = tuples.with_keys()
                if len(tuples.codes):
                    chunk = intake.chunk(tuples, held=held)
                    yield from loop.consume(chunk) if self.shared is None else self._ask(self.shared, chunk, tuples)
                    loop.settle()
            yield from loop.end_batch()
            eager = isinstance(self.options, WaitingOptions) and self.options.eager
            if loop.waiting and (eager or self.stats.tuples_in == before):
                yield from loop.advance()
        except BaseException:
            loop.give_up()
            raise

    def _let_through(self, tuples: Encoded) -> Iterator[pa.RecordBatch]:
        """Tuples with a null key match nothing."""
        self.stats.unmatched += tuples.nulls
        self.stats.finished += tuples.nulls
        return self._work.output.with_nulls(tuples.without_keys()) if self.spec.keeps_unmatched else iter(())

    def _ask(self, shared: Generation, chunk: Chunk, tuples: Encoded) -> Iterator[pa.RecordBatch]:
        """What the shared cache can answer is finished; the algorithm's own cache is asked for the others next."""
        front = CacheFront(shared.cache, self._work.output, self._work.scratch, self.stats)
        yield from front.answer(chunk)
        hits = chunk.n_rows - front.missed
        shared.tally(chunk.n_rows, hits)
        self.stats.shared_hits += hits
        if shared.complete:
            yield from front.finish_missed(chunk)
            return
        self.stats.cache_misses -= front.missed
        if hits:
            chunk = self._work.intake.chunk(tuples.take(front.misses[: front.missed].copy()))
        if chunk.n_rows:
            yield from self.loop.consume(chunk)

    # -------------------------------------------------------------------------------- snapshot, closing

    def snapshot(self) -> Snapshot:
        """What a restart needs: waiting tuples and where they are on their way. The cache is soft state."""
        with self._turn:
            self._require_idle()
            if self._loop is None:
                return Snapshot(self._origin, None)
            return Snapshot({**self._origin, **self._loop.state()}, self._loop.tuples())

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
            if snapshot.tuples is None:
                return
            snapshot.check()
            if self._loop is None:
                self.start(snapshot.stream_schema)
            elif _columns(snapshot.stream_schema) != _columns(self._work.intake.schema):
                raise SchemaError(
                    f"the snapshot holds tuples of [{_columns(snapshot.stream_schema)}], this join was started "
                    f"with [{_columns(self._work.intake.schema)}]: open the join as it was then"
                )
            self._is_restored = True
            try:
                self.loop.restore(snapshot)
                self.loop.settle()
            except BaseException as error:
                self._fail(error)
                raise

    def borrow_disk(self) -> DiskBuffer:
        """The disk buffer, for loads that are not the algorithm's own; only while the join is idle."""
        return self.loop.borrow_disk()

    def _release(self) -> None:
        try:
            if self._loop is not None:
                self._loop.close()
        finally:
            self.reader.close()
            if self.owns_master:
                self.master.close()


def index_required(algorithm: str) -> IndexRequiredError:
    """The error for an algorithm that looks keys up, and R without an index."""
    return IndexRequiredError(
        f"{algorithm} looks keys up through an index, and this master data has none; build a page store "
        "with semistream.build_pages, or use a scan operator: meshjoin, rmeshjoin, ssj, ssbj"
    )


def page_rows_for(master: Master, budget_bytes: int) -> int | None:
    """Rows per page for master data that can be cut at will (Parquet): a 64th of the budget."""
    if master.has_index:
        return None
    return int(min(max(budget_bytes / 64 / max(master.row_bytes, 1.0), LEAST_PAGE_ROWS), _MOST_PAGE_ROWS))


def selected_columns(master: Master, spec: JoinSpec) -> list[str]:
    """Master columns of the result."""
    require_columns(master.schema, spec.master_on, "master data")
    if tuple(spec.master_on) != tuple(master.on):
        raise SchemaError(f"the join is on {list(spec.master_on)}, but the master data was opened on {list(master.on)}")
    if spec.select is not None:
        require_columns(master.schema, spec.select, "master data")
    if spec.valid is not None:
        require_columns(master.schema, spec.valid, "master data")
    if not spec.carries_master:
        return []
    if spec.select is None:
        return [name for name in master.schema.names if name not in spec.master_on]
    return spec.result_columns(spec.select)


def read_columns(master: Master, spec: JoinSpec) -> list[str]:
    """Master columns that a join reads: those of the result first, then those that matches are confirmed on."""
    columns = selected_columns(master, spec)
    if not master.coder.exact:
        columns += [name for name in spec.master_on if name not in columns]
    columns += [name for name in spec.valid or () if name not in columns]
    return columns


def result_schema(master: Master, spec: JoinSpec, schema: pa.Schema) -> pa.Schema:
    """The schema of a join with such a stream; refuses one that cannot be joined."""
    require_columns(schema, spec.stream_on, "the stream")
    stream_fields = [schema.field(name) for name in spec.stream_on]
    check_key_types(stream_fields, [master.schema.field(name) for name in spec.master_on])
    if spec.as_of is not None and spec.valid is not None:
        require_columns(schema, [spec.as_of], "the stream")
        check_times(schema.field(spec.as_of), [master.schema.field(name) for name in spec.valid])
    fields = list(schema)
    taken = {spec.folded(name) for name in schema.names}
    for name in selected_columns(master, spec):
        column = master.schema.field(name)
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


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{column.name}: {column.type}" for column in schema)
