"""nano-vm-mcp's server on stdio, with tools for its programs to call."""

from __future__ import annotations

import nano_vm_mcp.tools  # type: ignore[import-not-found]  # not in ours
from nano_vm_mcp.cli import main  # type: ignore[import-not-found]

from benchmarks.workers.nano_vm import give_tools

if __name__ == "__main__":
    give_tools(nano_vm_mcp.tools)
    main()
