"""A service of FastAPI's, which makes its own OpenAPI document, and counts what reaches it."""

import asyncio
import json
from typing import Annotated

from fastapi import Cookie, FastAPI, File, Form, Header, Path, Query, Request, Security, UploadFile
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from fastapi.security import APIKeyHeader, APIKeyQuery, HTTPBasic, HTTPBearer
from pydantic import BaseModel, Field

PNG = bytes.fromhex("89504e470d0a1a0a0000000d49484452")


class Pet(BaseModel):
    id: int = Field(json_schema_extra={"readOnly": True}, default=0)
    name: str
    tags: list[str] = []
    parent: "Pet | None" = None


class Petstore:
    """The service.

    Attributes:
        app: The application.
        seen: The method and the path of each request, and its headers.
        queries: The parameters of each one's query, decoded, as JSON.
        answers: What the next requests are answered with, before what the service would.
    """

    def __init__(self):
        self.seen = []
        self.queries = []
        self.answers = []
        self.pets = {1: Pet(id=1, name="Rex", tags=["dog"]), 2: Pet(id=2, name="Tom", tags=["cat", "old"])}
        self.app = FastAPI(title="Petstore", version="1.0.0")
        self.app.middleware("http")(self._noted)
        self._add_pets()
        self._add_others()

    def paths(self, method=None):
        """What was asked for, without the document."""
        asked = [(verb, path) for verb, path, _ in self.seen if not path.startswith("/openapi.json")]
        return [path for verb, path in asked if verb == method] if method else [path for _, path in asked]

    async def _noted(self, request: Request, call_next):
        target = request.scope["raw_path"].decode()
        query = request.scope["query_string"].decode()
        self.seen.append((request.method, f"{target}?{query}" if query else target, dict(request.headers)))
        self.queries.append(json.dumps(request.query_params.multi_items()))
        if self.answers and request.url.path != "/openapi.json":
            answer = self.answers.pop(0)
            return await answer(request) if callable(answer) and not isinstance(answer, Response) else answer
        return await call_next(request)

    def _add_pets(self):
        app = self.app

        @app.get("/pets/{id}", operation_id="get_pet", summary="Find a pet by its id")
        def get_pet(number: Annotated[int, Path(alias="id", description="Its number.")]) -> Pet:
            missing = JSONResponse({"detail": f"no pet {number}"}, 404)
            return self.pets.get(number, missing)

        @app.get("/pets", operation_id="list_pets")
        def list_pets(
            tag: Annotated[list[str] | None, Query()] = None,
            limit: int = 10,
            x_trace: Annotated[str | None, Header()] = None,
        ) -> list[Pet]:
            found = [pet for pet in self.pets.values() if not tag or set(tag) & set(pet.tags)]
            return found[:limit]

        @app.post("/pets", operation_id="create_pet", status_code=201)
        def create_pet(pet: Pet, response: Response) -> Pet:
            pet.id = len(self.pets) + 1
            self.pets[pet.id] = pet
            response.headers["location"] = f"/pets/{pet.id}"
            return pet

        @app.put("/pets/{id}", operation_id="replace_pet")
        def replace_pet(number: Annotated[int, Path(alias="id")], pet: Pet) -> Pet:
            self.pets[number] = pet
            return pet

        @app.delete("/pets/{id}", operation_id="delete_pet", status_code=204)
        def delete_pet(number: Annotated[int, Path(alias="id")]) -> None:
            self.pets.pop(number, None)

        @app.post("/pets/{id}/photo", operation_id="add_photo")
        async def add_photo(
            number: Annotated[int, Path(alias="id")],
            photo: Annotated[UploadFile, File()],
            caption: Annotated[str, Form()] = "",
        ) -> dict:
            data = await photo.read()
            return {"name": photo.filename, "type": photo.content_type, "size": len(data), "caption": caption}

        @app.get("/pets/{id}/photo", operation_id="get_photo", response_class=Response)
        def get_photo(number: Annotated[int, Path(alias="id")]):
            return Response(PNG, media_type="image/png")

    def _add_others(self):
        app = self.app

        @app.post("/login", operation_id="login")
        def login(user: Annotated[str, Form()], tags: Annotated[list[str] | None, Form()] = None) -> dict:
            response = JSONResponse({"user": user, "tags": tags})
            response.set_cookie("session", "of-the-caller")
            return response

        @app.get("/echo/{text}", operation_id="echo", response_class=PlainTextResponse)
        def echo(text: str, mood: Annotated[str | None, Cookie()] = None) -> str:
            return f"{text} {mood}"

        @app.get("/away", operation_id="away")
        def away(to: str) -> dict:
            return RedirectResponse(to)

        @app.get("/slow", operation_id="slow")
        async def slow() -> dict:
            await asyncio.sleep(30)
            return {}

        @app.get("/headers", operation_id="headers")
        def headers(
            request: Request,
            _key: Annotated[
                str | None, Security(APIKeyHeader(name="X-Key", scheme_name="key", auto_error=False))
            ] = None,
        ) -> dict:
            return {"headers": dict(request.headers), "query": str(request.query_params)}

        @app.get("/by_query", operation_id="by_query")
        def by_query(
            request: Request,
            _key: Annotated[
                str | None, Security(APIKeyQuery(name="api_key", scheme_name="query_key", auto_error=False))
            ] = None,
        ) -> dict:
            return {"query": str(request.query_params)}

        @app.get("/by_basic", operation_id="by_basic")
        def by_basic(
            request: Request,
            _user: Annotated[object, Security(HTTPBasic(scheme_name="user", auto_error=False))] = None,
        ) -> dict:
            return {"authorization": request.headers.get("authorization")}

        @app.get("/by_bearer", operation_id="by_bearer")
        def by_bearer(
            request: Request,
            _token: Annotated[object, Security(HTTPBearer(scheme_name="token", auto_error=False))] = None,
        ) -> dict:
            return {"authorization": request.headers.get("authorization")}
