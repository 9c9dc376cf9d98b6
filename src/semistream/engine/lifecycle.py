"""The life of a join: opened, given work, closed. One rule for every operator and for "auto".

    push, drain ──> Outputs ──iterated to the end──> idle ──> push, drain, snapshot ... ──> close

`push` and `drain` take work on; it is done while their outputs are iterated. The join, not the caller, owns work that
is not finished, so an iterator that was dropped has lost nothing: `resume` gives it again, and until it is finished
nothing else is begun. A join that failed or was closed says so, whatever is asked of it.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator
from types import TracebackType
from typing import Self

import pyarrow as pa

from semistream.columns.arrow_in import ArrowData, kind_of, record_batches
from semistream.columns.border import check_batch
from semistream.engine.stream_shape import StreamShape, required_batches
from semistream.errors import ConfigError, SemiStreamError

Batches = Generator[pa.RecordBatch, None, None]


class Outputs(Iterator[pa.RecordBatch]):
    """What one `push` or `drain` gives, as it comes.

    Unlike a generator it does not seem to have come to its end after an error, and it ends nothing when it is dropped.
    """

    def __init__(self, join: JoinLife, what: str, batches: Iterator[pa.RecordBatch]) -> None:
        self.what = what
        self.ended = False
        self._join = join
        self._batches = batches

    def __next__(self) -> pa.RecordBatch:
        batch = self._join._next_of(self, self._batches)
        if batch is None:
            raise StopIteration
        return batch

    def stop(self) -> None:
        """Let go of the work, wherever it stands; only the join does that, when it closes."""
        if isinstance(self._batches, Generator):
            self._batches.close()


class JoinLife(ABC):
    """What a join may be asked, and when."""

    name: str

    def __init__(self) -> None:
        self._unfinished: Outputs | None = None
        self._failed: str | None = None
        self._closed = False
        #: held by whoever works on the join: one that is closed from another thread comes to the end of a batch first
        self._turn = threading.RLock()
        self._working = False

    def push(self, batch: ArrowData) -> Iterator[pa.RecordBatch]:
        """Join a batch, or all rows of other Arrow data; tuples that must wait for the disk come out of a later call.

        A batch without rows says that the stream has nothing at the moment: then those who wait have a turn of the main
        loop. Nothing is taken if a part of it is refused.
        """
        with self._turn:
            self._require_idle()
            batches = required_batches(batch)
            for each in batches:
                check_batch(each, "this batch of the stream")
            shape = self._shape_for(batches)
            return self._take_on("push", self._push([shape.fitted(each) for each in batches]))

    def push_checked(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Join a batch that has gone through `push` of a join around this one, with the same schema."""
        with self._turn:
            self._require_idle()
            return self._take_on("push", self._push([batch]))

    @abstractmethod
    def _shape_for(self, batches: list[pa.RecordBatch]) -> StreamShape:
        """What every batch must look like; the schema of the very first one decides it."""

    @abstractmethod
    def _push(self, batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Join batches that were checked and fit."""

    @abstractmethod
    def drain(self) -> Iterator[pa.RecordBatch]:
        """Finish every waiting tuple."""

    def run(self, stream: ArrowData | Iterable[ArrowData]) -> Iterator[pa.RecordBatch]:
        """Join a whole stream: push every batch of it, then drain.

        `stream` gives batches, or is Arrow data itself; either is read as it is joined, so it need not fit memory.
        """
        found = record_batches(stream, "the stream")
        if found is not None:
            return self._run(found)
        if not isinstance(stream, Iterable):
            raise ConfigError(
                f"run takes Arrow data, or batches of it one after another, not {kind_of(stream)}: "
                "give a table, a frame, a reader or a list of record batches"
            )
        return self._run(stream)

    def _run(self, batches: Iterable[ArrowData]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from self.push(batch)
        yield from self.drain()

    def resume(self) -> Iterator[pa.RecordBatch]:
        """What the last `push` or `drain` has still to give; nothing if it was finished."""
        self._require_alive()
        return iter(()) if self._unfinished is None else self._unfinished

    def close(self) -> None:
        """Give back files and memory; waiting tuples are lost (drain first), and rows that were not taken too.

        May be called again, and from another thread: what is being made there is finished first.
        """
        with self._turn:
            if self._working:
                raise SemiStreamError(f"this {self.name} join was asked to close from inside of its own work")
            if self._closed:
                return
            self._closed = True
            try:
                if self._unfinished is not None:
                    self._unfinished.stop()
            finally:
                self._unfinished = None
                self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def _release(self) -> None:
        """Give back what the join holds; called once."""

    def _made(self, batch: pa.RecordBatch | None, seconds: float) -> None:  # noqa: B027
        """`seconds` were spent on an output, or on finding that there is no further one."""

    def _require_alive(self) -> None:
        if self._closed:
            raise SemiStreamError(f"this {self.name} join is closed; open a new one")
        if self._failed is not None:
            raise SemiStreamError(
                f"this {self.name} join failed before ({self._failed}); open a new one and restore its last snapshot"
            )

    def _require_idle(self) -> None:
        """Asked by the caller that has the turn, before anything is begun."""
        self._require_alive()
        if self._unfinished is not None:
            raise SemiStreamError(
                f"the rows of the last {self._unfinished.what} were not consumed: iterate over what it gave to the "
                "end first; join.resume() gives what is left of it, nothing is lost"
            )

    def _take_on(self, what: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Begin work on an idle join."""
        self._unfinished = Outputs(self, what, batches)
        return self._unfinished

    def _fail(self, error: BaseException) -> None:
        # The text alone: an exception would keep all frames that it passed, and their arrays.
        self._failed = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__

    def _next_of(self, outputs: Outputs, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
        """The next output that has rows; None at the end."""
        with self._turn:
            if outputs.ended:
                return None
            self._require_alive()
            since = time.perf_counter()
            self._working = True
            found = None
            try:
                for batch in batches:
                    if batch.num_rows:
                        found = batch
                        break
            except BaseException as error:
                self._fail(error)
                self._unfinished = None
                raise
            finally:
                self._working = False
            self._made(found, time.perf_counter() - since)
            if found is None:
                outputs.ended = True
                self._unfinished = None
            return found
