"""How much the sandbox has computed, all its processes together."""

import os


def processor_seconds() -> float:
    """The processor time of all processes in the sandbox, and of those that have ended and were waited for."""
    ticks = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    # The command's name, in parentheses, may have any character.
                    fields = file.read().rpartition(b") ")[2].split()
                ticks += sum(map(int, fields[11:15]))
            except (OSError, ValueError):
                continue  # It has just ended.
    return ticks / os.sysconf("SC_CLK_TCK")
