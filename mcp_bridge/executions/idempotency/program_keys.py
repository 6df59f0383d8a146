"""Keys that are derived for programs: a program that a script starts without a key has the script's id and the call's.

So a script that is run again from its record joins the program that it started, instead of starting another one.
"""

from __future__ import annotations


def program_key(script: str, call: str | None) -> str | None:
    """The idempotency key of a program that a script's call starts without one.

    A script without a key has such keys too: it is given one when it is suspended.

    Args:
        script: The script's execution.
        call: The call's id; None for a call without one, whose program has no key.
    """
    return None if call is None else f"{script}/{call}"
