"""After the hot keys change completely, the caches find the new ones.

A scan operator learns once an R-cycle, so its time is counted in cycles; an index operator learns from the
tuples it serves, so its time is counted in tuples, as a multiple of those its cache holds.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from semistream import SemiStreamJoin, build_pages, open_join
from semistream.algorithms.registry import ALGORITHMS
from semistream.lab.workloads.relation import (
    KEY,
    MASTER_ROW_BYTES,
    STREAM_SCHEMA,
    master_table,
    stream_batches,
)

#: These promise an adaptive cache. Others may have none, or one that is filled once by design.
PROMISED = ("cachejoin", "ssbj", "ssj", "sweepjoin")
KEYS = 30_000
MEMORY = KEYS * MASTER_ROW_BYTES // 6
WINDOW = 10_000
CYCLES = 30
#: cachefuls of tuples for those that promise it; others are to get there as well, in twice the time
CACHE_FILLS, CACHE_FILLS_UNPROMISED = 20, 40


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("adaptive") / "r"
    build_pages(master_table(KEYS, seed=1), path, on=KEY, page_rows=32)
    return path


class Stream:
    """An endless Zipf stream through a join; the seed of the hot keys can change at any time."""

    def __init__(self, join: SemiStreamJoin) -> None:
        self.join = join
        self.position = 0

    def hit_rate(self, hot_seed: int, windows: int = 1) -> float:
        """Push so many windows; the share of their tuples that the cache answered."""
        stats = self.join.stats
        hits, asked = stats.cache_hits, stats.cache_hits + stats.cache_misses
        rows = windows * WINDOW
        for batch in stream_batches(rows, KEYS, seed=3, start=self.position, batch_rows=WINDOW // 5, hot_seed=hot_seed):
            for _ in self.join.push(batch):
                pass
        self.position += rows
        return (stats.cache_hits - hits) / (stats.cache_hits + stats.cache_misses - asked)


def test_hit_rate_recovers(operator: str, store: Path) -> None:
    kind = ALGORITHMS[operator]
    with open_join(operator, master=store, on=KEY, memory=MEMORY, stream_schema=STREAM_SCHEMA) as join:
        stream, stats = Stream(join), join.stats
        stream.hit_rate(11, 30)
        while kind.access == "scan" and stats.r_cycles < CYCLES:
            stream.hit_rate(11, 5)
        level = stream.hit_rate(11, 5)
        if operator in PROMISED:
            assert level > 0.25, "the cache does not find the hot keys in the first place"
        elif level < 0.05 or kind.wants_frequency_order:
            return

        cycles, tuples = stats.r_cycles, stats.tuples_in
        assert stream.hit_rate(12) < level, "the change of the hot keys does not show"
        if kind.access == "scan":
            while stats.r_cycles < cycles + CYCLES:
                stream.hit_rate(12)
        else:
            holds = join.memory.peak["cache"] // MASTER_ROW_BYTES
            fills = CACHE_FILLS if operator in PROMISED else CACHE_FILLS_UNPROMISED
            while stats.tuples_in < tuples + fills * holds:
                stream.hit_rate(12)
        after = float(np.mean([stream.hit_rate(12) for _ in range(5)]))
        assert after >= 0.9 * level, f"hit rate {level:.3f} before the change of hot keys, {after:.3f} after"
