"""What clients can read: artifacts, traces, programs, and the JSON Schema of programs."""

from __future__ import annotations

import base64
import json
import mimetypes
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import mcp_types as types

from mcp_bridge.bridge.names import PRINCIPAL
from mcp_bridge.bridge.program_record import told
from mcp_bridge.kernel.format import json_schema

if TYPE_CHECKING:
    from mcp_bridge.bridge.service import Bridge

SCHEMA_URI = "program-schema://v1"
PROGRAM_SCHEME = "program"
TRACE_SCHEME = "trace"

JSON = "application/json"


async def listed(bridge: Bridge) -> list[types.Resource]:
    """The schema and the programs.

    Artifacts and traces are named by the answers that made them: a list over all conversations would help nobody.
    """
    schema = types.Resource(
        uri=SCHEMA_URI, name="program schema", description="JSON Schema of programs", mime_type=JSON
    )
    rows = await bridge.programs.listed(PRINCIPAL)
    return [
        schema,
        *(
            types.Resource(
                uri=f"{PROGRAM_SCHEME}://{quote(row['name'], safe='')}",
                name=row["name"],
                description=row["description"] or None,
                mime_type=JSON,
            )
            for row in rows
        ),
    ]


def templates() -> list[types.ResourceTemplate]:
    """How the addresses are made."""
    return [
        types.ResourceTemplate(
            uri_template=f"{TRACE_SCHEME}://{{trace_id}}",
            name="trace",
            description="An execution of a program or a script",
            mime_type=JSON,
        ),
        types.ResourceTemplate(
            uri_template=f"{PROGRAM_SCHEME}://{{name}}", name="program", description="A program", mime_type=JSON
        ),
    ]


async def read(bridge: Bridge, uri: str) -> types.TextResourceContents | types.BlobResourceContents:
    """One resource.

    Raises:
        BridgeError: `unknown_artifact`, `unknown_trace`, `unknown_program`.
    """
    scheme, _, rest = uri.partition("://")
    rest = unquote(rest).rstrip("/")
    if uri == SCHEMA_URI:
        return _json(uri, json_schema())
    if scheme == TRACE_SCHEME:
        return _json(uri, told(await bridge.programs.stored(rest, PRINCIPAL)))
    if scheme == PROGRAM_SCHEME:
        return _json(uri, (await bridge.programs.find(rest, PRINCIPAL)).program.data)
    blob = base64.b64encode(bridge.files.read(uri)).decode("ascii")
    return types.BlobResourceContents(uri=uri, blob=blob, mime_type=mime_type(uri))


def _json(uri: str, value: Any) -> types.TextResourceContents:
    return types.TextResourceContents(uri=uri, text=json.dumps(value, ensure_ascii=False), mime_type=JSON)


def mime_type(uri: str) -> str:
    """What an artifact's name says it is."""
    # Below a directory: a name may look like a URL with a scheme.
    found, encoding = mimetypes.guess_type("/" + unquote(uri.rpartition("/")[2]))
    return found if found and not encoding else "application/octet-stream"
