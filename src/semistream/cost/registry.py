"""Every formula by the name of its operator."""

from __future__ import annotations

from collections.abc import Callable

from semistream.cost.cache_join import cache_join
from semistream.cost.division import divide
from semistream.cost.hybrid_join import hybrid_join
from semistream.cost.inlj import inlj
from semistream.cost.mesh_join import mesh_join
from semistream.cost.model import Prediction, predict
from semistream.cost.opcache_join import opcache_join
from semistream.cost.ordered_join import ordered_join
from semistream.cost.oxhybrid_join import oxhybrid_join
from semistream.cost.partition_join import partition_join
from semistream.cost.pcache_join import pcache_join
from semistream.cost.profile import CostProfile
from semistream.cost.rmesh_join import rmesh_join
from semistream.cost.setting import Setting
from semistream.cost.ssbj import ssbj
from semistream.cost.ssij import ssij
from semistream.cost.ssj import ssj
from semistream.cost.sweep_join import sweep_join
from semistream.cost.xhybrid_join import xhybrid_join
from semistream.errors import IndexRequiredError
from semistream.operators.registry import resolve

Formula = Callable[[Setting, CostProfile], Prediction]

MODELS: dict[str, Formula] = {
    "inlj": inlj,
    "orderedjoin": ordered_join,
    "partitionjoin": partition_join,
    "ssij": ssij,
    "meshjoin": mesh_join,
    "hybridjoin": hybrid_join,
    "xhybridjoin": xhybrid_join,
    "oxhybridjoin": oxhybrid_join,
    "rmeshjoin": rmesh_join,
    "ssj": ssj,
    "cachejoin": cache_join,
    "pcachejoin": pcache_join,
    "opcachejoin": opcache_join,
    "ssbj": ssbj,
    "sweepjoin": sweep_join,
}


def predict_join(algorithm: str, setting: Setting, profile: CostProfile) -> Prediction:
    """What an operator, by name or alias, will do and cost in a setting; with R empty no tuple waits."""
    operator = resolve(algorithm)
    if operator.needs_index and not setting.has_index:
        raise IndexRequiredError(
            f"{operator.name} looks keys up through an index, and this master data has none; build a page store "
            "with semistream.build_pages, or use a scan operator: meshjoin, rmeshjoin, ssj, ssbj"
        )
    if setting.R_t == 0:
        nothing = {"cache_hits": 0.0, "cache_misses": 0.0, "rows_out": 0.0, "unmatched": 1.0}
        return predict(operator.name, setting, profile, nothing, divide(setting), memory={}, symbols={})
    return MODELS[operator.name](setting, profile)
