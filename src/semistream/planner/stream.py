"""What is known about the keys of a stream before it is joined: a sample of it, and what R has for that sample."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from semistream.algorithms.registry import ALGORITHMS
from semistream.columns.border import check_arrays
from semistream.columns.plain import to_plain
from semistream.engine.join import SemiStreamJoin
from semistream.errors import BudgetError
from semistream.master.base import Master
from semistream.planner.policy import Policy
from semistream.predict.keys import FrequencySample, KeyClasses, zipf
from semistream.spec import JoinSpec

#: Zipf's exponent of a stream nobody has seen: what the papers call market data
ASSUMED_EXPONENT = 1.0
#: looks tuples up one by one, in the least memory
_LOOK_UP = "inlj"
_SAMPLE_SEED = 20_140_209


@dataclass(frozen=True)
class StreamStatistics:
    """The keys of a stream: how often each comes, and how many master tuples it meets."""

    keys: KeyClasses
    #: tuples this was learnt from; 0: nothing is known and it is assumed
    seen: int
    exponent: float
    #: share of the stream without a match, and master tuples of a key that has some
    absent: float = 0.0
    rows_per_key: float = 1.0
    #: whether these two were seen, and not assumed
    matches_known: bool = False

    @staticmethod
    def assumed(n_rows: int, exponent: float = ASSUMED_EXPONENT, absent: float = 0.0) -> StreamStatistics:
        """A stream by Zipf's law over R's keys."""
        return StreamStatistics(zipf(max(n_rows, 1), exponent, absent=absent), 0, exponent, absent)

    def text(self) -> str:
        """One line for people."""
        known = f"a sample of {self.seen:,} tuples" if self.seen else "nothing is known, assumed"
        once = abs(self.rows_per_key - 1.0) < 0.005
        matches = "each key occurs once in R" if once else f"{self.rows_per_key:.3g} master tuples per key on average"
        if self.seen and not self.matches_known:
            matches = f"{matches} (assumed: without an index nothing is looked up)"
        return f"{known}: {_skew(self.exponent)}, {self.absent:.0%} without a match, {matches}"


def _skew(exponent: float) -> str:
    """How unequal keys are, in words and as the exponent of Zipf's law."""
    kinds = ((0.3, "all keys about equally often"), (0.8, "some keys more often"), (1.2, "few keys very often"))
    kind = next((words for end, words in kinds if exponent < end), "very few keys nearly always")
    return f"{kind} (Zipf exponent {exponent:.2f})"


class StreamSample:
    """Learns the statistics of a stream from batches of it, in bounded memory."""

    def __init__(self, master: Master, spec: JoinSpec, schema: pa.Schema, capacity: int = 1 << 16) -> None:
        self._master, self._spec = master, spec
        self._at = [schema.get_field_index(name) for name in spec.stream_on]
        self._coder = master.coder.for_stream([schema.field(name).type for name in spec.stream_on])
        self._random = np.random.default_rng(_SAMPLE_SEED)
        self._counts = FrequencySample(capacity)
        #: of the stream: tuples looked at, and without a usable key
        self._null = 0
        self._absent = 0.0
        self._rows_per_key = 1.0
        self._matches_known = False

    @property
    def seen(self) -> int:
        return self._counts.seen + self._null

    def top_share(self, keys: int) -> float:
        """Share of the stream that the `keys` most frequent keys have, at least."""
        return self._counts.top_share(keys)

    def forget(self) -> None:
        """Begin anew: the stream has changed."""
        self._counts = FrequencySample(self._counts.capacity)
        self._null = 0

    def limit(self, capacity: int) -> None:
        """Keep no more than so many keys, from here on."""
        self._counts.limit(capacity)

    def add(self, batch: pa.RecordBatch) -> None:
        """Count a batch, or as much of it, drawn at random, as the sample holds."""
        part = self._drawn(batch, self._counts.capacity)
        codes, valid = self._coder.codes([part.column(name) for name in self._spec.stream_on])
        if valid is not None:
            self._null += int(len(valid) - valid.sum())
            codes = codes[valid]
        self._counts.add(codes)

    def probe(
        self, batch: pa.RecordBatch, budget_bytes: int, tuples: int = Policy.probed_tuples, *, direct: bool = False
    ) -> None:
        """Look up to `tuples` up in R, where that is possible without a scan: how many match, and how often.

        The join that does it has the whole budget, for the real one is not open yet; where even that is too little
        for a page, the statistics stay as they were.
        """
        if not self._master.has_index or not batch.num_rows or _LOOK_UP not in ALGORITHMS:
            return
        some = self._drawn(batch, tuples)
        spec = JoinSpec(self._spec.stream_on, self._spec.master_on, "left", ())
        try:
            with SemiStreamJoin(ALGORITHMS[_LOOK_UP], self._master, spec, budget_bytes, direct=direct) as look_up:
                rows = sum(found.num_rows for found in look_up.push(some))
                missing = look_up.stats.unmatched
        except BudgetError:
            return
        self.matched(some.num_rows, missing, rows - missing)

    def matched(self, tuples: int, unmatched: int, rows: int) -> None:
        """Take over how many of `tuples` tuples matched nothing, and how many joined rows the others gave."""
        if not tuples:
            return
        self._matches_known = True
        self._absent = min(unmatched / tuples, 0.999)
        if tuples > unmatched:
            self._rows_per_key = max(rows / (tuples - unmatched), 1.0)

    def _drawn(self, batch: pa.RecordBatch, rows: int) -> pa.RecordBatch:
        """The key columns of at most `rows` tuples, drawn at random; plain, for views cannot be taken from."""
        names = list(dict.fromkeys(self._spec.stream_on))
        columns = [batch.column(at) for at in dict.fromkeys(self._at)]
        check_arrays(names, columns, "this batch of the stream")
        keys = pa.RecordBatch.from_arrays([to_plain(column) for column in columns], names=names)
        if batch.num_rows <= rows:
            return keys
        # One of each of so many stretches: that takes no shuffle of all tuples.
        edges = np.arange(rows + 1) * batch.num_rows // rows
        return keys.take(pa.array(self._random.integers(edges[:-1], edges[1:])))

    def statistics(self) -> StreamStatistics:
        """What the sample says; what it does not know is assumed."""
        in_r = max(self._master.n_rows / self._rows_per_key, 1.0)
        if not self._counts.seen:
            return StreamStatistics.assumed(int(in_r), absent=self._absent)
        domain = max(int(in_r / (1.0 - self._absent)), 1)
        keys = self._counts.classes(domain, rows_per_key=self._rows_per_key, absent=self._absent)
        return StreamStatistics(
            keys, self.seen, self._counts.exponent(domain), self._absent, self._rows_per_key, self._matches_known
        )
