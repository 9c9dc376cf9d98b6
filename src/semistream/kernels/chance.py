"""What a count says of the frequency behind it: it may be off by its own spread."""

from __future__ import annotations

from typing import Any

import numpy as np

from semistream.kernels.compiled import Both


@Both
def beyond_chance(border: Any, spreads: Any) -> Any:
    """Counts n above this have n - spreads * sqrt(n) above the border; numbers and arrays, in kernels and outside."""
    return border + 0.5 * spreads * spreads + spreads * np.sqrt(border + 0.25 * spreads * spreads)
