"""Every figure by its name, in the order of the papers, ours behind them."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from semistream.errors import ConfigError
from semistream.lab.figure import Figure
from semistream.lab.figures import (
    ablation,
    arrival_memory,
    beyond,
    bursts,
    cache_share,
    cost_validation,
    datasets,
    distribution,
    drifting,
    inequality,
    intermediate_buffer,
    main_memory,
    matching,
    memory_needed,
    memory_over_time,
    peers,
    rate_memory,
    rate_size,
    rate_skew,
    sensitivity,
    spark_peers,
    times,
    tuning,
)
from semistream.lab.figures.papers import PAPERS, figure_name

_OF_THE_PAPERS = (
    arrival_memory,
    bursts,
    cache_share,
    cost_validation,
    datasets,
    distribution,
    inequality,
    intermediate_buffer,
    main_memory,
    matching,
    memory_needed,
    rate_memory,
    rate_size,
    rate_skew,
    sensitivity,
    times,
    tuning,
)
_OURS = (peers, spark_peers, beyond, drifting, memory_over_time, ablation)


def _place(figure: Figure) -> tuple[int, str]:
    paper, _, number = figure.id.partition("-")
    return list(PAPERS).index(paper), number


FIGURES: dict[str, Figure] = {
    figure.id: figure
    for figure in (
        *sorted((figure for module in _OF_THE_PAPERS for figure in module.FIGURES), key=_place),
        *(figure for module in _OURS for figure in module.FIGURES),
    )
}


def chosen(names: Sequence[str] | None) -> list[Figure]:
    """The figures of these names, all without any; in the registry's order."""
    wanted = {figure_name(name): name for name in names or ()}
    for known, name in wanted.items():
        if known not in FIGURES:
            near = difflib.get_close_matches(known, FIGURES, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else "`semistream reproduce --list` shows all"
            raise ConfigError(f"there is no figure {name!r}; {hint}")
    return [figure for figure in FIGURES.values() if not wanted or figure.id in wanted]
