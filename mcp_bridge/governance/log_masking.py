"""What servers write goes to the log, and may hold the secrets that they were given: those are masked there too."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mcp_bridge.downstream.client.log_tail import logger
from mcp_bridge.policy.redaction.masking import Masker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcp_bridge.policy.secrets.vault import Vault


class _Masking(logging.Filter):
    def __init__(self, vault: Vault) -> None:
        super().__init__()
        self._vault = vault

    def filter(self, record: logging.LogRecord) -> bool:
        # What was never read was given to nobody.
        if known := self._vault.known:
            record.msg, record.args = Masker(known).mask(record.getMessage()), ()
        return True


@contextmanager
def masked_logs(vault: Vault) -> Iterator[None]:
    """While a bridge is open, what is logged of its servers has no secret of this vault in it."""
    masking = _Masking(vault)
    logger.addFilter(masking)
    try:
        yield
    finally:
        logger.removeFilter(masking)
