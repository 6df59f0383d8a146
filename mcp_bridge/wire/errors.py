"""Whose fault it is."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcp_bridge.error_codes import Code


class WireError(Exception):
    """The other side sent something that is no message of this channel.

    Attributes:
        code: `frame_too_large`, `frame_too_deep`, `bad_frame` (not JSON, or not JSON-RPC), `bad_params`,
            `unknown_method`, `unexpected_response`.
        excerpt: The first bytes of what came, as printable ASCII, for the report to the operator.
    """

    def __init__(self, code: "Code", message: str, excerpt: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.excerpt = excerpt


class LocalMessageError(ValueError):
    """We were about to send something that JSON, or the channel's limits, can't carry.

    Attributes:
        code: `not_json`, `frame_too_large`, `frame_too_deep`, `bad_params`.
    """

    def __init__(self, code: "Code", message: str) -> None:
        super().__init__(message)
        self.code = code
