"""Sorted sweeps over exactly the pages some tuples need, as a formula; shared as `operators/lookup.py` is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from semistream.cost.division import Division
from semistream.cost.model import needed_pages, page_runs
from semistream.cost.probability import Floats
from semistream.cost.setting import Setting
from semistream.master.base import ALIGNMENT
from semistream.operators.lookup import DEFAULT_GAP_BYTES

_LEAST_GROUP = 64


@dataclass(frozen=True)
class Sweep:
    """One sweep: pages needed, reads, bytes, and groups of pages that were worked off one after another."""

    pages: float
    reads: float
    bytes: float
    groups: float


def sweep(s: Setting, division: Division, shares: Floats, tuples: float) -> Sweep:
    """A sweep for `tuples` tuples, which ask for pages with these shares.

    Mapped pages cost no read call; what is counted is runs of neighbours. Direct reads go through the disk buffer, over
    gaps that are cheaper to read than to jump, as far as the buffer reaches: a gap takes room there as a page does. A
    direct read begins and ends on whole blocks.
    """
    n_pages = max(s.n_pages, 1)
    pages = max(needed_pages(shares, tuples), min(tuples, 1e-9))
    if not s.direct:
        group = max(division.buffer // max(s.held_bytes, 64), _LEAST_GROUP)
        groups = _groups(pages, group, n_pages)
        return Sweep(pages, page_runs(pages, n_pages, 0.0), pages * s.page_rows * s.row_bytes, groups)
    widest = math.floor(s.options.get("gap_bytes", DEFAULT_GAP_BYTES) / s.v_P)
    gaps = np.arange(min(widest, max(division.pages - 2, 0)) + 1)
    density = min(pages / n_pages, 1.0)
    # The way to the next needed page is geometric, and the buffer may have no room left for a wide gap.
    merged = density * (1.0 - density) ** gaps * (1.0 - gaps / max(division.pages - 1, 1))
    over = float((gaps * merged).sum())
    groups = max(pages * (1.0 + over) / division.pages, min(pages, 1.0))
    # A group may also end in the middle of a run.
    joined = float(merged.sum())
    runs = pages * (1.0 - joined) + groups * joined / 2
    reads = min(max(runs, groups, min(pages, 1.0)), pages)
    return Sweep(pages, reads, pages * (1.0 + over) * s.v_P + reads * ALIGNMENT, groups)


def _groups(pages: float, group: float, n_pages: int) -> float:
    """Groups of `group` pages on average: whole ones, of needed pages whose number varies from sweep to sweep."""
    empty = max(1.0 - pages / n_pages, 1e-12)
    spread = math.sqrt(max(n_pages * (empty - (1.0 - math.log(empty)) * empty**2), 1e-12))
    more = (math.erfc((full * group + 0.5 - pages) / (spread * math.sqrt(2.0))) / 2 for full in range(1, 64))
    return min(pages, 1.0) + (sum(more) if pages < 32 * group else pages / group - 0.5)


def chunk_tuples(s: Setting, division: Division) -> float:
    """Tuples per chunk on average: a batch is cut into chunks, the last one short."""
    return s.batch / -(-s.batch // division.chunk)
