"""What the tests of registered tools share."""

import sys

import pytest

from mcp_bridge.errors import BridgeError
from mcp_bridge.registered.declaring import DECLARATIONS_NAME
from mcp_bridge.registered.registry import Registry


@pytest.fixture
def own_declarations(request):
    """The tools that a test declares in its module are its own."""
    yield
    vars(request.module).pop(DECLARATIONS_NAME, None)


def registry(**options):
    """The tools that the calling test has declared."""
    return Registry(sys._getframe(1).f_globals.get(DECLARATIONS_NAME, ()), **options)


def one(function, **options):
    """A registry of this function."""
    return Registry(
        [found for found in function.__globals__[DECLARATIONS_NAME] if found.function is function], **options
    )


async def fault(found, name, arguments=None, timeout=None):  # noqa: ASYNC109
    """The error of a call."""
    with pytest.raises(BridgeError) as caught:
        await found.call(name, arguments, timeout)
    assert caught.value.details["server"] == "local"
    return caught.value


def refused(match):
    """An error whose text matches."""
    return pytest.raises(BridgeError, match=match)
