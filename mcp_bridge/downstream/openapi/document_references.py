"""References between the documents of a service, resolved by `referencing`. Runs in the compiler's process."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urldefrag, urljoin

from referencing import Registry, Resource
from referencing.exceptions import Unresolvable

from mcp_bridge.downstream.openapi.document_text import DocumentError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MAX_CHAIN = 50
"""References in a row, each to the next."""


class Node(NamedTuple):
    """A part of a document, and the URI of that document, which its references are relative to."""

    value: Any
    uri: str


class References:
    """Resolves references.

    Args:
        documents: The documents' data, by URI.
        refused: Why others can't be had, by URI.

    Attributes:
        documents: Likewise.
    """

    def __init__(self, documents: Mapping[str, Any], refused: Mapping[str, str]) -> None:
        self.documents = documents
        self._refused = refused
        # Without a vocabulary: `$id` and `$anchor` would change what references of a document are relative to.
        registry: Registry[Any] = Registry()
        self._registry = registry.with_resources(
            (uri, Resource.opaque(contents)) for uri, contents in documents.items()
        )

    def missing(self) -> list[str]:
        """The URIs of documents that are referred to, and that are neither there nor refused."""
        known = self.documents.keys() | self._refused.keys()
        return sorted({uri for uri in self._external() if uri not in known})

    def _external(self) -> Iterator[str]:
        for base, contents in self.documents.items():
            seen: set[int] = set()
            waiting = [contents]
            while waiting:
                node = waiting.pop()
                if id(node) in seen or not isinstance(node, (dict, list)):
                    continue
                seen.add(id(node))
                if isinstance(node, list):
                    waiting += node
                    continue
                waiting += node.values()
                reference = node.get("$ref")
                if isinstance(reference, str) and reference and not reference.startswith("#"):
                    # What is no address is a fault of what refers to it, and perhaps no reference: an example's.
                    with suppress(DocumentError):
                        yield self.target(reference, base)[0]

    def target(self, reference: str, base: str) -> tuple[str, str]:
        """The URI of the document that a reference leads to, and the place in it."""
        try:
            uri, fragment = urldefrag(urljoin(base, reference))
        except ValueError:
            raise DocumentError(f"refers to {reference[:100]!r}, which is no address") from None
        return uri, fragment

    def resolved(self, node: Node) -> Node:
        """What a node stands for that may be a reference.

        Raises:
            DocumentError: It leads nowhere, or to itself.
        """
        for _ in range(_MAX_CHAIN):
            value = node.value
            reference = value.get("$ref") if isinstance(value, dict) else None
            if not isinstance(reference, str):
                return node
            node = self.look_up(reference, node.uri)
        raise DocumentError("refers to itself")

    def look_up(self, reference: str, base: str) -> Node:
        """What a reference leads to.

        Raises:
            DocumentError: It leads nowhere.
        """
        uri, fragment = self.target(reference, base)
        if (why := self._refused.get(uri)) is not None:
            raise DocumentError(f"refers to {reference[:100]!r}, which {why}")
        try:
            found = self._registry.resolver(uri).lookup(f"#{fragment}" if fragment else uri)
        except (Unresolvable, LookupError, ValueError, TypeError):
            raise DocumentError(f"refers to {reference[:100]!r}, which isn't there") from None
        return Node(found.contents, uri)


def last_name(fragment: str) -> str:
    """The last name of a JSON pointer: `Pet` of `/components/schemas/Pet`."""
    return unquote(fragment.rpartition("/")[2]).replace("~1", "/").replace("~0", "~")
