"""What the operations of a document share, and how the parts of it are decoded. Runs in the compiler's process."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from openapi_pydantic.v3 import v3_0, v3_1
from pydantic import ValidationError

from mcp_bridge.downstream.openapi.document_text import DocumentError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from mcp_bridge.downstream.openapi.compiled_service import SecurityScheme
    from mcp_bridge.downstream.openapi.document_references import References
    from mcp_bridge.downstream.openapi.schema_references import SchemaReferences

Json = dict[str, Any]

MEDIA_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+*-]{1,100}/[A-Za-z0-9!#$&^_.+*-]{1,100}(;[\x20-\x7e]{0,100})?")


class Document(NamedTuple):
    """What all operations of a document share.

    Attributes:
        references: Resolves its references.
        schemas: Resolves those of its schemas.
        is_30: Whether it is of version 3.0.
        schemes: The security schemes that can be satisfied, by name.
        security: The document's own requirements.
        own_headers: Headers that the configuration sets, in lower case.
    """

    references: References
    schemas: SchemaReferences
    is_30: bool
    schemes: Mapping[str, SecurityScheme]
    security: Any
    own_headers: Collection[str]

    def decoded(self, kind: str, value: Any, fields: Collection[str], *, unused: str | None = None) -> Any:
        """The part of a value that is used, decoded by the library's model.

        Args:
            kind: The name of the model.
            value: The value.
            fields: Its members that are used.
            unused: A mapping that the model wants and that is looked at elsewhere.

        Raises:
            DocumentError: It isn't what it has to be.
        """
        if not isinstance(value, dict):
            raise DocumentError(f"has a {kind} that is no mapping")
        model = getattr(v3_0 if self.is_30 else v3_1, kind)
        try:
            used = {key: each for key, each in value.items() if key in fields}
            return model.model_validate(used if unused is None else used | {unused: {}})
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise DocumentError(f"has an invalid {kind}: {where}: {first['msg']}"[:300]) from None
