"""OpenAPI documents of one test, compiled here, and requests built from them."""

import json

from mcp_bridge.downstream.openapi.compiled_service import Order
from mcp_bridge.downstream.openapi.compiler import compile_document
from mcp_bridge.downstream.openapi.requests import Credentials, build

BASE = "https://api.example.com/v1"


def document(paths, *, openapi="3.1.0", **more):
    """A document with these paths."""
    return {
        "openapi": openapi,
        "info": {"title": "x", "version": "1"},
        "servers": [{"url": BASE}],
        "paths": paths,
    } | more


def compiled(text, *, operations=("*",), uri="file:///docs/openapi.json", more=None, outcome=False, **options):
    """The service that a document becomes; or, with `outcome`, all that the compiler says."""
    texts = {uri: text if isinstance(text, str) else json.dumps(text)} | (more or {})
    refused = {"https://evil.example.com/x.json": "is elsewhere"}
    found = compile_document(
        Order(server="petstore", main=uri, documents=texts, operations=operations, refused=refused, **options)
    )
    if outcome:
        return found
    assert found.service is not None, found
    return found.service


def built(service, name, /, *, base_url=BASE, credentials=None, **arguments):
    """The request of a call."""
    return build(service.operations[name], base_url, arguments, Credentials(service.schemes, credentials or {}))
