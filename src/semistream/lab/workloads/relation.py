"""The papers' synthetic relations: master tuples of 120 bytes, stream tuples of 20 bytes, 64-bit keys.

Payload values are incompressible, so a row costs its full width in any file format and no reader gains from
an encoding that real data would not have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from semistream.errors import ConfigError
from semistream.lab.workloads.counter import below, gather, scatter, stream_seed, unit, words
from semistream.lab.workloads.drift import Drift, drifting_keys
from semistream.lab.workloads.workload import Workload
from semistream.lab.workloads.zipf import zipf_keys

KEY = "k"
FREQUENCY = "frequency"
MASTER_SCHEMA = pa.schema([pa.field(KEY, pa.int64())] + [pa.field(f"m{i:02d}", pa.int64()) for i in range(1, 15)])
_STREAM_COLUMNS = ((KEY, pa.int64()), ("seq", pa.int64()), ("qty", pa.int32()))
STREAM_SCHEMA = pa.schema([pa.field(name, kind, nullable=False) for name, kind in _STREAM_COLUMNS])
MASTER_ROW_BYTES = 120
STREAM_ROW_BYTES = 20
#: the papers' size of a stream tuple that waits: with a queue node
WAITING_BYTES = 24
ORDERS = ("shuffled", "key", "frequency")


@dataclass(frozen=True)
class SyntheticMaster(Workload):
    """R: a key of [0, n_rows) and fourteen int64 columns.

    `repeat` draws the keys with repetition, as ssbj2019 does: e^-1, about 37 %, of the domain is absent, the
    other keys have one tuple or several. Otherwise every key has one tuple, and `order` says in which order:
    shuffled, by key, or by access frequency, the most wanted first, as oxhybridjoin2012 assumes.

    What is wanted is decided by `hot_seed` of the stream (its `seed`, if it has no other; here the default is
    this relation's seed). `frequency` adds a column with the share of a key relative to the hottest one, for
    the stream with that exponent: `build_pages(..., frequency="frequency")` then orders keys of any kind.
    """

    n_rows: int
    seed: int = 0
    repeat: bool = False
    order: str = "shuffled"
    hot_seed: int | None = None
    frequency: float | None = None

    def __post_init__(self) -> None:
        if self.n_rows < 0:
            raise ConfigError(f"n_rows={self.n_rows}; a relation has at least 0 rows")
        if self.order not in ORDERS:
            raise ConfigError(f"order={self.order!r} is not known; allowed are {', '.join(ORDERS)}")
        if self.repeat and self.order != "shuffled":
            raise ConfigError(
                f"order={self.order!r} needs unique keys: with repeat=True ask for frequency= and let build_pages sort"
            )

    @property
    def schema(self) -> pa.Schema:
        if self.frequency is None:
            return MASTER_SCHEMA
        return MASTER_SCHEMA.append(pa.field(FREQUENCY, pa.float64()))

    def keys(self, start: int, stop: int) -> np.ndarray:
        """Keys of the rows start .. stop - 1, int64 in [0, n_rows)."""
        if self.repeat:
            return below(self.n_rows, stream_seed(self.seed, "master keys"), start, stop - start)
        rows = np.arange(start, stop, dtype=np.int64)
        if self.order == "key":
            return rows
        if self.order == "frequency":
            return scatter(rows, self.n_rows, self._hot_seed)
        return scatter(rows, self.n_rows, stream_seed(self.seed, "master order"))

    @property
    def _hot_seed(self) -> int:
        return self.seed if self.hot_seed is None else self.hot_seed

    def _make(self, start: int, stop: int) -> list[pa.Array]:
        keys = self.keys(start, stop)
        columns = [pa.array(keys)]
        columns += [
            pa.array(words(stream_seed(self.seed, f"master/{name}"), start, stop - start).view(np.int64))
            for name in MASTER_SCHEMA.names[1:]
        ]
        if self.frequency is not None:
            ranks = gather(keys, self.n_rows, self._hot_seed) + 1
            columns.append(pa.array(ranks.astype(np.float64) ** -float(self.frequency)))
        return columns


@dataclass(frozen=True)
class SyntheticStream(Workload):
    """S: key by Zipf's law over [0, n_keys), sequence number, a small quantity.

    `hot_seed` decides which keys are hot, `drift` when that changes. `unmatched` is the share of tuples whose
    key is moved to [n_keys, 2 n_keys), where a master relation of n_keys rows has nothing.
    """

    n_keys: int
    exponent: float = 1.0
    seed: int = 0
    hot_seed: int | None = None
    drift: Drift | None = None
    unmatched: float = 0.0
    n_rows: int | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.n_keys < 1 or self.exponent < 0 or not 0 <= self.unmatched <= 1:
            raise ConfigError(
                f"no stream of {self.n_keys} keys, exponent {self.exponent}, {self.unmatched} unmatched; "
                "allowed are at least 1 key, an exponent of at least 0, a share from 0 to 1"
            )

    @property
    def schema(self) -> pa.Schema:
        return STREAM_SCHEMA

    def keys(self, start: int, stop: int) -> np.ndarray:
        hot_seed = self.seed if self.hot_seed is None else self.hot_seed
        if self.drift is None:
            keys = zipf_keys(self.n_keys, self.exponent, self.seed, start, stop - start, hot_seed=hot_seed)
        else:
            keys = drifting_keys(
                self.n_keys, self.exponent, self.seed, start, stop, hot_seed=hot_seed, drift=self.drift
            )
        if self.unmatched:
            draws = unit(words(stream_seed(self.seed, "stream/unmatched"), start, stop - start))
            keys[draws <= self.unmatched] += self.n_keys
        return keys

    def _make(self, start: int, stop: int) -> list[pa.Array]:
        quantity = below(100, stream_seed(self.seed, "stream/qty"), start, stop - start)
        return [
            pa.array(self.keys(start, stop)),
            pa.array(np.arange(start, stop, dtype=np.int64)),
            pa.array(quantity.astype(np.int32)),
        ]


def _master(n_rows: int, seed: int, repeat: bool, shuffled: bool) -> SyntheticMaster:
    return SyntheticMaster(n_rows, seed, repeat, "shuffled" if shuffled or repeat else "key")


def master_keys(
    n_rows: int, seed: int, start: int, count: int, *, repeat: bool = False, shuffled: bool = True
) -> np.ndarray:
    """Keys of the rows start .. start + count - 1 of a SyntheticMaster."""
    return _master(n_rows, seed, repeat, shuffled).keys(start, start + count)


def master_table(
    n_rows: int,
    seed: int,
    start: int = 0,
    count: int | None = None,
    repeat: bool = False,
    *,
    shuffled: bool = True,
) -> pa.Table:
    """Rows start .. start + count - 1 of a SyntheticMaster, all of them by default.

    >>> table = master_table(1000, seed=1)
    >>> table.num_rows, table.nbytes // table.num_rows
    (1000, 120)
    """
    return _master(n_rows, seed, repeat, shuffled).table(start, None if count is None else start + count)


def master_batches(
    n_rows: int, seed: int, *, batch_rows: int = 262_144, repeat: bool = False, shuffled: bool = True
) -> Iterator[pa.RecordBatch]:
    """A whole SyntheticMaster, one bounded piece after another."""
    return _master(n_rows, seed, repeat, shuffled).batches(batch_rows=batch_rows)


def stream_batches(
    n: int,
    n_keys: int,
    exponent: float = 1.0,
    seed: int = 0,
    *,
    start: int = 0,
    batch_rows: int = 100_000,
    hot_seed: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Rows start .. start + n - 1 of a SyntheticStream."""
    return SyntheticStream(n_keys, exponent, seed, hot_seed).batches(start, start + n, batch_rows)
