"""PARTITIONJOIN: ranges of R in memory, and a waiting area for each of the others."""

from __future__ import annotations

import math

import numpy as np

from semistream.cost.blocks import block_tables
from semistream.cost.model import Prediction, group_shares, needed_pages, predict
from semistream.cost.probability import Floats
from semistream.cost.profile import CostProfile
from semistream.cost.setting import Setting
from semistream.master.base import ALIGNMENT

_PARTITION_BYTES = 256 << 10
_LEAST_PARTITIONS = 16
_DEADLINE_FILLS = 10
_LIST_BYTES = 12
_LEAST_GROUP = 64
#: utilities are halved after eight stream tuples per page: on average they hold twelve
_WINDOW_PER_PAGE = 12.0


def partition_join(s: Setting, profile: CostProfile) -> Prediction:
    """PARTITIONJOIN; described in ssbj2019 section 2.3 and oxhybridjoin2012 section 2, without an equation.

    Memory: M = h_S·v_S + l·v_P + 32 bytes per partition + 4 bytes per page, l partitions in memory.
    Cost:   c_loop = c_I/O(partition) + w·(c_S + c_L + c_O) + w_S·(c_A + c_L + c_E).

    The partition with the most waiting tuples is loaded, so all are loaded at about the same number n and hold n/2 on
    average: n = 2·h_S over the partitions that are not in memory, whatever the skew. A partition that is asked for too
    rarely to get there before the deadline is loaded with fewer.

    Options: cache_share, partition_pages, deadline.
    """
    pages = _partition_pages(s)
    partitions = max(-(-s.n_pages // pages), 1)
    room = block_tables(s, partitions, _LIST_BYTES)
    places = room.frames // pages
    hit, shares, n = _in_memory(s, partitions, places, room.h_S)
    missed = max(1.0 - hit, 1e-9)
    deadline = s.options.get("deadline", _DEADLINE_FILLS * room.h_S) * missed
    n_of = [max(min(n, deadline * share), 1.0) for share in shares.tolist() if share > 0]
    loads = sum(share / number for share, number in zip(shares[shares > 0].tolist(), n_of, strict=True)) * missed
    if s.drained:
        waiting = s.batch * missed
        rest = min(room.h_S, waiting)
        loads = (max(waiting - rest, 0.0) * loads / missed + needed_pages(shares, rest)) / s.batch
    group = room.division.pages if s.direct else max(room.division.buffer // max(s.held_bytes, 64), _LEAST_GROUP)
    reads = loads * math.ceil(pages / group)
    read_pages = min(pages, s.n_pages)
    counts = {
        "cache_hits": hit,
        "cache_misses": missed,
        "appended": missed,
        "expired": missed,
        "iterations": loads,
        "reads": reads,
        "pages_read": loads * read_pages,
        "bytes_read": loads * read_pages * s.v_P + reads * ALIGNMENT
        if s.direct
        else loads * read_pages * s.page_rows * s.row_bytes,
        "master_rows_probed": 1.0,
    }
    w_S = missed / loads if loads else math.inf
    return predict(
        "partitionjoin",
        s,
        profile,
        counts,
        room.division,
        memory=room.memory,
        symbols={"l": places, "h_S": room.h_S, "w_N": w_S * hit / missed, "w_S": w_S, "p_N": hit},
        delay=room.h_S,
        longest_delay=deadline / missed,
    )


def _in_memory(s: Setting, partitions: int, places: int, h_S: float) -> tuple[float, Floats, float]:
    """Share of the stream that partitions in memory answer, the shares of those that are loaded, and n.

    A partition just loaded is worth the n tuples that waited for it. It takes the place of any that answered fewer
    lately, so only those above stay; the other places go round.
    """
    shares = np.sort(group_shares(s.keys, partitions, s.order == "frequency"))[::-1]
    n = 2.0 * h_S / max(partitions - places, 1)
    worth = shares * _WINDOW_PER_PAGE * max(s.n_pages, 1)
    stay = min(int(np.count_nonzero(worth > n)), places)
    rest = shares[stay:]
    total = float(rest.sum())
    if total <= 0:
        return 1.0, rest, n
    # A partition is loaded as often as it is asked for, so it is met in memory with its share.
    going_round = (places - stay) * float((rest * rest).sum()) / total
    return min(float(shares[:stay].sum()) + going_round, 1.0), rest / total, n


def _partition_pages(s: Setting) -> int:
    pages = max(s.n_pages, 1)
    if "partition_pages" in s.options:
        return min(int(s.options["partition_pages"]), pages)
    page_bytes = max(s.page_rows * s.row_bytes, 1.0)
    return max(min(int(_PARTITION_BYTES / page_bytes), -(-pages // _LEAST_PARTITIONS)), 1)
