"""What an as-of join costs: R with several versions of each key, of which a stream tuple meets the one valid then.

Every figure is a ratio of two joins by the same operator, measured in the same run, turn by turn, after both were
warmed up. An as-of join is held against

- the plain join of the same stream with an R of one row per key ("one row");
- the plain join with an R of as many rows as that with the versions, and so with more keys ("as large");
- the plain join with the same R ("all versions"), which gives every version of a key, so several rows per tuple.

Each join has the same share of its R as its budget (`--share`, a tenth): what is compared is the work per tuple, and
not that a history is larger than what is true today. With `--same-bytes` all have the budget of the R with one row per
key. What can be cached depends on which times the stream asks for then: any of the history, unless `--today` says
which part of the tuples asks for what is valid today.

    python benchmarks/as_of.py                       R of 2 M keys with 5 versions each, 120 bytes per row
    python benchmarks/as_of.py --keys 2e5 --versions 10 --operators sweepjoin,inlj --how left
    python benchmarks/as_of.py --reads direct --share 0.02
    python benchmarks/as_of.py --same-bytes --today 0.9

The bar is for SWEEPJOIN against the first two. ORDEREDJOIN answers from its cache only, and brings all versions of a
key there for one that is wanted.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console

from semistream import SemiStreamJoin, build_pages, open_join, open_master
from semistream.lab.measure.bars import Line, table_of
from semistream.lab.measure.steady import warm
from semistream.lab.measure.turns import Performance, ratios, take_turns
from semistream.lab.workloads.relation import MASTER_ROW_BYTES, master_table
from semistream.lab.workloads.zipf import zipf_keys
from semistream.spec import HOWS

SEED = 1
BAR = 0.7
#: how long a version is valid, in microseconds, on average
LIFE = 1_000_000
TIME = pa.timestamp("us")
PIECE_KEYS = 100_000
console = Console(width=150)


@dataclass(frozen=True)
class Setting:
    """What is joined, with which memory, and for how long."""

    keys: int
    versions: int
    exponent: float
    share: float
    same_bytes: bool
    today: float
    reads: str
    how: str
    batch: int
    turns: int
    seconds: float
    warm_seconds: float


def history(keys: int, versions: int) -> Iterator[pa.RecordBatch]:
    """R: every key with its versions, one after the other without a gap; the last one is still valid."""
    rng = np.random.default_rng(SEED)
    for start in range(0, keys, PIECE_KEYS):
        some = min(PIECE_KEYS, keys - start)
        made = master_table(keys * versions, SEED, start * versions, some * versions)
        cuts = np.sort(rng.integers(0, versions * LIFE, (some, versions - 1)), axis=1)
        begins = np.concatenate((np.zeros((some, 1), dtype=np.int64), cuts), axis=1).ravel()
        ends = np.concatenate((cuts, np.zeros((some, 1), dtype=np.int64)), axis=1).ravel()
        still = np.tile(np.arange(versions) == versions - 1, some)
        columns = {name: made.column(name).combine_chunks() for name in made.column_names}
        columns["k"] = pa.array(np.repeat(np.arange(start, start + some), versions))
        columns["m13"] = pa.array(begins).cast(TIME)
        columns["m14"] = pa.array(ends, mask=still).cast(TIME)
        names = [{"m13": "valid_from", "m14": "valid_to"}.get(name, name) for name in columns]
        order = rng.permutation(some * versions)
        yield pa.RecordBatch.from_arrays(list(columns.values()), names=names).take(pa.array(order))


class Joined(Performance):
    """An operator with its own endless stream over so many keys."""

    def __init__(self, name: str, operator: str, store: Path, keys: int, setting: Setting, **asked: Any) -> None:
        self.name, self._keys, self._setting = name, keys, setting
        with closing(open_master(store)) as master:
            rows = setting.keys if setting.same_bytes else master.n_rows
            memory = int(setting.share * rows * MASTER_ROW_BYTES)
        opened = open_join(operator, master=store, on="k", how=setting.how, memory=memory, reads=setting.reads, **asked)
        assert isinstance(opened, SemiStreamJoin)
        self.operator = opened
        super().__init__(opened.push, self._stream())

    def _stream(self) -> Iterator[pa.RecordBatch]:
        size, start = self._setting.batch, 0
        rng = np.random.default_rng(SEED)
        while True:
            keys = zipf_keys(self._keys, self._setting.exponent, SEED, start, size)
            now = self._setting.versions * LIFE
            times = pa.array(np.where(rng.random(size) < self._setting.today, now, rng.integers(0, now, size))).cast(
                TIME
            )
            numbers = pa.array(np.arange(start, start + size))
            yield pa.RecordBatch.from_arrays([pa.array(keys), numbers, times], names=["k", "seq", "event_time"])
            start += size

    def close(self, rows_per_tuple: int) -> None:
        """Refuse figures got with wrong output."""
        self.rows_out += sum(output.num_rows for output in self.operator.drain())
        if self.rows_out != rows_per_tuple * self.operator.stats.tuples_in:
            raise SystemExit(f"{self.name} gave {self.rows_out:,} rows for {self.tuples_in:,} tuples")
        self.operator.close()


def compare(operator: str, stores: dict[str, Path], setting: Setting) -> Iterator[Line]:
    """One operator with history and without."""
    keys, versions = setting.keys, setting.versions
    bar = BAR if operator == "sweepjoin" else None
    asked = {"as_of": "event_time", "valid": ("valid_from", "valid_to")}
    own = Joined("as of", operator, stores["versions"], keys, setting, **asked)
    others = [
        (Joined("one row", operator, stores["one row"], keys, setting), 1, bar),
        (Joined("as large", operator, stores["as large"], keys * versions, setting), 1, bar),
        (Joined("all versions", operator, stores["versions"], keys, setting), versions, None),
    ]
    players = [own, *(other for other, _, _ in others)]
    for player in players:
        player.batch()
        warm(player.operator, player.batch, setting.warm_seconds)
    take_turns(players, setting.turns, setting.seconds)
    for player in players:
        stats = player.operator.stats
        console.print(
            f"  {operator:<12} {player.name:<13} {player.median:>12,.0f} /s   hit rate so far {stats.hit_rate:.1%}"
        )
    for other, _, bar in others:
        found = ratios(own.rates, other.rates)
        yield Line(operator, f"as of / {other.name}", statistics.median(found), min(found), max(found), bar)
    matched = setting.how in ("inner", "left")
    own.close(0 if setting.how == "anti" else 1)
    for other, rows, _ in others:
        other.close(0 if setting.how == "anti" else rows if matched else 1)


def stores_of(setting: Setting, data: Path) -> dict[str, Path]:
    """Page stores of the three forms of R, made once for a data folder."""
    forms = {
        "versions": (setting.keys, setting.versions),
        "one row": (setting.keys, 1),
        "as large": (setting.keys * setting.versions, 1),
    }
    found = {}
    for name, (keys, versions) in forms.items():
        path = data / f"history-{keys}-{versions}"
        if not path.exists():
            console.print(f"R of {keys:,} keys with {versions} rows each …")
            build_pages(history(keys, versions), path, on="k")
        found[name] = path
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=float, default=2e6, help="keys of the R with versions (2e6)")
    parser.add_argument("--versions", type=int, default=5, help="versions of each key (5)")
    parser.add_argument("--exponent", type=float, default=1.0, help="of Zipf's law, by which keys come (1)")
    parser.add_argument("--operators", default="sweepjoin,orderedjoin", help="names with commas between them")
    parser.add_argument("--share", type=float, default=0.1, help="of each R that its join has as budget (0.1)")
    parser.add_argument("--same-bytes", action="store_true", help="the budget of the R with one row per key for all")
    parser.add_argument("--today", type=float, default=0.0, help="part of the tuples that ask for what is valid today")
    parser.add_argument("--reads", default="mapped", choices=("mapped", "direct"))
    parser.add_argument("--how", default="inner", choices=HOWS)
    parser.add_argument("--batch", type=int, default=100_000, help="tuples per batch (100000)")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a turn (0.5)")
    parser.add_argument("--warm", type=float, default=10.0, help="seconds of warm-up at most (10)")
    parser.add_argument("--data", type=Path, help="a folder that keeps the generated data")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    setting = Setting(
        keys=int(given.keys),
        versions=given.versions,
        exponent=given.exponent,
        share=given.share,
        same_bytes=given.same_bytes,
        today=given.today,
        reads=given.reads,
        how=given.how,
        batch=given.batch,
        turns=given.turns,
        seconds=given.seconds,
        warm_seconds=given.warm,
    )
    with tempfile.TemporaryDirectory() as folder:
        stores = stores_of(setting, given.data or Path(folder))
        lines = [line for name in given.operators.split(",") for line in compare(name, stores, setting)]
    console.print(table_of(lines))
    return int(any(line.verdict == "short" for line in lines))


if __name__ == "__main__":
    sys.exit(main())
