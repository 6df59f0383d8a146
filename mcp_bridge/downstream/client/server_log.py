"""The logger of all that servers say: the one that is masked while a bridge is open (`host/log_masking.py`)."""

import logging

logger = logging.getLogger(__name__)
