"""Numbers as a reader wants them: three digits, and k, M, G instead of zeros."""

from __future__ import annotations

import math

_STEPS = ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k"))
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def short(value: float, digits: int = 3) -> str:
    """A number in few characters.

    >>> short(1234567), short(0.25), short(0.0000123), short(0), short(-1500)
    ('1.23 M', '0.25', '1.23×10⁻⁵', '0', '-1.5 k')
    """
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits}g}")
    size = abs(rounded)
    for step, name in _STEPS:
        if size >= step:
            return f"{_plain(rounded / step, digits)}{name}"
    if size < 1e-3:
        mantissa, _, power = f"{rounded:.{digits - 1}e}".partition("e")
        return f"{_plain(float(mantissa), digits)}×10{str(int(power)).translate(_RAISED)}"
    return _plain(rounded, digits)


def _plain(value: float, digits: int) -> str:
    """Without trailing zeros, and never with a power of ten."""
    decimals = max(digits - 1 - math.floor(math.log10(abs(value))), 0)
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
