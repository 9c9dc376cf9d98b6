"""Building and publishing generations of the shared cache: whatever fails, every join has the right rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
from tests.faults.harness import Scenario, Verdict, compare

import semistream
from semistream.engine.join import SemiStreamJoin
from semistream.loops.resident import fill, resident_keys
from semistream.parts.generation import Generations
from semistream.parts.upkeep import Upkeep

_KEYS = 30
_LIMIT = 120_000
_MASTER = pa.table(
    {
        "k": [*range(_KEYS), *range(0, _KEYS, 4)],
        "s": [None if i % 7 == 0 else "z" * i + str(i) for i in range(_KEYS + -(-_KEYS // 4))],
    }
)
_STREAM = pa.record_batch({"k": pa.array(np.arange(-2, _KEYS + 2))})
_ROWS = [
    *((row["k"], row["s"]) for row in _MASTER.to_pylist()),
    *((key, None) for key in (-2, -1, _KEYS, _KEYS + 1)),
]


@contextmanager
def _sharing(folder: Path) -> Iterator[tuple[SemiStreamJoin, Generations]]:
    with semistream.open_join("sweepjoin", master=_MASTER, on="k", how="left", memory="300KB") as join:
        join.start(_STREAM.schema)
        yield join, Generations(folder / "cache", "v1", _LIMIT, join.work.row_layout)


def _joined(join: SemiStreamJoin) -> Verdict:
    batches = [*join.push(_STREAM), *join.drain()]
    return compare([(row["k"], row["s"]) for batch in batches for row in batch.to_pylist()], _ROWS)


def _merge(join: SemiStreamJoin, shared: Generations) -> None:
    shared.merge(join.loop.cache)  # type: ignore[attr-defined]


def _load(join: SemiStreamJoin, shared: Generations) -> None:
    shared.load(resident_keys(join.plan.r.rows), lambda cache: fill(join.loop, cache))


def _task(build: Callable[[SemiStreamJoin, Generations], None]) -> Callable[[Path], None]:
    """What a task does: look, join, build; and the next one, in the same process."""

    def act(folder: Path) -> None:
        with _sharing(folder) as (join, shared):
            for _ in range(2):
                shared.refresh()
                join.shared = shared.current
                assert not _joined(join)
                shared.saw(_STREAM.num_rows)
                with shared.building() as mine:
                    if mine:
                        build(join, shared)

    return act


def _beside(folder: Path) -> None:
    """The same with builds beside the tasks, as a worker process makes them."""
    with _sharing(folder) as (join, shared):
        upkeep = Upkeep(shared)
        for _ in range(2):
            upkeep.free()
            if upkeep.adopt():
                join.share(shared.current)
            assert not _joined(join)
            shared.saw(_STREAM.num_rows)
            upkeep.look(join.loop.cache)  # type: ignore[arg-type]
            upkeep.wait()
        upkeep.close()


@cache
def _reader() -> SemiStreamJoin:
    """One join for all flips of a process."""
    join = semistream.open_join("sweepjoin", master=_MASTER, on="k", how="left", memory="300KB")
    join.start(_STREAM.schema)
    return join


def _read(folder: Path) -> Verdict:
    join = _reader()
    shared = Generations(folder / "cache", "v1", _LIMIT, join.work.row_layout)
    shared.refresh()
    join.shared = shared.current
    return _joined(join)


def _goes_on(folder: Path, _: bool) -> Verdict:
    """No file is seen that is not whole, and the next builder publishes and cleans up."""
    with _sharing(folder) as (join, shared):
        shared.refresh()
        join.shared = shared.current
        found = _joined(join)
        shared.saw(_STREAM.num_rows)
        with shared.building() as mine:
            assert mine, shared.last_failure
            _merge(join, shared)
        assert shared.refresh(), shared.last_failure
        assert shared.failures == 0, shared.last_failure
        join.shared = shared.current
        found += _joined(join)
        left = sorted(path.name.partition("-")[0] for path in (folder / "cache").iterdir())
        assert left == ["build.lock", "generation"], left
        return found


def _nothing(_: Path) -> None:
    pass


SCENARIOS = [
    Scenario("generations: build the first", _nothing, _task(_merge), _goes_on, _read),
    Scenario("generations: build the next", _task(_merge), _task(_merge), _goes_on),
    Scenario("generations: build beside the tasks", _nothing, _beside, _goes_on),
    Scenario("generations: load all of R", _nothing, _task(_load), _goes_on, _read),
]
