"""Exit statuses by which a sandbox says what its frames no longer can. `guest/loader.py` has two of them as numbers."""

NO_BUNDLE = 70
"""Standard input ended before the guest had arrived."""

HOST_GONE = 75
"""The host's end of the channel was closed."""

BAD_FRAME = 76
"""The host sent something that is no message of the channel."""

CHANNEL_CLOSED = 77
"""The guest's own end of the channel was closed, by the script."""

OLD_PYTHON = 78
"""The image's interpreter is older than 3.11."""

HOST_SILENT = 79
"""No word from the host for too long."""

GUEST_KILLED = 80
"""The guest's process was ended by SIGKILL, or says so."""
