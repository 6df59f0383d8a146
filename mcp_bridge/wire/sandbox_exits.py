"""Exit statuses with which a sandbox reports that its channel failed. `guest/loader.py` contains two as numbers."""

NO_BUNDLE = 70
"""Standard input ended before the guest was complete."""

HOST_GONE = 75
"""The host's end of the channel was closed."""

BAD_FRAME = 76
"""The host sent an invalid message."""

CHANNEL_CLOSED = 77
"""The script closed the guest's end of the channel."""

OLD_PYTHON = 78
"""The image's interpreter is older than 3.11."""

HOST_SILENT = 79
"""The host sent nothing for too long."""

GUEST_KILLED = 80
"""The guest's process was ended by SIGKILL, or reported so."""
