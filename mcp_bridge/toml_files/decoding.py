"""Tables of the operator's configuration, decoded into frozen models with errors that name file, line and key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from mcp_bridge.errors import BridgeError
from mcp_bridge.near_names import suggestion
from mcp_bridge.toml_files.line_numbers import line_of
from mcp_bridge.toml_files.refused_values import example, said

if TYPE_CHECKING:
    from pathlib import Path

Model = TypeVar("Model", bound=BaseModel)


def decode(model: type[Model], table: Any, file: Path | None, *path: str) -> Model:
    """Decode one table.

    Args:
        model: What it is decoded into; keys that it doesn't have are refused.
        table: The table, as the TOML reader gives it.
        file: Where it came from, or None.
        path: The table's key and those it is in.

    Raises:
        BridgeError: `bad_config`. What was given for a key is never repeated: it may be a secret.
    """
    if not isinstance(table, dict):
        raise bad_config("is a table", file, *path, hint=f"Write [{'.'.join(path)}].")
    try:
        return model.model_validate(table)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_context=False, include_input=False)[0]
        keys = tuple(str(part) for part in first["loc"] if not isinstance(part, int))
        if first["type"] == "extra_forbidden":
            hint = suggestion(keys[-1], model.model_fields, "Keys")
            raise bad_config("is no key that there is", file, *path, *keys, hint=hint) from None
        message = said(first)
        raise bad_config(f": {message[0].lower()}{message[1:]}", file, *path, *keys, hint=example(first)) from None


def bad_config(message: str, file: Path | None, *path: str, hint: str | None = None) -> BridgeError:
    """An error about the key at `path`; `message` follows its name and has no full stop."""
    line = line_of(file, *path) if file else None
    where = f"{file}, line {line}: " if line else f"{file}: " if file else ""
    key = ".".join(path)
    joined = message if message.startswith(":") else f" {message}"
    return BridgeError(
        "bad_config", f"{where}{key}{joined}.", hint=hint, file=str(file) if file else None, line=line, key=key
    )
