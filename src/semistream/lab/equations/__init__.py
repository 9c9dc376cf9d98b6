"""The papers' equations as they are printed, one file per paper; a function's name carries the equation's number.

Parameters are the papers' symbols: sizes in tuples, pages or bytes as the paper counts them, unit costs in nanoseconds,
times in seconds. c_I/O is a function of what is read, as in the papers. Nothing is improved: where an equation leaves
something out or has a misprint, its docstring says so, and the one that we hold for right stands beside it with
`_corrected` in its name. What operators are predicted by is elsewhere (`predict/`, `loops/`, `algorithms/`); the
docstrings say where that differs and why.
"""

from __future__ import annotations

from collections.abc import Callable

#: c_I/O: nanoseconds to read so many tuples or bytes
Reading = Callable[[float], float]
EULER_GAMMA = 0.5772156649015329
