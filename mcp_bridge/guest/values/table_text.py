"""The text of a table that a script displays: so many rows and columns of it, aligned."""

from mcp_bridge.wire.annotations import Any

MAX_ROWS = 50
MAX_COLUMNS = 20
MAX_CELL_CHARS = 60

BETWEEN = "  "


def table(thing: Any) -> str | None:
    """A table as compact text: of pandas, or two or more dicts with the same kind of names; None for anything else."""
    if type(thing).__module__.partition(".")[0] == "pandas":
        return _of_pandas(thing)
    if isinstance(thing, list) and len(thing) > 1 and all(_is_row(row) for row in thing):
        columns = list(dict.fromkeys(name for row in thing for name in row))
        rows = [[_text(row.get(name, "")) for name in columns[:MAX_COLUMNS]] for row in _ends(thing)]
        return _aligned(columns, rows, len(thing))
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
    names = [_text(name) for name in list(columns)]
    half = MAX_ROWS // 2
    parts = [thing] if shape[0] <= MAX_ROWS else [thing.head(half), thing.tail(half)]
    rows = [
        [_text(value) for value in row[: MAX_COLUMNS + 1]]
        for part in parts
        for row in part.itertuples(index=True, name=None)
    ]
    return _aligned(["", *names], rows, shape[0], index=1)


def _ends(rows: list[Any]) -> list[Any]:
    half = MAX_ROWS // 2
    return rows if len(rows) <= MAX_ROWS else rows[:half] + rows[-half:]


def _aligned(columns: list[str], rows: list[list[str]], count: int, index: int = 0) -> str:
    shown = [_text(name) for name in columns[: MAX_COLUMNS + index]]
    widths = [max([len(name), *(len(row[at]) for row in rows)]) for at, name in enumerate(shown)]
    lines = [_line(row, widths) for row in (shown, *rows)]
    if count > len(rows):
        lines.insert(1 + MAX_ROWS // 2, "…")
    if count > len(rows) or len(columns) > len(shown):
        lines.append(f"[{count} rows, {len(columns) - index} columns]")
    return "\n".join(lines)


def _line(row: list[str], widths: list[int]) -> str:
    return BETWEEN.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _text(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    text = " ".join(text[: 4 * MAX_CELL_CHARS].split())
    return text if len(text) <= MAX_CELL_CHARS else f"{text[: MAX_CELL_CHARS - 1]}…"
