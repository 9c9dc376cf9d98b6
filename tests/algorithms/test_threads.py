"""The operators with threads, under load: thousands of short joins that are cut off, resumed and closed anywhere.

pytest runs a sample of a few seconds. For longer, say after a change to the phases or their locks:

    python -m tests.algorithms.test_threads --seconds 600 --seed 1

Every join has a tiny budget and a tiny intermediate buffer, so that both phases meet all the time; the interpreter
changes threads as often as it can, and busy threads keep the cores occupied. What a finished join gave is compared with
the reference join. A join that does not come back within two minutes ends the run with the stacks of all threads.
"""

from __future__ import annotations

import argparse
import faulthandler
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from semistream import build_pages, open_join
from semistream.engine.join import SemiStreamJoin
from semistream.errors import BudgetError, SemiStreamError
from semistream.loops.resident import fill, resident_bytes, resident_keys
from semistream.master.base import PageBlock
from semistream.master.page_reader import PageStoreReader
from semistream.parts.arena import Arena
from semistream.parts.cache import Cache
from semistream.testing import assert_same_rows, reference_join

THREADED = ("pcachejoin", "opcachejoin")
HOWS = ("inner", "left", "semi", "anti")
ROWS, MOST_SECONDS = 3_000, 120.0


def master() -> pa.Table:
    """Long values, nulls, and keys that stand on several pages."""
    keys = np.sort(np.concatenate([np.arange(ROWS), np.repeat(np.arange(0, ROWS, 97), 20)]))
    return pa.table(
        {
            "key": keys,
            "name": [None if at % 11 == 0 else f"name {at} " * (at % 7) for at in range(len(keys))],
            "number": np.arange(len(keys)) * 1.5,
        }
    )


def stream(rng: random.Random) -> list[pa.RecordBatch]:
    draw = np.random.default_rng(rng.randrange(1 << 30))
    batches = []
    for _ in range(rng.randint(1, 4)):
        rows = rng.choice([0, 1, 50, 400, 1500])
        keys = np.minimum(draw.zipf(1.3, rows) * 37 % (ROWS * 5 // 4), ROWS * 2)
        texts = [None if at % 5 == 0 else "s" * (at % 40) for at in range(rows)]
        batches.append(pa.record_batch({"key": keys.astype(np.int64), "text": pa.array(texts, pa.string())}))
    return batches


@contextmanager
def in_a_hurry() -> Iterator[None]:
    """The interpreter changes threads all the time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class Watch:
    """Whether a reader was ever used by two threads at once: they would load into one buffer."""

    def __init__(self) -> None:
        self.overlaps: list[str] = []
        self._inside: dict[int, str] = {}
        self._read = PageStoreReader._fetch

    def __enter__(self) -> Watch:
        read = self._read

        def watched(reader: PageStoreReader, *arguments: Any) -> Any:
            me = threading.current_thread().name
            other = self._inside.setdefault(id(reader), me)
            if other != me:
                self.overlaps.append(f"{me} reads while {other} does")
            try:
                return read(reader, *arguments)
            finally:
                self._inside.pop(id(reader), None)

        PageStoreReader._fetch = watched  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        PageStoreReader._fetch = self._read  # type: ignore[method-assign]


def take(join: SemiStreamJoin, rows: list[pa.RecordBatch], rng: random.Random) -> bool:
    """Consume what was begun, perhaps in pieces; False if the join was closed on the way."""
    while True:
        outputs = join.resume()
        stop = rng.choice([0, 1, 3, 1 << 30])
        for _ in range(stop):
            batch = next(outputs, None)
            if batch is None:
                return True
            rows.append(batch)
        if rng.random() < 0.15:
            join.close()
            with pytest.raises(SemiStreamError, match="closed"):
                next(outputs)
            return False


def closed_by_another(join: SemiStreamJoin, batch: pa.RecordBatch, rng: random.Random) -> None:
    """Another thread closes the join while this one works: it either finishes its step or says that it is closed."""
    pause = rng.random() * 0.003
    closer = threading.Thread(target=lambda: (time.sleep(pause), join.close()))
    closer.start()
    try:
        for _ in join.push(batch):
            pass
        for _ in join.drain():
            pass
    except SemiStreamError as error:
        if "closed" not in str(error):
            raise
    closer.join()


def whole_r(join: SemiStreamJoin) -> None:
    """Read all of R through an idle join's own buffer, as a shared cache that holds all of R is made."""
    arena = Arena(resident_bytes(join.plan.r), join.work.row_layout.slot_bytes)
    cache = Cache(arena, join.work.row_layout, resident_bytes(join.plan.r), resident_keys(join.plan.r.rows))
    fill(join.loop, cache)
    assert cache.rows == join.reader.n_rows


def short_join(rng: random.Random, stores: list[Path], expected: pa.Table) -> str:
    """One join from its opening to its end, whatever that is; returns how it ended."""
    how, batches = rng.choice(HOWS), stream(rng)
    options: dict[str, Any] = {
        "memory": rng.choice([270_000, 400_000, 700_000]),
        "intermediate_bytes": rng.choice([1, 600, 4096]),
        "cache_share": rng.choice([0.05, 0.5]),
        "reads": "direct" if rng.random() < 0.2 else "mapped",
        "in_step": rng.random() < 0.15,
    }
    name, store = rng.choice(THREADED), rng.choice(stores)
    try:
        join = open_join(name, master=store, on="key", how=how, **options)
    except BudgetError:
        return "too small"
    rows: list[pa.RecordBatch] = []
    try:
        if rng.random() < 0.1:
            closed_by_another(join, batches[0], rng)
            return "closed by another thread"
        for batch in batches:
            join.push(batch)
            if not take(join, rows, rng):
                return "closed"
            if rng.random() < 0.2:
                saved = join.snapshot()
                join.close()
                join = open_join(name, master=store, on="key", how=how, **options)
                join.restore(saved)
            if rng.random() < 0.2:
                join.drain()
                if not take(join, rows, rng):
                    return "closed"
            if rng.random() < 0.2:
                whole_r(join)
        join.drain()
        if not take(join, rows, rng):
            return "closed"
        found = pa.Table.from_batches(rows, join.output_schema)
    finally:
        join.close()
    assert_same_rows(found, reference_join(pa.Table.from_batches(batches), expected, "key", how))
    return "finished"


@contextmanager
def busy_cores(count: int) -> Iterator[None]:
    """Threads that compute all the time, mostly without the interpreter's lock."""
    done = threading.Event()

    def spin() -> None:
        numbers = np.random.default_rng(0).random(1 << 16)
        while not done.is_set():
            np.sort(numbers)

    spinners = [threading.Thread(target=spin, daemon=True) for _ in range(count)]
    for spinner in spinners:
        spinner.start()
    try:
        yield
    finally:
        done.set()
        for spinner in spinners:
            spinner.join()


def stress(seconds: float, seed: int, folder: Path, joins: int | None = None) -> Counter[str]:
    """Short joins for so long, or so many of them; returns how they ended."""
    table = master()
    stores = [folder / "key", folder / "frequency"]
    build_pages(table, stores[0], on="key", page_rows=32)
    frequency = (table.select(["key"]), np.random.default_rng(0).integers(0, 100, table.num_rows))
    build_pages(table, stores[1], on="key", page_rows=32, order="frequency", frequency=frequency)
    ended: Counter[str] = Counter()
    deadline, at = time.monotonic() + seconds, 0
    with in_a_hurry(), busy_cores(2), Watch() as watch:
        while time.monotonic() < deadline and (joins is None or at < joins):
            faulthandler.dump_traceback_later(MOST_SECONDS, exit=True)
            ended[short_join(random.Random(f"{seed} {at}"), stores, table)] += 1
            faulthandler.cancel_dump_traceback_later()
            assert not watch.overlaps, (seed, at, watch.overlaps[:3])
            at += 1
    return ended


def test_short_joins_under_load(tmp_path: Path) -> None:
    threads = set(threading.enumerate())
    ended = stress(60.0, 7, tmp_path, joins=60)
    assert ended["finished"] > 10, ended
    assert ended["closed"] > 3, ended
    assert set(threading.enumerate()) - threads == set()


def test_nobody_reads_into_a_buffer_that_is_being_loaded(tmp_path: Path) -> None:
    """A load goes on while the join is idle: the key that asked for it left meanwhile, for R lacks it.

    Whoever borrows the buffer then must wait for it. Two loads into one buffer are torn rows at best.
    """
    build_pages(
        pa.table({"key": np.arange(0, 4_000, 2), "n": np.arange(2_000)}), tmp_path / "r", on="key", page_rows=32
    )
    schema = pa.schema({"key": pa.int64()})
    options = {"buffer_bytes": 1, "stream_schema": schema, "how": "inner"}
    with open_join("opcachejoin", master=tmp_path / "r", on="key", memory="1MB", **options) as join:
        loads: list[str] = []
        overlaps: list[str] = []
        inside: list[str] = []
        second_load, gate = threading.Event(), threading.Event()
        original = join.work.disk.load

        def load(first: int, pages: int) -> PageBlock:
            me = threading.current_thread().name
            overlaps.extend(f"{me} loads while {other} does" for other in inside)
            inside.append(me)
            loads.append(me)
            if len(loads) == 2:
                second_load.set()
                gate.wait(60)
            block = original(first, pages)
            inside.remove(me)
            return block

        join.work.disk.load = load  # type: ignore[method-assign]
        # The oldest key; one that its page lacks; one on another page, which the second buffer loads.
        rows = [*join.push(pa.record_batch({"key": [10, 11, 3_000]})), *join.drain()]
        assert sorted(pa.Table.from_batches(rows)["n"].to_pylist()) == [5, 1_500]
        assert second_load.wait(60)
        threading.Timer(0.3, gate.set).start()
        whole_r(join)
        assert overlaps == []
        rows = [*join.push(pa.record_batch({"key": [20, 3_001, 3_002]})), *join.drain()]
        assert sorted(pa.Table.from_batches(rows)["n"].to_pylist()) == [10, 1_501]


def main() -> None:
    parser = argparse.ArgumentParser(description="short joins under load")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(dict(stress(asked.seconds, asked.seed, Path(folder))))


if __name__ == "__main__":
    main()
