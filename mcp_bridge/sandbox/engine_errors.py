"""Maps an engine's error messages to errors that tell the user what to do.

Engines report every failure with the same exit status and a line of text, so the text is all that can be matched.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError
from mcp_bridge.private_files import READ_ONLY_HINT
from mcp_bridge.sandbox.image.host_tools import disk_full
from mcp_bridge.sandbox.image.store import CONFIGURED_IMAGE_HINT, REPOSITORY

if TYPE_CHECKING:
    from mcp_bridge.error_codes import Code

_TAIL_LINES = 8

_CAUSES: tuple[tuple[Code, str, str, tuple[str, ...]], ...] = (
    (
        "disk_full",
        "The disk is full",
        "Free some space where the engine keeps its containers.",
        ("no space left on device", "disk quota exceeded"),
    ),
    (
        "image_missing",
        "The image isn't on this machine, and images are never pulled",
        "Build one with `mcp-bridge image build`.",
        ("image not known", "no such image", "unable to find image", "not found in local storage"),
    ),
    (
        "no_runtime",
        "The engine does not answer",
        "Run `mcp-bridge doctor`.",
        ("cannot connect to", "is the docker daemon running", "failed to connect to the docker api"),
    ),
    (
        "no_runtime",
        "The engine has no such OCI runtime",
        "Run `mcp-bridge doctor`, or set another OCI runtime.",
        ("unknown runtime", "invalid runtime", "default oci runtime", "no valid executable found for oci runtime"),
    ),
    (
        "image_without_python",
        "The image has no python3",
        "Use one with Python 3.11 or later on its PATH, or none: `mcp-bridge image build` makes one.",
        ("executable file not found", "not found in $path", "attempted to invoke a command that was not found"),
    ),
    (
        "sandbox_start_failed",
        "The engine may not set the sandbox's limits",
        "Run `mcp-bridge doctor`: this host's limits may have changed.",
        ("rlimit",),
    ),
    (
        "sandbox_start_failed",
        "The engine was refused a permission",
        "Run `mcp-bridge doctor`.",
        ("permission denied", "operation not permitted"),
    ),
)
"""Error code, message, hint, and the phrases that identify the cause; the first match wins."""


def start_failure(engine: str, output: str) -> BridgeError:
    """The error for a container that was never started.

    Args:
        engine: `podman`, `docker`, or the name of an OCI runtime.
        output: The engine's stderr.

    Returns:
        An error with the code `disk_full`, `image_missing`, `image_without_python`, `no_runtime` or
        `sandbox_start_failed`, and the last lines as `details["output"]`.
    """
    lines = [line.rstrip() for line in output.splitlines() if line.strip() and "--help'" not in line][-_TAIL_LINES:]
    tail = "\n".join(lines)
    for code, meaning, hint, phrases in _CAUSES:
        telling = [line for line in lines if any(phrase in line.lower() for phrase in phrases)]
        if telling:
            said = telling[-1]
            if code == "image_missing" and REPOSITORY not in said:
                hint = CONFIGURED_IMAGE_HINT  # noqa: PLW2901
            return BridgeError(code, f"{meaning}. {engine} says: {_sentence(said)}", hint=hint, output=tail)
    return BridgeError(
        "sandbox_start_failed",
        f"{engine} could not start the container and says: {_sentence(lines[-1] if lines else 'nothing')}",
        hint="Run `mcp-bridge doctor`.",
        output=tail,
    )


def os_failure(error: OSError, what: str) -> BridgeError:
    """The error for a system call that failed while a container was prepared.

    Returns:
        An error with the code `disk_full`, `state_unwritable` or `sandbox_start_failed`.
    """
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return disk_full(f"{what}.")
    where = f" ({error.filename})" if error.filename and str(error.filename) not in what else ""
    if error.errno == errno.EROFS:
        return BridgeError("state_unwritable", f"{what}: {error.strerror}{where}.", hint=READ_ONLY_HINT)
    if error.errno in {errno.EACCES, errno.EPERM}:
        hint = "Check its owner and its mode."
        return BridgeError("state_unwritable", f"{what}: {error.strerror}{where}.", hint=hint)
    return BridgeError("sandbox_start_failed", f"{what}: {error.strerror}{where}.")


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
