"""Models whose building is postponed: the same answers as of those built at once."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from typing import Any

import pydantic
import pytest

from mcp_bridge.server.deferred_models import deferred_models

# Every adapter of the SDK is built and used, and so is each model by way of the schemas.
EVERY_SCHEMA = """
import contextlib, hashlib, importlib, json, pkgutil, sys
import pydantic
from mcp_bridge.server.deferred_models import deferred_models

with deferred_models() if sys.argv[1] == "deferred" else contextlib.nullcontext():
    import mcp_types
    modules = [importlib.import_module(m.name) for m in pkgutil.walk_packages(mcp_types.__path__, "mcp_types.")]
    import mcp.client.session, mcp.server.elicitation, mcp.shared.auth
modules += [mcp.client.session, mcp.server.elicitation, mcp.shared.auth]

models, adapters = {}, {}
for module in modules:
    for name, value in vars(module).items():
        if isinstance(value, type) and issubclass(value, pydantic.BaseModel) and value is not pydantic.BaseModel:
            models[f"{value.__module__}.{value.__qualname__}"] = value
        elif isinstance(value, pydantic.TypeAdapter):
            adapters[f"{module.__name__}.{name}"] = value
complete = sum(model.__pydantic_complete__ for model in models.values())
schemas = {name: value.model_json_schema() for name, value in models.items()}
schemas |= {name: value.json_schema() for name, value in adapters.items()}
errors = {}
for name, value in adapters.items():
    try:
        value.validate_python({"method": "no/such"})
    except pydantic.ValidationError as exc:
        errors[name] = exc.errors(include_url=False)
said = json.dumps([schemas, errors], sort_keys=True, default=str)
print(json.dumps([len(models), len(adapters), complete, hashlib.sha256(said.encode()).hexdigest()]))
"""


def test_every_model_of_the_sdk_means_the_same_when_it_is_built_on_first_use() -> None:
    told = {
        how: json.loads(
            subprocess.run([sys.executable, "-c", EVERY_SCHEMA, how], check=True, capture_output=True, text=True).stdout
        )
        for how in ("deferred", "at once")
    }
    models, adapters, complete, digest = told["deferred"]
    *counts, complete_at_once, digest_at_once = told["at once"]
    assert (counts, digest_at_once) == ([models, adapters], digest)
    assert models > 300
    assert adapters > 5
    assert complete < models / 10 < complete_at_once, "hardly anything is built by the import"


def test_an_adapter_finds_names_of_the_module_that_makes_it() -> None:
    names: dict[str, Any] = {"pydantic": pydantic}
    source = """
class Of(pydantic.BaseModel):
    next: "Of | None" = None
adapter = pydantic.TypeAdapter["list[Of]"]("list[Of]")
whole = pydantic.TypeAdapter(Of)
"""
    with deferred_models():
        exec(source, names)  # noqa: S102 - a module that is imported
    adapter, whole, of = names["adapter"], names["whole"], names["Of"]
    assert not adapter.pydantic_complete
    assert adapter.validate_python([{"next": {}}]) == [of(next=of())]
    assert whole.validate_python({}) == of()


@pytest.mark.parametrize("error", [None, ImportError])
def test_what_is_defined_later_is_built_at_once(error: type[Exception] | None) -> None:
    adapter = pydantic.TypeAdapter
    with contextlib.suppress(ImportError), deferred_models():
        assert pydantic.TypeAdapter is not adapter
        if error:
            raise error

    class Later(pydantic.BaseModel):
        number: int

    assert pydantic.TypeAdapter is adapter
    assert Later.__pydantic_complete__
    assert "defer_build" not in pydantic.BaseModel.model_config
