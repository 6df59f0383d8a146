"""The text of a table that a script displays: so many rows and columns of it, aligned.

Floats have six decimals at most, or six digits where they are small; in full where different values of a column would
look the same, or one would look like a whole number. What the script has set of pandas' own display options holds.
"""

import sys
from math import isnan

from mcp_bridge.wire.annotations import Any, Callable, NamedTuple

MAX_ROWS = 50
MAX_COLUMNS = 20
MAX_CELL_CHARS = 60

MOST_ROWS = 5000
MOST_COLUMNS = 500
MOST_CELL_CHARS = 1000
"""Bounds of what the script sets, also where that is none."""

DECIMALS = 6
"""Of a float from 0.1 on; the digits of a smaller one. It is pandas' `display.precision`, too."""

DATE_CHARS = len("2026-01-31")

BETWEEN = "  "


class Form(NamedTuple):
    """How a table is shown.

    Attributes:
        rows: The most rows.
        columns: The most columns.
        cell: The most characters of a cell.
        number: Gives a float's text; None for the shortest one that tells the values of a column apart.
    """

    rows: int = MAX_ROWS
    columns: int = MAX_COLUMNS
    cell: int = MAX_CELL_CHARS
    number: Callable[[float], Any] | None = None


def table(thing: Any) -> str | None:
    """A table as compact text: of pandas, or two or more dicts with the same kind of names; None for anything else."""
    if type(thing).__module__.partition(".")[0] == "pandas":
        return _of_pandas(thing)
    if isinstance(thing, list) and len(thing) > 1 and all(_is_row(row) for row in thing):
        form, names = Form(), list(dict.fromkeys(name for row in thing for name in row))
        half = MAX_ROWS // 2
        rows = thing if len(thing) <= MAX_ROWS else thing[:half] + thing[-half:]
        columns = [_column([row.get(name, "") for row in rows], form) for name in names[:MAX_COLUMNS]]
        return _aligned([_column(names[:MAX_COLUMNS], form)], columns, (len(thing), len(names)))
    return None


def _is_row(row: Any) -> bool:
    return (
        isinstance(row, dict)
        and bool(row)
        and all(isinstance(name, str) for name in row)
        and all(isinstance(value, (str, int, float, bool, type(None))) for value in row.values())
    )


def _of_pandas(thing: Any) -> str | None:
    shape, columns = getattr(thing, "shape", None), getattr(thing, "columns", None)
    if columns is None or not isinstance(shape, tuple) or len(shape) != 2 or not hasattr(thing, "itertuples"):
        return None
    form = _form_of_pandas()
    shown = thing.iloc[:, : form.columns]
    parts = [shown]
    if shape[0] > form.rows:
        half = max(1, form.rows // 2)
        parts = [shown.iloc[:half], shown.iloc[-half:]]
    rows = [_flat(row, shown.index) for part in parts for row in part.itertuples(index=True, name=None)]
    width = shown.index.nlevels + shown.shape[1]
    texts = [_column([row[at] for row in rows], form) for at in range(width)]
    return _aligned(_heads(shown, form), texts, shape, shown.index.nlevels)


def _form_of_pandas() -> Form:
    """What the script has set of pandas' display options, in place of ours."""
    get: Any = sys.modules["pandas"].get_option
    made = Form()
    # Zero lets pandas choose.
    if (rows := get("display.max_rows")) not in {60, 0}:
        made = made._replace(rows=_bounded(rows, MOST_ROWS))
    if (columns := get("display.max_columns")) != 0:
        made = made._replace(columns=_bounded(columns, MOST_COLUMNS))
    if (cell := get("display.max_colwidth")) != 50:
        made = made._replace(cell=_bounded(cell, MOST_CELL_CHARS))
    precision = get("display.precision")
    if (number := get("display.float_format")) is not None:
        made = made._replace(number=number)
    elif precision != DECIMALS:
        made = made._replace(number=lambda value: f"{value:.{precision}f}")
    return made


def _bounded(option: int | None, most: int) -> int:
    return most if option is None else min(option, most)


def _flat(row: tuple[Any, ...], index: Any) -> list[Any]:
    """A row with a value for each level of the index."""
    return [*(row[0] if hasattr(index, "levels") else row[:1]), *row[1:]]


def _heads(shown: Any, form: Form) -> list[list[str]]:
    """The lines above a table: a line for each level of the columns, and the names of all levels."""
    levels, heads = shown.index.nlevels, shown.columns
    named = ["" if name is None else _cut(str(name), form) for name in heads.names]
    lines = [
        [""] * (levels - 1) + [name, *_column(list(heads.get_level_values(level)), form)]
        for level, name in enumerate(named)
    ]
    names = ["" if name is None else _cut(str(name), form) for name in shown.index.names]
    if any(names):
        if named[-1]:
            lines.append(names + [""] * len(heads))
        else:
            lines[-1][:levels] = names
    return lines


def _aligned(heads: list[list[str]], columns: list[list[str]], shape: tuple[int, int], levels: int = 0) -> str:
    widths = [max(map(len, (*(line[at] for line in heads), *column)), default=0) for at, column in enumerate(columns)]
    rows = list(zip(*columns, strict=True))
    lines = [_line(row, widths) for row in (*heads, *rows)]
    if shape[0] > len(rows):
        lines.insert(len(heads) + len(rows) // 2, "…")
    if 0 in shape:
        lines = [line for line in lines if line]
    if 0 in shape or shape[0] > len(rows) or shape[1] > len(columns) - levels:
        lines.append(f"[{shape[0]} rows, {shape[1]} columns]")
    return "\n".join(lines)


def _line(row: Any, widths: list[int]) -> str:
    return BETWEEN.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _column(values: list[Any], form: Form) -> list[str]:
    """The texts of a column's values."""
    number = form.number or _number([float(value) for value in values if isinstance(value, float) and not isnan(value)])
    is_dates = all(_is_date(value) for value in values)
    texts = []
    for value in values:
        if isinstance(value, float):
            text = "NaN" if isnan(value) else _text(float(value), number)
        else:
            text = _text(value)[:DATE_CHARS] if is_dates else _text(value)
        texts.append(_cut(text, form))
    return texts


def _text(value: Any, make: Callable[[Any], Any] = str) -> str:
    """A value's text; its type's name where the script's own class or format makes none."""
    try:
        return str(make(value))
    except Exception:  # noqa: BLE001  (no table is left out for that)
        return repr(value) if isinstance(value, float) else f"<{type(value).__name__}>"


def _number(values: list[float]) -> Callable[[float], str]:
    """What gives the text of each of these floats, so that it is short and no other's."""
    short = [_rounded(value) for value in values]
    is_told_apart = len(set(short)) == len(set(values))
    if is_told_apart and not any(
        rounded.is_integer() and rounded != value for rounded, value in zip(short, values, strict=True)
    ):
        return lambda value: repr(_rounded(value))
    return repr


def _rounded(value: float) -> float:
    return round(value, DECIMALS) if abs(value) >= 0.1 else float(f"{value:.{DECIMALS}g}")


def _is_date(value: Any) -> bool:
    """Whether a value is a time of pandas at midnight, or none at all: a column of these shows dates."""
    kind = type(value)
    if kind.__module__.partition(".")[0] != "pandas":
        return False
    return kind.__name__ == "NaTType" or (
        kind.__name__ == "Timestamp"
        and value.tzinfo is None
        and not any((value.hour, value.minute, value.second, value.microsecond, value.nanosecond))
    )


def _cut(text: str, form: Form) -> str:
    text = " ".join(text[: 4 * form.cell].split())
    return text if len(text) <= form.cell else f"{text[: form.cell - 1]}…"
