"""Which counters are which operations of the papers' cost formulas, by kind of loop."""

from __future__ import annotations

from semistream.engine.algorithm import Counters, Pricing

WAITING: dict[str, Counters] = {"c_A": ("appended",), "c_E": ("expired",)}
STREAM: dict[str, Counters] = {"c_S": ("tuples_in",), "c_C": ("chunks",)}
PROBE: dict[str, Counters] = {"c_H": ("cache_hits", "cache_misses")}
BUILD: dict[str, Counters] = {"c_H_S": ("master_rows_probed",), "c_T": ("iterations",)}
OUTPUT: dict[str, Counters] = {"c_O": ("rows_out",)}
SWITCH: dict[str, Counters] = {"c_B": ("switched",)}
LOOKUP: dict[str, Counters] = {"c_L": ("master_rows_probed",), "c_P": ("pages_read",), "c_T": ("iterations",)}
FREQUENCY: dict[str, Counters] = {"c_F": ("frequency_checks",)}

MESH = Pricing({**STREAM, **WAITING, **BUILD, **OUTPUT}, seeks="r_cycles")
CACHE = {**STREAM, **PROBE, **WAITING, **BUILD, **OUTPUT, **FREQUENCY, **SWITCH}
HYBRID = Pricing({**STREAM, **WAITING, **BUILD, **OUTPUT})
HAND_OVER: dict[str, Counters] = {**CACHE, "c_AI": ("intermediate_appends",), "c_C": ("chunks", "handovers")}
BLOCKS = {**STREAM, **WAITING, **LOOKUP, **OUTPUT, "c_L": ("tuples_in", "master_rows_probed")}
