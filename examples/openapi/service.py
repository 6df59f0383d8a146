"""A service that knows nothing of MCP. `uvicorn --app-dir examples/openapi service:app --port 8080` starts it."""

import os
from typing import Annotated

from fastapi import FastAPI, HTTPException, Security
from fastapi.security import APIKeyHeader
from pydantic import BaseModel

app = FastAPI(title="Petstore")


class Pet(BaseModel):
    name: str
    kind: str = "dog"


PETS = {1: Pet(name="Rex"), 2: Pet(name="Tom", kind="cat")}


def checked(key: Annotated[str | None, Security(APIKeyHeader(name="X-Key", scheme_name="key", auto_error=False))]):
    if key != os.environ["PETSTORE_KEY"]:
        raise HTTPException(401, "wrong key")


@app.get("/pets", operation_id="list_pets", summary="All pets, by their ids")
def list_pets(kind: str | None = None) -> dict[int, Pet]:
    return {number: pet for number, pet in PETS.items() if kind in {None, pet.kind}}


@app.get("/pets/{id}", operation_id="get_pet", summary="One pet")
def get_pet(id: int) -> Pet:  # noqa: A002
    if id not in PETS:
        raise HTTPException(404, f"there is no pet {id}")
    return PETS[id]


@app.post("/pets", operation_id="create_pet", summary="A new pet", dependencies=[Security(checked)])
def create_pet(pet: Pet) -> int:
    number = max(PETS) + 1
    PETS[number] = pet
    return number


@app.delete("/pets/{id}", operation_id="delete_pet", summary="Forget a pet", dependencies=[Security(checked)])
def delete_pet(id: int) -> None:  # noqa: A002
    PETS.pop(id, None)
