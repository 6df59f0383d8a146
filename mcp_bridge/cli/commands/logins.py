"""`mcp-bridge servers login|logout|status`: logins to remote servers by OAuth."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from mcp_bridge.cli import configuration_loading, exit_statuses, terminal_output
from mcp_bridge.cli.command_runner import finish, print_json
from mcp_bridge.cli.commands.servers import servers
from mcp_bridge.cli.options import Config, Json  # noqa: TC001  (typer reads the annotations)
from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from pathlib import Path

    from mcp_bridge.downstream.configuration.inherited_environment import InheritedEnvironment
    from mcp_bridge.downstream.configuration.spec import ServerSpec
    from mcp_bridge.downstream.http.remote_auth import RemoteAccess
    from mcp_bridge.downstream.oauth.login_record import Login
    from mcp_bridge.downstream.oauth.login_store import LoginStore
    from mcp_bridge.downstream.oauth.redirects import Answer
    from mcp_bridge.settings import Settings

_MAX_LINE_BYTES = 64 << 10

_REFUSED = "refused when last used"

Name: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", help="As `mcp-bridge servers list` shows it.")]


@servers.command(
    epilog="Examples:\n\nmcp-bridge servers login github\n\nmcp-bridge servers login github --no-browser",
)
def login(
    ctx: typer.Context,
    name: Name,
    no_browser: Annotated[
        bool,
        typer.Option(
            "--no-browser",
            help="Don't open a browser: open the printed address yourself, then paste the address it redirects to.",
        ),
    ] = False,
    config: Config = None,
) -> None:
    """Log in to a remote server, so that the bridge can call it as you."""

    def work() -> int:
        import anyio

        from mcp_bridge.downstream.client.server_errors import withheld_variable

        settings, specs, access, store, environment = _opened(config or ctx.obj)
        spec = _named(specs, name)
        if (refused := withheld_variable(spec, environment)) is not None:
            raise refused
        with contextlib.ExitStack() as stack:
            made = anyio.run(_log_in, spec, access, store, _Terminal(settings, stack, opens=not no_browser))
        terminal_output.echo(f"Logged in to {spec.name} at {made.issuer}.")
        return exit_statuses.OK

    finish(work)


async def _log_in(spec: ServerSpec, access: RemoteAccess, store: LoginStore, person: _Terminal) -> Login:
    import anyio.to_thread

    from mcp_bridge.downstream.http.http_client import tls_context
    from mcp_bridge.downstream.oauth.login import log_in

    # Both may block: a keyring may ask for its password.
    oauth = await anyio.to_thread.run_sync(access.oauth_settings, spec)
    tls = await anyio.to_thread.run_sync(tls_context, spec)
    headers = {name: access.resolve(spec, value) for name, value in spec.headers.items()}
    return await log_in(spec, oauth, headers, store, person, tls)


@servers.command()
def logout(ctx: typer.Context, name: Name, config: Config = None) -> None:
    """Forget the login to a remote server, and have its tokens revoked."""

    def work() -> int:
        import anyio

        from mcp_bridge.downstream.client.server_errors import withheld_variable

        _, specs, access, store, environment = _opened(config or ctx.obj)
        spec = _named(specs, name)
        if withheld_variable(spec, environment) is not None:
            # Its login is forgotten, and the variable is sent nowhere.
            spec = replace(spec, headers={}, oauth=spec.oauth and replace(spec.oauth, client_secret=None))
        became = anyio.run(_log_out, spec, access, store)
        if became is None:
            terminal_output.echo(f"There was no login to {spec.name}.")
        else:
            terminal_output.echo(f"Logged out of {spec.name}. Its tokens are forgotten here; {became}.")
        return exit_statuses.OK

    finish(work)


async def _log_out(spec: ServerSpec, access: RemoteAccess, store: LoginStore) -> str | None:
    import anyio.to_thread

    from mcp_bridge.downstream.http.http_client import tls_context
    from mcp_bridge.downstream.oauth.logout import log_out

    try:
        oauth = await anyio.to_thread.run_sync(access.oauth_settings, spec)
    except BridgeError:
        # Without its secret a client may not be let revoke its tokens. They are forgotten in any case.
        oauth = spec.oauth
    tls = await anyio.to_thread.run_sync(tls_context, spec)
    return await log_out(spec, oauth, store, tls)


@servers.command()
def status(
    ctx: typer.Context,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One server; by default all remote ones.")
    ] = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Show which remote servers there is a login to. Nothing is sent. Exit status 1 if the named one has none."""

    def work() -> int:
        import anyio

        _, specs, _, store, _ = _opened(config or ctx.obj)
        chosen = [_named(specs, name)] if name is not None else [spec for spec in specs.values() if spec.is_remote]
        rows = anyio.run(_rows, chosen, store)
        if as_json:
            print_json({"logins": rows})
        elif not rows:
            terminal_output.echo(
                "No remote server is configured: see [servers.NAME] with a url in docs/configuration.md."
            )
        else:
            cells = [(row["name"], row["state"], row["issuer"] or "", row["url"] or "") for row in rows]
            terminal_output.table(("server", "login", "at", "address"), cells)
        missing = name is not None and rows[0]["state"] in {"none", "ended", _REFUSED}
        return exit_statuses.FAILED if missing else exit_statuses.OK

    finish(work, as_json=as_json)


async def _rows(specs: list[ServerSpec], store: LoginStore) -> list[dict[str, Any]]:
    from mcp_bridge.downstream.configuration.remote_entries import shown_url
    from mcp_bridge.downstream.oauth.login_record import read_login

    rows = []
    for spec in specs:
        made = await read_login(store, spec) if spec.is_remote and spec.url else None
        rows.append(
            {
                "name": spec.name,
                "url": shown_url(spec.url) if spec.url else None,
                "state": _state(spec, made),
                "issuer": made.issuer if made else None,
                "scopes": (made.tokens.scope or "").split() if made else [],
                "expires_at": made.expires_at if made else None,
                "renewable": made.can_refresh if made else False,
                "source": spec.source,
            }
        )
    return rows


def _state(spec: ServerSpec, made: Login | None) -> str:
    from mcp_bridge.downstream.http.remote_auth import has_own_authorization

    if not spec.is_remote:
        return "a process"
    if has_own_authorization(spec):
        return "by headers"
    if spec.oauth is not None and spec.oauth.grant == "client_credentials":
        return "by itself"
    if made is None:
        return "none"
    if not (made.is_usable() or made.can_refresh):
        return "ended"
    return _REFUSED if made.refused else "logged in"


def _opened(
    config: Path | None,
) -> tuple[Settings, dict[str, ServerSpec], RemoteAccess, LoginStore, InheritedEnvironment]:
    """The settings, all servers by name, their credentials and environment; no operator's tools are loaded."""
    from mcp_bridge.governance.governance import credentials_of
    from mcp_bridge.governance.server_credentials import access_with, login_store
    from mcp_bridge.governance.server_environment import environment_beside

    loaded = configuration_loading.load(config)
    discovery = configuration_loading.discover_servers(loaded)
    folder_servers = configuration_loading.folder_servers(loaded, discovery)
    vault, model = credentials_of(loaded.layers, loaded.settings.state_dir, folder_servers)
    store = login_store(loaded.settings)
    environment = environment_beside(loaded.settings, vault, model)
    return loaded.settings, dict(discovery.servers), access_with(vault, store), store, environment


def _named(specs: dict[str, ServerSpec], name: str) -> ServerSpec:
    if (spec := specs.get(name)) is None:
        raise BridgeError("unknown_server", f"There is no server {name[:100]!r}.", hint="`mcp-bridge servers list`.")
    return spec


class _Terminal:
    """The person at the terminal.

    Args:
        settings: The settings.
        stack: What a browser needs is removed when it is left.
        opens: Whether to open a browser.
    """

    def __init__(self, settings: Settings, stack: contextlib.ExitStack, *, opens: bool) -> None:
        self._settings = settings
        self._stack = stack
        self._opens = opens
        self._pastes = not opens

    async def show(self, address: str) -> None:
        """As `downstream.oauth.login.Person`."""
        import anyio.to_thread

        from mcp_bridge.cli.browser import open_via_redirect_file
        from mcp_bridge.private_files import state_directory

        directory = await anyio.to_thread.run_sync(state_directory, self._settings.state_dir)
        opened = self._stack.enter_context(open_via_redirect_file(address, directory, wanted=self._opens))
        self._pastes = not opened and (not self._opens or sys.stdin.isatty())
        terminal_output.echo(
            "Log in on the page that the browser has opened, or at:" if opened else "Log in with a browser at:"
        )
        terminal_output.echo(f"\n  {address}\n")
        if self._pastes:
            terminal_output.echo(
                "If the browser is on another machine, it ends at a page that it can't open: paste that page's address"
                " here."
            )
        sys.stdout.flush()

    async def paste(self, state: str) -> Answer:
        """As `downstream.oauth.login.Person`."""
        import anyio
        import anyio.to_thread

        from mcp_bridge.downstream.oauth.redirects import NotThisLoginError, read_answer

        typed = b""
        while self._pastes:
            # Not through `sys.stdin`: its lock would keep the process from ending.
            part = await anyio.to_thread.run_sync(os.read, sys.stdin.fileno(), _MAX_LINE_BYTES, abandon_on_cancel=True)
            *lines, typed = (typed + part if part else typed + b"\n").split(b"\n")
            for line in filter(bytes.strip, lines):
                try:
                    return read_answer(line.decode(errors="replace"), state)
                except NotThisLoginError:
                    terminal_output.echo_err("mcp-bridge: that address doesn't belong to this login: copy it whole.")
            if not part or len(typed) > _MAX_LINE_BYTES:
                break
        # The browser's own answer is waited for.
        await anyio.sleep_forever()
        raise AssertionError
