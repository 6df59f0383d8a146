"""The description of the tool for clients: its entry in the tool list, and the server's instructions.

Every client's model pays for the entry in every conversation, so it is short. Instructions are sent once. Clients that
defer tools (Claude Code) show them instead of the entry, other clients in addition, and some not at all: neither text
relies on the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import mcp_types as types

from mcp_bridge.escaping import escape_invisible, escape_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_bridge.errors import BridgeError
    from mcp_bridge.sandbox.languages import Language
    from mcp_bridge.settings import Settings

TOOL = "run_python"

JAVASCRIPT_TOOL = "run_javascript"

LANGUAGES: dict[str, Language] = {TOOL: "python", JAVASCRIPT_TOOL: "javascript"}
"""The tools that run scripts, and what each is written in."""

ALWAYS_LOAD = {"anthropic/alwaysLoad": True}
"""Claude Code defers the tools of MCP servers until its model searches for them, which is unnecessary for one tool."""

MAX_NAMES_CHARS = 500
"""Limit on server names in the instructions, of which Claude Code shows 2,048 characters in all."""

MAX_PACKAGES_SHOWN = 20

MAX_ERROR_CHARS = 400
"""Limit on an error in the instructions: the answer to a call contains all of it."""

DATA_PACKAGES = "numpy, pandas, scipy, scikit-learn, matplotlib, pillow"


BEHIND = "MCP servers are behind it; runtime.discovered_servers() lists them"


def names(settings: Settings) -> list[str]:
    """The names of the tools that run scripts here."""
    return [name for name, language in LANGUAGES.items() if language in settings.languages]


def tools(settings: Settings) -> list[types.Tool]:
    """The tools that run scripts: `run_python`, and `run_javascript` where the operator allows it."""
    return [tool(settings, name) for name in names(settings)]


def tool(settings: Settings, name: str = TOOL) -> types.Tool:
    """A tool's entry. The schema is handwritten: every conversation pays for each of its tokens."""
    text: dict[str, object] = {"type": "string"}
    if names(settings) == [name]:
        servers = {"type": "array", "items": text, "description": "use only these"}
        timeout = {
            "type": "number",
            "description": f"seconds, default {settings.timeout:g}, max {settings.max_timeout:g}",
        }
        properties = {"code": text, "servers": servers, "timeout": timeout, "idempotency_key": text, "session": text}
        description = _description(settings) if name == TOOL else _JAVASCRIPT
    else:
        # Both together may take as little as one: what few use is told by the instructions, and by `help(runtime)`.
        properties = {"code": text, "session": text}
        description = _description_of_both(settings) if name == TOOL else _JAVASCRIPT_TOO
    return types.Tool(
        name=name,
        description=description,
        input_schema={"type": "object", "properties": properties, "required": ["code"]},
        _meta=ALWAYS_LOAD,
    )


def instructions(settings: Settings, servers: Sequence[str] | None) -> str:
    """The server's instructions: a paragraph about the tool, and the names of the servers.

    Args:
        settings: Determine the image's packages, and the length at which answers are cut.
        servers: The servers' aliases; None if they aren't known yet.
    """
    if servers is None:
        return _taught(settings, BEHIND)
    names = _names(servers)
    behind = f"These MCP servers are behind it: {names}" if names else "No MCP server is configured behind it yet"
    return _taught(settings, behind)


def error_instructions(settings: Settings, error: BridgeError) -> str:
    """The instructions while nothing can be run: the error comes first, and servers aren't known.

    Args:
        settings: As `instructions`, as far as they are known.
        error: The error.
    """
    what = f"[{error.code}] {error.message}"
    shown = what if len(what) <= MAX_ERROR_CHARS else what[:MAX_ERROR_CHARS] + "…"
    return _taught(
        settings,
        f"When this server was started, {names(settings)[0]} could run nothing: {escape_invisible(shown)}\n"
        f"Tell your user; once that is mended, the next call works. {BEHIND}",
    )


def _taught(settings: Settings, behind: str) -> str:
    offered = names(settings)
    if TOOL not in offered:
        return f"{behind}. {_taught_javascript(settings)}"
    other = (
        f" {JAVASCRIPT_TOOL} runs JavaScript or TypeScript in the same way. Both take servers=, timeout= and"
        " idempotency_key=, too."
        if JAVASCRIPT_TOOL in offered
        else ""
    )
    return (
        f"{behind}. {TOOL} is the way to all of them, and to computing: one script can find tools, call them, "
        "loop, filter and compare, and prints only what you need to see.\n"
        "`from mcp.servers import NAME`, then `await NAME.tool(arg=1)`; top-level await works. `dir(NAME)` lists a "
        "server's tools, `help(NAME.tool)` says what one takes, `await runtime.search('words')` searches all servers. "
        "`asyncio.gather` makes calls side by side. A call gives plain data: a tool's text stays text (json.loads it "
        "if it is JSON); a failed one raises mcp.ToolError.\n"
        "The sandbox is sealed: no network, no files of this machine but those that runtime.files() lists, only "
        f"{_packages(settings)}. Each run starts "
        "afresh; runs with the same session= share their names; with dry_run=true it only reads, and lists its writes, "
        "for a person to approve at once. "
        f"{_installable(settings)}"
        "`await runtime.save_memory(key, value)` and `load_memory(key)` keep data, `save_tool(function)` a "
        "function for `from mcp.tools import NAME`, artifact(path) keeps a file.\n"
        "display(x) shows figures, PIL images, bytes of image files, and images in tools' results. An answer is cut "
        f"at {settings.max_output_chars} characters, and then says how the next script reads the rest: "
        f"runtime.output(...).{other}"
    )


def _taught_javascript(settings: Settings) -> str:
    """The paragraph where scripts are in JavaScript alone."""
    return (
        f"{JAVASCRIPT_TOOL} is the way to all of them, and to computing: one script can find tools, call them, "
        "loop, filter and compare, and prints only what you need to see.\n"
        '`import { NAME } from "mcp/servers"`, then `await NAME.tool({arg: 1})`; top-level await works. '
        "`await runtime.list_tools('NAME')` lists a server's tools, `await runtime.describe('NAME.tool')` says what "
        "one takes, `await runtime.search('words')` searches all servers. `Promise.all` makes calls side by side. A "
        "call gives plain data: a tool's text stays text (JSON.parse it if it is JSON); a failed one throws a "
        "ToolError.\n"
        "The sandbox is sealed: no network, no files of this machine but those that runtime.files() lists, "
        "no packages of npm. Each run starts afresh; runs with the same session= share their names; with dry_run=true "
        "it only reads, and lists its writes, for a person to approve at once. "
        "`await runtime.save_memory(key, value)` and `load_memory(key)` keep data, `await artifact(path)` a file.\n"
        "display(x) shows images (bytes of files, and those in tools' results), tables, and keeps HTML, PDF and audio. "
        "An answer is cut at "
        f"{settings.max_output_chars} characters, and then says how the next script reads the rest: "
        "await runtime.output(...)."
    )


_JAVASCRIPT = (
    "Run JavaScript/TypeScript (Node, no network or npm) in a sandbox that calls MCP servers; shows console.log, last "
    "expression.\n"
    'import {NAME} from "mcp/servers"; await NAME.tool({arg: 1})  // text stays text\n'
    "await runtime.list_tools('NAME'), runtime.describe('NAME.tool'), runtime.search('words')\n"
    "display(image); artifact(path). session keeps names. runtime.save_memory. mcp.programs"
)

_JAVASCRIPT_TOO = (
    f"As {TOOL}, in JavaScript or TypeScript (Node): "
    'import {NAME} from "mcp/servers"; await NAME.tool({arg: 1}); '
    "await runtime.describe('NAME.tool')"
)
"""Where the other tool is listed before it."""


def _description(settings: Settings) -> str:
    return (
        f"Run Python ({_packages(settings)}, no network) in a sandbox that calls MCP servers; shows prints and the "
        "last expression.\n"
        "from mcp.servers import NAME; await NAME.tool(arg=1)  # data; text stays text. asyncio.gather: side by side\n"
        "runtime.discovered_servers(); dir(NAME); help(NAME.tool); await runtime.search('words')\n"
        "display(figure); artifact(path). session keeps names. runtime.save_memory. help(mcp.programs)"
    )


def _description_of_both(settings: Settings) -> str:
    """Where `run_javascript` is listed after it."""
    return (
        f"Run Python ({_packages(settings)}, no network) in a sandbox that calls MCP servers; "
        "shows prints, last value.\n"
        "from mcp.servers import NAME; await NAME.tool(arg=1)\n"
        "help(NAME.tool); await runtime.search('words'). session keeps names. help(runtime)"
    )


def _packages(settings: Settings) -> str:
    """The packages that can be imported, as far as the settings tell."""
    if settings.image is not None:
        return "what the operator's image has"
    more = [DATA_PACKAGES] if settings.profile == "data" else []
    more += settings.packages
    return ", ".join(["standard library", *more])


def _installable(settings: Settings) -> str:
    """What scripts may have installed, as a sentence; empty for nothing."""
    allowed = settings.install.allow
    if not allowed:
        return ""
    shown = list(allowed[:MAX_PACKAGES_SHOWN])
    while len(", ".join(shown)) > MAX_NAMES_CHARS:
        shown.pop()
    more = f" and {len(allowed) - len(shown)} more" if len(shown) < len(allowed) else ""
    return (
        f"packages=[...] of the call brings what the operator allows: {', '.join(shown)}{more}; "
        "await runtime.install(name) does while a script runs. "
    )


def _names(servers: Sequence[str]) -> str:
    shown: list[str] = []
    room = MAX_NAMES_CHARS
    for name in sorted(servers):
        room -= len(escape_name(name)) + 2
        if room < 0:
            shown.append(f"and {len(servers) - len(shown)} more (runtime.discovered_servers())")
            break
        shown.append(escape_name(name))
    return ", ".join(shown)
