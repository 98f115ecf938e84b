"""Numbers as the reports write them."""

from __future__ import annotations

import math

__all__ = [
    "PERCENT",
    "as_count",
    "as_number",
    "as_p",
    "as_percent",
    "as_signed",
    "decimals_of",
    "mean",
    "nice_ticks",
    "sd",
]

PERCENT = "\N{NO-BREAK SPACE}%"  # stays with its number
NO_VALUE = "no value"


def as_number(value: float | None, decimals: int = 4) -> str:
    """Return a figure with so many decimals; "no value" for None and NaN.

    Example:
        >>> as_number(0.12345), as_number(1234.5, 1), as_number(None)
        ('0.1235', '1,234.5', 'no value')
    """
    return NO_VALUE if value is None or math.isnan(value) else f"{value:,.{decimals}f}"


def as_signed(value: float | None, decimals: int = 4) -> str:
    """Return a difference, its sign in front.

    Example:
        >>> as_signed(0.00021, 5), as_signed(-0.1, 2), as_signed(-1e-9, 2)
        ('+0.00021', '-0.10', '0.00')
    """
    if value is None or math.isnan(value):
        return NO_VALUE
    written = f"{value:+,.{decimals}f}"
    return written if float(written.replace(",", "")) else written[1:]


def as_percent(value: float | None) -> str:
    r"""Return a share in percent.

    Example:
        >>> as_percent(0.8225), as_percent(None)
        ('82.2\xa0%', 'no value')
    """
    return NO_VALUE if value is None or math.isnan(value) else f"{100 * value:.1f}{PERCENT}"


def as_count(value: float | None) -> str:
    """Return a whole number.

    Example:
        >>> as_count(49881.0)
        '49,881'
    """
    return as_number(value, 0)


def as_p(value: float | None) -> str:
    """Return a p-value.

    Example:
        >>> as_p(0.0004), as_p(0.0123), as_p(None)
        ('below 0.001', '0.012', 'no value')
    """
    return "below 0.001" if value is not None and value < 0.001 else as_number(value, 3)


def decimals_of(spread: float | None, *, least: int = 0, most: int = 6) -> int:
    """Return how many decimals show a spread, such as a standard deviation, with two digits.

    Args:
        spread: in the unit of the figures; None or 0 where there is none, which gives 4.
        least: decimals.
        most: decimals.

    Example:
        >>> decimals_of(0.00042), decimals_of(3.1), decimals_of(250.0), decimals_of(0.0)
        (5, 1, 0, 4)
    """
    if spread is None or not math.isfinite(spread) or spread <= 0:
        return max(least, min(4, most))
    return max(least, min(most, 1 - math.floor(math.log10(spread))))


def nice_ticks(low: float, high: float, most: int = 5) -> tuple[list[float], int]:
    """Return round numbers within `low` to `high`, at most `most` of them, and the decimals to write them with.

    Example:
        >>> nice_ticks(0.81, 0.96, 4)
        ([0.85, 0.9, 0.95], 2)
        >>> nice_ticks(1, 10, 5)
        ([2.0, 4.0, 6.0, 8.0, 10.0], 0)
    """
    exponent = math.floor(math.log10((high - low) / most))
    for factor in (1, 2, 5, 10, 20):
        power = exponent + (factor >= 10)
        step = factor * 10.0**exponent
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < most:
            break
    decimals = max(0, -power)
    return [round(i * step, decimals) for i in range(first, last + 1)], decimals


def mean(values: list[float]) -> float | None:
    """Return the mean; None of nothing."""
    return sum(values) / len(values) if values else None


def sd(values: list[float]) -> float | None:
    """Return the standard deviation with n - 1; None of fewer than two values.

    Example:
        >>> sd([1.0, 3.0])
        1.414...
    """
    centre = mean(values)
    if centre is None or len(values) < 2:
        return None
    return math.sqrt(sum((value - centre) ** 2 for value in values) / (len(values) - 1))
