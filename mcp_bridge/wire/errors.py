"""The two errors of the channel, which tell whose fault it is."""

from mcp_bridge.wire.annotations import TYPE_CHECKING

if TYPE_CHECKING:
    from mcp_bridge.error_codes import Code


class WireError(Exception):
    """The other side sent an invalid message.

    Attributes:
        code: `frame_too_large`, `frame_too_deep`, `bad_frame` (not JSON, or not JSON-RPC), `bad_params`,
            `unknown_method`, `unexpected_response`.
        excerpt: The first bytes of the message as printable ASCII, for the operator.
    """

    def __init__(self, code: "Code", message: str, excerpt: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.excerpt = excerpt


class LocalMessageError(ValueError):
    """This side tried to send a value that isn't JSON, or that exceeds a limit of the channel.

    Attributes:
        code: `not_json`, `frame_too_large`, `frame_too_deep`, `bad_params`.
    """

    def __init__(self, code: "Code", message: str) -> None:
        super().__init__(message)
        self.code = code
