"""Calls a service that OpenAPI describes. `mcp-bridge --config examples/openapi/mcp-bridge.toml run examples/openapi/pets.py`"""  # noqa: E501

from mcp import ToolError
from mcp.servers import petstore

rex = await petstore.get_pet(id=1)
number = await petstore.create_pet(name="Ada", kind="bird")
birds = await petstore.list_pets(kind="bird")
print(f"{rex['name']}, and {birds[str(number)]['name']} is number {number}")
try:
    await petstore.get_pet(id=99)
except ToolError as error:
    print(error)
print(hasattr(petstore, "delete_pet"))
