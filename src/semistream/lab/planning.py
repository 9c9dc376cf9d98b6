"""Settings in which the planner is judged, drawn by a seed, and their data."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from semistream.lab.forms import path_of
from semistream.lab.sources import Synthetic
from semistream.lab.workloads.relation import KEY, MASTER_ROW_BYTES, stream_batches
from semistream.master.base import Master
from semistream.master.open import open_master
from semistream.planner.policy import Policy

#: how often each size of R is drawn: five in seven have five million tuples or more
ROWS = (1_000_000, 1_000_000, 5_000_000, 5_000_000, 20_000_000, 20_000_000, 50_000_000)
HORIZON = 5_000_000
#: less is not enough for every operator
LEAST_MEMORY = 500_000
#: caches of an R above this would not come to rest while anybody waits
MOST_ROWS_AT_REST = 5_000_000
#: of a stream without an end that are kept; those behind them are made when they are wanted
TUPLES = 4_000_000
_PIECE = 8 << 20


@dataclass(frozen=True)
class Case:
    """One setting; a `horizon` of None is a stream without an end."""

    rows: int
    memory: int
    skew: float
    unmatched: float
    index: bool
    batch: int
    micro_batches: bool
    direct: bool
    horizon: int | None

    @property
    def policy(self) -> Policy:
        return Policy(horizon=self.horizon, micro_batches=self.micro_batches)


def cases(count: int, seed: int, rows: list[int] | None = None) -> list[Case]:
    """Drawn by a seed, a tenth of them without an index; by size of R, so that each is in the page cache only once."""
    dice = random.Random(seed)
    few = count // 10
    found = {_plain(dice): None for _ in range(few)}
    while len(found) < count:
        found[_drawn(dice, rows or list(ROWS))] = None
    return sorted(found, key=lambda case: (case.rows, case.direct))


def _drawn(dice: random.Random, sizes: list[int]) -> Case:
    rows = dice.choice(sizes)
    share = dice.choice((0.005, 0.02, 0.05, 0.1, 0.2))
    return Case(
        rows=rows,
        memory=max(int(rows * MASTER_ROW_BYTES * share), LEAST_MEMORY),
        skew=dice.choice((0.0, 0.5, 0.8, 1.0, 1.2)),
        unmatched=dice.choice((0.0, 0.0, 0.3)),
        index=True,
        batch=dice.choice((10_000, 100_000, 500_000, 2_000_000)),
        micro_batches=dice.random() < 0.5,
        direct=dice.random() < 0.5,
        horizon=None if rows <= MOST_ROWS_AT_REST and dice.random() < 0.3 else HORIZON,
    )


def _plain(dice: random.Random) -> Case:
    return Case(
        rows=dice.choice((200_000, 500_000)),
        memory=dice.choice((12_000_000, 30_000_000)),
        skew=dice.choice((0.0, 1.0)),
        unmatched=dice.choice((0.0, 0.3)),
        index=False,
        batch=20_000,
        micro_batches=dice.random() < 0.5,
        direct=False,
        horizon=dice.choice((None, HORIZON)),
    )


class Data:
    """R as page stores and Parquet, and streams, made when first needed."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._folder, self._say = folder, say
        self._streams: dict[tuple[Any, ...], list[pa.RecordBatch]] = {}

    def master(self, case: Case) -> Master:
        """R, in the page cache if that is where the setting has it."""
        path = self._path(case)
        if case.index and not case.direct:
            _into_page_cache(path)
        return open_master(path, (KEY,))

    def again(self, case: Case) -> Master:
        """R opened once more: no page of it is mapped or checked yet."""
        return open_master(self._path(case), (KEY,))

    def _path(self, case: Case) -> Path:
        source = Synthetic(case.rows)
        if case.index:
            return path_of(source, "pages", self._folder, self._say)
        path = self._folder / f"narrow-{case.rows}.parquet"
        if not path.exists():
            pq.write_table(source.master.table().select([KEY, "m01", "m02", "m03"]), path, row_group_size=50_000)
        return path

    def stream(self, case: Case) -> list[pa.RecordBatch]:
        """Batches; the share without a match has keys behind R's last one, as many of them as R would have."""
        tuples = TUPLES if case.horizon is None else case.horizon
        key = (tuples, case.rows, case.skew, case.unmatched, case.batch)
        if key not in self._streams:
            self._streams.clear()
            self._streams[key] = list(_made(case, 0, tuples))
        return self._streams[key]

    def endless(self, case: Case) -> Iterator[pa.RecordBatch]:
        """A stream without an end. No tuple comes again: a cache could otherwise hold every key there is."""
        yield from self.stream(case)
        for start in itertools.count(TUPLES, TUPLES):
            yield from _made(case, start, TUPLES)


def _made(case: Case, start: int, tuples: int) -> Iterator[pa.RecordBatch]:
    batches = stream_batches(tuples, case.rows, case.skew, 2, start=start, batch_rows=case.batch)
    return (_missing(batch, case) for batch in batches)


def _into_page_cache(path: Path) -> None:
    for file in (path,) if path.is_file() else path.rglob("*"):
        if file.is_file():
            with file.open("rb", buffering=0) as opened:
                while opened.read(_PIECE):
                    pass


def _missing(batch: pa.RecordBatch, case: Case) -> pa.RecordBatch:
    if not case.unmatched:
        return batch
    keys = batch.column(0)
    # Whether a key is missing depends on the key alone: spread over all ranks.
    spread = pc.bit_wise_and(pc.multiply(keys, 2_654_435_761), (1 << 20) - 1)
    gone = pc.less(spread, int(case.unmatched * (1 << 20)))
    moved = pc.if_else(gone, pc.add(pc.multiply(keys, 2), 2 * case.rows), keys)
    return pa.RecordBatch.from_arrays([moved.cast(keys.type), *batch.columns[1:]], schema=batch.schema)
