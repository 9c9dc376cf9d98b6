"""How many stream tuples an R-cycle can finish at best: the yardstick for every cache policy.

A stream tuple that waits for one R-cycle costs v_S bytes; caching key j costs e + m_j v_R and spares the
waiting of all its tuples. With W tuples per cycle, key j costs at least min(e + m_j v_R, W p_j v_S), and W is
largest where the sum of these is the memory: the cache inequality (ssbj2019, Theorem 2), all known.
"""

from __future__ import annotations

import numpy as np


def optimal_tuples_per_cycle(
    p_j: np.ndarray,
    m_j: np.ndarray,
    v_R: float,
    v_S: float,
    memory: float,
    entry_bytes: float | np.ndarray = 0.0,
) -> float:
    """W* with Σ_j min(entry_bytes + m_j v_R, W* p_j v_S) = memory; infinite when every key fits the cache.

    `entry_bytes` is what a cached key takes besides its tuples: one number, or one for each key. With 0 the
    absence of a key (m_j = 0) is cached for nothing: a third of W* where keys are drawn with repetition.

    The sum is concave and piecewise linear in W with a corner where a key changes from waiting to cached, so
    one sort finds the segment and a division the point on it.

    >>> round(optimal_tuples_per_cycle(np.array([0.5, 0.5]), np.array([1, 100]), 10, 1, 30))
    40
    """
    p = np.asarray(p_j, dtype=np.float64)
    cached = entry_bytes + np.asarray(m_j, dtype=np.float64) * v_R
    if p.shape != cached.shape:
        raise ValueError(f"{p.shape} probabilities for {cached.shape} keys")
    if memory <= 0:
        return 0.0
    seen = p > 0
    p, cached = p[seen], cached[seen]
    corner = cached / (p * v_S)
    order = np.argsort(corner)
    corner, p, cached = corner[order], p[order], cached[order]
    # Past corner i the keys 0 .. i are cached and the others wait.
    cached_bytes = np.concatenate(([0.0], np.cumsum(cached)))
    waiting_share = np.concatenate((np.cumsum(p[::-1])[::-1], [0.0]))
    at_corner = cached_bytes[1:] + corner * waiting_share[1:] * v_S
    segment = int(np.searchsorted(at_corner, memory, side="right"))
    if segment == len(p):
        return float("inf")
    return float((memory - cached_bytes[segment]) / (waiting_share[segment] * v_S))
