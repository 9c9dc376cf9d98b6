"""PARTITIONJOIN: partitions of R in memory, a waiting area for each of the others, and a deadline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.errors import ConfigError
from semistream.master.base import Master
from semistream.operators.blocks import BlockJoin
from semistream.operators.chunk import Chunk
from semistream.operators.snapshot import MOST, Snapshot, whole
from semistream.spec import JoinSpec

Int64s = npt.NDArray[np.int64]

#: reading this many bytes in a row costs little more than the seek before them
_PARTITION_BYTES = 256 << 10
_LEAST_PARTITIONS = 16
_DEADLINE_FILLS = 10
#: no arrival: restored tuples came before the first one, so any number from here up may be one
_NOBODY = np.iinfo(np.int64).min
_FREE = -1


class PartitionJoin(BlockJoin):
    """PARTITIONJOIN cuts R into ranges of pages and joins at once what falls on a partition in memory.

    Other tuples wait in the area of their partition. When all areas together are full, the partition with the
    most waiting tuples is loaded, joined with all of them, and kept if it is more useful than the least
    useful one in memory, whose place it takes. In the paper a tuple of an unpopular partition may wait for
    ever; here a partition whose oldest tuple has waited for `deadline` further stream tuples is loaded first,
    whatever else waits.

        stream -> partition directory -> in memory: page -> row    (two levels)
                                      -> else: waiting area of the partition -> most waiting, or overdue: load

    Needs of R: an index; a range of R is a partition, so with R in key order neighbouring keys are read
    together. A run of equal keys may cross partitions.

    Memory: M = h_S·v_S + l·v_P + 32 bytes per partition + 4 bytes per page, l partitions in memory.
    Cost:   c_loop = c_I/O(partition) + w·(c_H + c_A) + w_N·c_O + w_S·(c_H + c_O + c_E).

    Options: `cache_share`, the part of the memory for tables that partitions in memory get (default 0.5);
    `partition_pages`, pages per partition (default: 256 KiB of them, but at least 16 partitions); `deadline`,
    in stream tuples after a tuple's own, looked at after each chunk (default: ten times what the waiting area
    holds).

    >>> import pyarrow as pa
    >>> from semistream import open_join
    >>> master = pa.table({"k": [1, 2], "v": [10, 20]})
    >>> with open_join("partitionjoin", master=master, on="k", memory="1MB") as join:
    ...     rows = [*join.push(pa.record_batch({"k": [2, 7]})), *join.drain()]
    >>> pa.Table.from_batches(rows).to_pydict()
    {'k': [2], 'v': [20]}

    Paper: partitionjoin2009 (A. Chakraborty, A. Singh, "A partition-based approach to support streaming updates
    over persistent data in an active datawarehouse", IPDPS 2009); described in ssbj2019, section 2.3.
    """

    name = "partitionjoin"
    aliases = ("partitionbasedjoin",)
    paper = "partitionjoin2009, ssbj2019 §2.3"
    #: arrival of the oldest tuple, and the place of the partition in memory
    extra_list_bytes = 12

    def __init__(
        self,
        master: Master,
        spec: JoinSpec,
        budget_bytes: int,
        *,
        partition_pages: int | None = None,
        deadline: int | None = None,
        **common: Any,
    ) -> None:
        for option, value in (("partition_pages", partition_pages), ("deadline", deadline)):
            if value is not None and value < 1:
                raise ConfigError(f"{option}={value} is out of range; allowed are whole numbers from 1")
        self._partition_pages = partition_pages
        self._deadline = deadline
        super().__init__(master, spec, budget_bytes, **common)

    def _pages_per_list(self) -> int:
        pages = max(self.reader.n_pages, 1)
        if self._partition_pages is not None:
            return min(self._partition_pages, pages)
        page_bytes = max(self.reader.page_rows * self.master.row_bytes, 1.0)
        return max(min(int(_PARTITION_BYTES / page_bytes), -(-pages // _LEAST_PARTITIONS)), 1)

    def _build(self) -> None:
        super()._build()
        self.deadline = self._deadline or _DEADLINE_FILLS * self.capacity
        self.seen = 0
        #: number of the stream tuple that waits longest in each list
        self.oldest = np.full(self.n_lists, _NOBODY, dtype=np.int64)
        #: partition in each place of the cache
        self.resident = np.full(self.cache.n_frames // self.list_pages, _FREE, dtype=np.int64)

    def _consume(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        if self.reader.n_pages == 0:
            yield from self._finish_chunk(chunk, self.scratch.every[: chunk.n_rows])
            return
        self.seen += chunk.n_rows
        yield from self._online(chunk)
        while True:
            overdue = self._overdue()
            if overdue < 0:
                break
            yield from self._load_partition(overdue)

    def _arrived(self, lists: Int64s) -> None:
        fresh = lists[self.oldest[lists] == _NOBODY]
        self.oldest[fresh] = self.seen

    def _overdue(self) -> int:
        """The partition whose oldest tuple is past the deadline the longest, or -1."""
        occupied = np.flatnonzero(self.oldest != _NOBODY)
        if len(occupied) == 0:
            return -1
        longest = int(occupied[np.argmin(self.oldest[occupied])])
        return longest if self.seen - int(self.oldest[longest]) >= self.deadline else -1

    def _make_room(self) -> Iterator[pa.RecordBatch]:
        overdue = self._overdue()
        yield from self._load_partition(overdue if overdue >= 0 else int(np.argmax(self.waiting.counts)))

    def _drain(self) -> Iterator[pa.RecordBatch]:
        for partition in np.flatnonzero(self.waiting.counts).tolist():
            yield from self._load_partition(partition)
        self._settle()

    def _load_partition(self, partition: int) -> Iterator[pa.RecordBatch]:
        """Read a partition, join all that waits for it, and keep it if it is useful."""
        self._settle()
        only = np.array([partition], dtype=np.int64)
        self.utility[partition] += self.waiting.counts[partition]
        place = self._place_for(partition)
        begin = partition * self.list_pages
        end = min(begin + self.list_pages, self.reader.n_pages)
        last = max(end - 1, int(self.waiting.reach[partition]))
        page = begin
        while page <= last:
            stop = min(page + self._group_capacity(), last + 1)
            block = self._load(np.arange(page, stop, dtype=np.int64))
            high = int(block.pages[-1])
            yield from self._join_lists(only, block, page, high, leave=high == last)
            if place >= 0 and page < end:
                own = np.arange(min(high + 1, end) - page, dtype=np.int64)
                self.cache.store(block, own, own + place * self.list_pages + page - begin)
            page = high + 1
        if place >= 0:
            self.resident[place] = partition
            self.stats.switched += 1
        self.oldest[partition] = _NOBODY
        self.stats.iterations += 1

    def _place_for(self, partition: int) -> int:
        """A place in memory that is free or held by a less useful partition, emptied; -1: there is none."""
        if len(self.resident) == 0:
            return -1
        worth = np.where(self.resident >= 0, self.utility[self.resident], np.float32(-1))
        place = int(np.argmin(worth))
        before = int(self.resident[place])
        if before == partition:
            return -1
        if before != _FREE:
            if worth[place] >= self.utility[partition]:
                return -1
            self.stats.evicted += 1
            frames = place * self.list_pages + np.arange(self.list_pages, dtype=np.int64)
            self.cache.drop(frames)
        return place

    # ------------------------------------------------------------------------------------- the snapshot

    def _snapshot_state(self) -> dict[str, Any]:
        occupied = np.flatnonzero(self.oldest != _NOBODY)
        ages = self.seen - self.oldest[occupied]
        return {
            "partition_pages": self.list_pages,
            "waiting": [[int(p), int(age)] for p, age in zip(occupied, ages, strict=True)],
        }

    def _restore(self, snapshot: Snapshot) -> None:
        cut_as_here = snapshot.whole("partition_pages", 1, MOST) == self.list_pages
        most = self.n_lists - 1 if cut_as_here else MOST
        waiting = {
            whole(partition, 0, most, "partition"): whole(age, 0, MOST, "age")
            for partition, age in snapshot.pairs("waiting")
        }
        super()._restore(snapshot)
        if cut_as_here:
            for partition, age in waiting.items():
                self.oldest[partition] = self.seen - age
        elif waiting:
            # Cut anew, a partition may hold the oldest tuple of all.
            self.oldest[self.waiting.counts > 0] = self.seen - max(waiting.values())
