"""Clients with a model behind them, each as somebody starts it with one task, for whom it may use any tool.

Whatever a client wants of the internet, updates, lists of models, telemetry, is switched off where it can be, and
refused by the model's address as the proxy. `bridge` is the command that starts the bridge, or its address, `model` the
model's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TASK = "Run the scripts."


@dataclass(frozen=True)
class Start:
    """What is run: a path within `node_modules`, by node where it is JavaScript; its arguments and variables."""

    program: str
    arguments: list[str]
    env: dict[str, str]


def written(path: Path, content: Any) -> Path:
    """A file of JSON or text, with the folders that it needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def is_address(bridge: str) -> bool:
    """Whether the bridge is there already, over HTTP."""
    return bridge.startswith("http://")


def claude_code(home: Path, bridge: str, model: str) -> Start:
    stdio, http = {"type": "stdio", "command": bridge, "args": []}, {"type": "http", "url": bridge}
    server = http if is_address(bridge) else stdio
    servers = written(home / "servers.json", {"mcpServers": {"bridge": server}})
    options = ["--mcp-config", str(servers), "--strict-mcp-config", "--allowedTools", "mcp__bridge__run_python"]
    env = {"ANTHROPIC_BASE_URL": model, "ANTHROPIC_API_KEY": "sk-test", "DISABLE_AUTOUPDATER": "1"}
    env |= {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "ENABLE_TOOL_SEARCH": "true"}
    # Its wrapper finds the native binary also where npm ran no install script.
    stream = ["--output-format", "stream-json", "--verbose"]
    return Start("@anthropic-ai/claude-code/cli-wrapper.cjs", ["-p", TASK, *stream, *options], env)


def codex(home: Path, bridge: str, model: str) -> Start:
    server = f"{'url' if is_address(bridge) else 'command'} = {json.dumps(bridge)}"
    written(
        home / ".codex/config.toml",
        f"""
model = "gpt-5"
model_provider = "scripted"
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.scripted]
name = "scripted"
base_url = "{model}/v1"
env_key = "SCRIPTED_API_KEY"
wire_api = "responses"
supports_websockets = false
[mcp_servers.bridge]
{server}
startup_timeout_sec = 60
required = true
""",
    )
    options = ["--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    return Start("@openai/codex/bin/codex.js", ["exec", *options, TASK], {"SCRIPTED_API_KEY": "sk-test"})


def gemini_cli(home: Path, bridge: str, model: str) -> Start:
    server = {"httpUrl" if is_address(bridge) else "command": bridge, "trust": True}
    settings = {
        "mcpServers": {"bridge": server},
        "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
        "model": {"skipNextSpeakerCheck": True},
    }
    written(home / ".gemini/settings.json", settings)
    env = {"GEMINI_API_KEY": "test", "GOOGLE_GEMINI_BASE_URL": model, "GEMINI_CLI_TRUST_WORKSPACE": "true"}
    env |= {"GEMINI_CLI_NO_RELAUNCH": "true", "GEMINI_FORCE_FILE_STORAGE": "true"}
    options = ["--approval-mode", "yolo", "--model", "gemini-2.5-pro", "--output-format", "stream-json"]
    return Start("@google/gemini-cli/bundle/gemini.js", ["--prompt", TASK, *options], env)


def opencode(home: Path, bridge: str, model: str) -> Start:
    shapes = {"attachment": True, "tool_call": True, "modalities": {"input": ["text", "image"], "output": ["text"]}}
    provider = {"npm": "@ai-sdk/openai-compatible", "options": {"baseURL": f"{model}/v1", "apiKey": "test"}}
    provider |= {"models": {"scripted": shapes | {"limit": {"context": 200000, "output": 8000}}}}
    where = {"type": "remote", "url": bridge} if is_address(bridge) else {"type": "local", "command": [bridge]}
    server = where | {"timeout": 60000}
    settings = {"provider": {"scripted": provider}, "mcp": {"bridge": server}, "autoupdate": False, "share": "disabled"}
    written(home / ".config/opencode/opencode.json", settings)
    env = {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_SHARE": "1"}
    env |= {"OPENCODE_DISABLE_LSP_DOWNLOAD": "1", "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1"}
    arguments = ["run", "--model", "scripted/scripted", "--format", "json", "--auto", TASK]
    return Start("opencode-linux-x64-baseline/bin/opencode", arguments, env)


CLIENTS: dict[str, Callable[[Path, str, str], Start]] = {
    "claude-code": claude_code,
    "codex": codex,
    "gemini-cli": gemini_cli,
    "opencode": opencode,
}
