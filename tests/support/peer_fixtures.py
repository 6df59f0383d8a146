"""The systems that tests compare with, each in a process of its own."""

import pytest
from generated_programs import NanoVM


@pytest.fixture(scope="session")
def nano_vm():
    """llm-nano-vm. It keeps nothing from one question to the next."""
    peer = NanoVM()
    yield peer
    peer.close()
