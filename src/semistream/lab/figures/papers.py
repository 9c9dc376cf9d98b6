"""The papers whose figures are measured, by the word that begins the figures' names.

`ssbj-5a` is figure 5a of the paper `ssbj2019`; docs/papers.md lists the keys. Out folders and commands of earlier
versions number the papers, `000-5a`: these names are still understood, and are translated here and nowhere else.
"""

from __future__ import annotations

#: in the order in which lists and the report show them
PAPERS = {
    "ssbj": "SSBJ (ssbj2019)",
    "ssj": "SSJ (ssj2014)",
    "sscj": "SSCJ, which is CACHEJOIN (sscj2013)",
    "oxhybridjoin": "Optimised X-HYBRIDJOIN (oxhybridjoin2012)",
    "opcachejoin": "P-CACHEJOIN and OP-CACHEJOIN (opcachejoin2020)",
}
_BY_NUMBER = {f"{number:03}": name for number, name in enumerate(PAPERS)}


def figure_name(name: str) -> str:
    """The name of a figure, whose paper may be given by its number.

    >>> figure_name("000-5a"), figure_name("ssbj-5a"), figure_name("peers-batch")
    ('ssbj-5a', 'ssbj-5a', 'peers-batch')
    """
    paper, dash, number = name.partition("-")
    return f"{_BY_NUMBER.get(paper, paper)}{dash}{number}"


def paper_of(figure: str) -> str | None:
    """The paper's word in a figure's name; None for figures of our own.

    >>> paper_of("ssbj-5a"), paper_of("peers-batch")
    ('ssbj', None)
    """
    paper = figure.partition("-")[0]
    return paper if paper in PAPERS else None
