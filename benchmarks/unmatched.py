"""What tuples without a match cost: the rate of a stream of nothing else over that of one where all have a match.

    python benchmarks/unmatched.py                                   sweepjoin, inner and left, R = 2 M, 10 % of R
    python benchmarks/unmatched.py --rows 10000000 --operators sweepjoin,cachejoin --data DIR

Every second key is absent from R, so keys without a match have neighbours that have one and fall on all pages. Both
streams have the same skew. R is in the page cache, and every batch is finished at once, as on Spark. Both sides take
turns, and keep their state between them; the figure is the median of the ratios.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from rich.console import Console

import semistream
from semistream.lab.figures.beyond import Gapped
from semistream.lab.measure.bars import Line, table_of
from semistream.lab.measure.turns import Performance, ratios, take_turns
from semistream.lab.workloads.relation import KEY, MASTER_ROW_BYTES, STREAM_SCHEMA

SEED, SKEW = 1, 1.0
#: of the rate of a stream in which every tuple has a match
BAR = 0.5
console = Console(width=140)


class Side(Performance):
    """One operator with an endless stream, in which a share of the tuples has no match."""

    def __init__(self, algorithm: str, how: str, store: Path, source: Gapped, memory: int, batch: int) -> None:
        self.how, self.unmatched = how, source.unmatched
        self.operator = semistream.open_join(
            algorithm, master=store, on=KEY, how=how, memory=memory, reads="mapped", stream_schema=STREAM_SCHEMA
        )
        super().__init__(self._joined, source.stream(batch, store))

    def _joined(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        yield from self.operator.push(batch)
        yield from self.operator.drain()

    def close(self) -> None:
        """Refuse figures that were got with wrong output."""
        self.operator.close()
        expected = self.tuples_in if self.how == "left" or not self.unmatched else 0
        if self.rows_out != expected:
            raise SystemExit(f"{self.rows_out:,} rows instead of {expected:,}: the figures are worth nothing")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--memory", type=int, help="bytes; 10 %% of R unless given")
    parser.add_argument("--batch", type=int, default=100_000)
    parser.add_argument("--operators", default="sweepjoin")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn, at least")
    parser.add_argument("--warm", type=int, default=30, help="batches before the first turn")
    parser.add_argument("--data", type=Path, help="keeps R for the next time")
    given = parser.parse_args()
    lines: list[Line] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.data or Path(scratch)
        sources = [Gapped(given.rows, SKEW, SEED, unmatched=share) for share in (0.0, 1.0)]
        store = folder / sources[0].store_name
        if not store.exists():
            folder.mkdir(parents=True, exist_ok=True)
            sources[0].build(store, folder)
        memory = given.memory or given.rows * MASTER_ROW_BYTES // 10
        for algorithm in given.operators.split(","):
            lines += [contest(algorithm, how, store, sources, memory, given) for how in ("inner", "left")]
    console.print(table_of(lines))
    return int(any(line.verdict == "short" for line in lines))


def contest(
    algorithm: str, how: str, store: Path, sources: list[Gapped], memory: int, given: argparse.Namespace
) -> Line:
    matched, unmatched = (Side(algorithm, how, store, source, memory, given.batch) for source in sources)
    for side in (matched, unmatched):
        for _ in range(given.warm):
            side.batch()
    take_turns([matched, unmatched], given.turns, given.seconds)
    for side in (matched, unmatched):
        hits = side.operator.stats.hit_rate
        console.print(f"{algorithm} {how}, {side.unmatched:.0%} unmatched: {side.median:,.0f} /s, hit rate {hits:.1%}")
        side.close()
    found = ratios(unmatched.rates, matched.rates)
    what = f"{algorithm}: all unmatched / none"
    return Line(how, what, statistics.median(found), min(found), max(found), BAR)


if __name__ == "__main__":
    sys.exit(main())
