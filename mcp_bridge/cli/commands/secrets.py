"""`mcp-bridge secret set|list|remove`. A value is never an argument: shells' histories and `ps` show arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from mcp_bridge.cli import configuration_loading, exit_statuses, terminal_output
from mcp_bridge.cli.command_runner import finish, print_json
from mcp_bridge.cli.options import Config, Json  # noqa: TC001  (typer reads the annotations)
from mcp_bridge.cli.terminal_prompts import read_secret
from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from mcp_bridge.policy.secrets.vault import SecretConfig, Vault
    from mcp_bridge.settings import Loaded

secrets = typer.Typer(
    help="Store secrets. Only tools receive them, in place of vault://secret/NAME.", no_args_is_help=True
)

Name: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", help="As in vault://secret/NAME.")]
Keyring: TypeAlias = Annotated[
    bool, typer.Option("--keyring", help="In the system's keyring; by default in a file, or as configured.")
]


def _vault(loaded: Loaded) -> tuple[Vault, dict[str, SecretConfig]]:
    from mcp_bridge.governance.governance import secrets_of
    from mcp_bridge.policy.secrets.vault import Vault

    configs, bounds = secrets_of(loaded.layers)
    return Vault(configs, loaded.settings.state_dir, bounds=bounds), configs


@secrets.command(
    "set",
    epilog="Examples:\n\nmcp-bridge secret set github-token\n\npass show github | mcp-bridge secret set github-token",
)
def set_(ctx: typer.Context, name: Name, keyring: Keyring = False, config: Config = None) -> None:
    """Keep a secret. Its value is asked for without an echo, or read from standard input, less a newline at its end."""

    def work() -> int:
        vault, configs = _vault(configuration_loading.load(config or ctx.obj))
        where = vault.set(name, read_secret(f"Value of {name}: ", "bad_secret"), "keyring" if keyring else None)
        terminal_output.echo(f"{name} is stored in the {where}")
        if name not in configs:
            terminal_output.echo_err(
                f"mcp-bridge: no tool can use it until [secrets.{name}] lists the tools: {where} = true, tools = [...]"
            )
        return exit_statuses.OK

    finish(work)


@secrets.command("list")
def list_(ctx: typer.Context, config: Config = None, as_json: Json = False) -> None:
    """List secrets: where each comes from and who gets it, never its value."""

    def work() -> int:
        from mcp_bridge.policy.secrets.secret_stores import SecretFile

        loaded = configuration_loading.load(config or ctx.obj)
        rows = _vault(loaded)[0].status()
        if not any(row.source == "file" for row in rows):
            # An unreadable file would otherwise just look empty.
            SecretFile(loaded.settings.state_dir).read()
        if as_json:
            print_json({"secrets": [row.record() for row in rows]})
        elif not rows:
            terminal_output.echo(
                "No secret is configured, or kept in the file: write [secrets.NAME], and keep its value with "
                "`mcp-bridge secret set NAME`."
            )
        else:
            cells = [
                (
                    row.id,
                    f"environment, {row.variable}" if row.source == "env" else row.source,
                    ", ".join(row.tools) or "none",
                    row.problem or ("ok" if row.configured else f"not configured: no [secrets.{row.id}]"),
                )
                for row in rows
            ]
            terminal_output.table(("secret", "from", "for tools", "state"), cells)
        return exit_statuses.OK

    finish(work, as_json=as_json)


@secrets.command()
def remove(ctx: typer.Context, name: Name, keyring: Keyring = False, config: Config = None) -> None:
    """Forget a secret's value."""

    def work() -> int:
        vault, _ = _vault(configuration_loading.load(config or ctx.obj))
        if not vault.remove(name, "keyring" if keyring else None):
            raise BridgeError("unknown_secret", f"There is no secret {name[:100]!r}.", hint="`mcp-bridge secret list`.")
        terminal_output.echo(f"removed {name}")
        return exit_statuses.OK

    finish(work)
