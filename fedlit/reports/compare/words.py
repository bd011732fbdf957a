"""Formatting of numbers for the report and the terminal."""

ABSENT = "-"
UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
ALONE = "There is only one method, so there are no differences; add runs of another method."


def size(count: float) -> str:
    """Return a number of bytes with its unit, such as ``1.3 GB``."""
    if count != count:
        return ABSENT
    factor, unit = next((pair for pair in UNITS if count >= pair[0]), UNITS[-1])
    return f"{count / factor:.3g} {unit}"


def number(value: float, form: str = ",.0f") -> str:
    """Return a number as text, ``-`` if it is undefined."""
    if value != value:
        return ABSENT
    text = format(value, form)
    return text.replace("-", "+" if "+" in form else "", 1) if text.strip("-0.") == "" else text


def short(value: float) -> str:
    """Return an AUROC with three decimals, ``-`` if it is undefined."""
    return number(value, ".3f")


def interval_text(low: float, high: float, form: str = ".3f") -> str:
    """Return both ends of an interval, ``-`` if it is undefined."""
    return f"{low:{form}} to {high:{form}}" if low == low else ABSENT
