"""`mcp-bridge principal add|list|rotate|revoke`: the tokens that principals use a bridge over HTTP with."""

from __future__ import annotations

import functools
import re
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from mcp_bridge.cli import configuration_loading, exit_statuses, terminal_output
from mcp_bridge.cli.command_runner import finish, print_json
from mcp_bridge.cli.options import Config, Json  # noqa: TC001  (typer reads the annotations)
from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp_bridge.governance.principal_tokens import NewToken, TokenRecord, TokenStore
    from mcp_bridge.governance.principals import Principal
    from mcp_bridge.settings import Loaded

principals = typer.Typer(
    help="Make and revoke the tokens of principals over HTTP. A running bridge applies it immediately.",
    no_args_is_help=True,
)

Name: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", help="As its table in the configuration is called.")]
Expires: TypeAlias = Annotated[
    str | None, typer.Option(metavar="TIME", help="When the token ends: 12h, 90d, 52w from now; by default never.")
]

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}

_MAX_YEARS = 100
_MAX_SECONDS = _MAX_YEARS * 365 * 86400
"""A century: dates beyond the year 9999 can't be shown."""


@principals.command(epilog="Examples:\n\nmcp-bridge principal add anna\n\nmcp-bridge principal add ci --expires 90d")
def add(ctx: typer.Context, name: Name, expires: Expires = None, config: Config = None, as_json: Json = False) -> None:
    """Make a token for a principal, beside those that it has. It is printed once, and kept as a hash."""

    def work() -> int:
        loaded = configuration_loading.load(config or ctx.obj)
        store, configured = _opened(loaded, name)
        keep = functools.partial(_show, as_json=as_json)
        made = store.add(name, seconds=_seconds(expires, "--expires"), restricted=name in configured, keep=keep)
        _tell(made, 0, configured, as_json=as_json)
        if name in configured and not as_json and _has_changed_while_served(loaded):
            terminal_output.echo_err(
                "mcp-bridge: the configuration has changed since the bridge that serves was started: if"
                f" [principals.{name}] is new, the token is refused until that is started again."
            )
        return exit_statuses.OK

    finish(work, as_json=as_json)


@principals.command("list")
def list_(ctx: typer.Context, config: Config = None, as_json: Json = False) -> None:
    """List principals and their tokens: ids and dates, never a token."""

    def work() -> int:
        loaded = configuration_loading.load(config or ctx.obj)
        store, configured = _opened(loaded)
        now = time.time()
        tokens = sorted(store.read().items(), key=lambda item: (item[1].principal, item[1].created))
        without = sorted(configured.keys() - {record.principal for _, record in tokens})
        if as_json:
            rows = [_row(token, record, configured, now) for token, record in tokens]
            print_json({"tokens": rows, "without_tokens": without})
        elif not tokens and not without:
            terminal_output.echo("No principals: `mcp-bridge principal add NAME` makes a token for one.")
        else:
            cells = [
                (
                    record.principal,
                    token,
                    terminal_output.moment(record.created),
                    _end(record.expires),
                    _state(record, configured, now),
                )
                for token, record in tokens
            ]
            known_by = _known_without_token(loaded, configured)
            cells += [(name, known_by.get(name, "none"), "", "", "") for name in sorted({*without, *known_by})]
            terminal_output.table(("principal", "token", "made", "ends", "state"), cells)
        return exit_statuses.OK

    finish(work, as_json=as_json)


@principals.command(
    epilog="Examples:\n\nmcp-bridge principal rotate anna\n\nmcp-bridge principal rotate ci --grace 1h --expires 90d"
)
def rotate(
    ctx: typer.Context,
    name: Name,
    grace: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="How long old tokens remain valid, such as 1h (default: revoked immediately)."
        ),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="When the token ends: 12h, 90d, 52w from now (default: the lifetime of the newest old token).",
        ),
    ] = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Replace all tokens of a principal by a new one, with the lifetime of the newest of them."""

    def work() -> int:
        store, configured = _opened(configuration_loading.load(config or ctx.obj), name)
        made, replaced = store.rotate(
            name,
            grace=_seconds(grace, "--grace") or 0.0,
            seconds=_seconds(expires, "--expires"),
            restricted=name in configured,
            keep=functools.partial(_show, as_json=as_json),
        )
        _tell(made, replaced, configured, as_json=as_json, is_kept=expires is None)
        return exit_statuses.OK

    finish(work, as_json=as_json)


@principals.command(
    epilog="Examples:\n\nmcp-bridge principal revoke anna\n\nmcp-bridge principal revoke anna --token 0123456789abcdef"
)
def revoke(
    ctx: typer.Context,
    name: Name,
    token: Annotated[str | None, typer.Option(metavar="ID", help="Only this one, as `list` shows it.")] = None,
    config: Config = None,
) -> None:
    """End a principal's tokens, and what is connected with them."""

    def work() -> int:
        loaded = configuration_loading.load(config or ctx.obj)
        store, configured = _opened(loaded, name)
        try:
            revoked = store.revoke(name, token)
        except BridgeError as exc:
            if exc.code == "unknown_principal" and token is None and (known := _still_known(loaded, configured, name)):
                raise BridgeError(exc.code, exc.message, hint=f"{known}.") from None
            raise
        terminal_output.echo(f"revoked {_tokens(revoked)} of {name}")
        if known := _still_known(loaded, configured, name):
            terminal_output.echo_err(f"mcp-bridge: {known}.")
        return exit_statuses.OK

    finish(work)


def _opened(loaded: Loaded, name: str | None = None) -> tuple[TokenStore, dict[str, Principal]]:
    """The tokens, and the principals that are configured.

    Raises:
        BridgeError: `bad_config`; `bad_principal`: there can't be one of this name.
    """
    from mcp_bridge.governance.principal_tokens import TokenStore
    from mcp_bridge.governance.principals import check_principal_name, load_principals

    if name is not None:
        check_principal_name(name)
    return TokenStore(loaded.settings.state_dir), load_principals(loaded.layers)


def _has_changed_while_served(loaded: Loaded) -> bool:
    """Whether the file that principals' tables are in was written after a bridge had begun to serve over HTTP."""
    from mcp_bridge.ledger.storage.live_bridges import serves_since_before

    file = loaded.layers[0].file
    try:
        return file is not None and serves_since_before(loaded.settings.state_dir, file.stat().st_mtime)
    except OSError:
        return False


def _known_without_token(loaded: Loaded, configured: Mapping[str, Principal]) -> dict[str, str]:
    """The principals that others than the bridge vouch for, by name: by whom.

    Raises:
        BridgeError: `bad_config`.
    """
    # It brings the libraries that decode tokens.
    from mcp_bridge.server.http.authentication.authentication_settings import load_authentication

    config = load_authentication(loaded.layers, configured)
    known: dict[str, list[str]] = {}
    for voucher, by in ((config.oauth, "by its issuer"), (config.proxy, "by its certificate")):
        if voucher is not None:
            for name in configured if voucher.principals is None else set(voucher.principals.values()):
                known.setdefault(name, []).append(by)
    return {name: " or ".join(ways) for name, ways in known.items()}


def _still_known(loaded: Loaded, configured: Mapping[str, Principal], name: str) -> str:
    """That a principal needs no token, and what ends that; empty if it needs one."""
    try:
        by = _known_without_token(loaded, configured).get(name)
    except BridgeError:
        # No bridge begins with it either; a token has to be revoked all the same.
        return ""
    return f"{name} is still known {by}, until [principals.{name}] is removed from the configuration" if by else ""


def _seconds(text: str | None, option: str) -> float | None:
    """The seconds of a time such as 90d.

    Raises:
        BridgeError: `bad_argument`.
    """
    if text is None:
        return None
    parts = re.fullmatch(r"([0-9]{1,9})([smhdw])", text)
    seconds = int(parts[1]) * _UNITS[parts[2]] if parts else 0
    if seconds > _MAX_SECONDS:
        raise BridgeError(
            "bad_argument",
            f"{option} is more than {_MAX_YEARS} years.",
            hint=f"Write {option} 90d, or leave it out.",
        )
    if not seconds:
        raise BridgeError(
            "bad_argument", f"{option} is no time.", hint=f"Write {option} 90d: a number, and s, m, h, d or w."
        )
    return float(seconds)


def _show(made: NewToken, replaced: int, *, as_json: bool) -> None:
    """Write the token on standard output, to its end: it can't be shown again."""
    if as_json:
        print_json(
            {
                "principal": made.record.principal,
                "token": made.text,
                "id": made.id,
                "expires": _json_date(made.record.expires),
                "replaced": replaced,
            }
        )
        return
    # Alone on standard output, so that a script can take it.
    terminal_output.echo(made.text)
    sys.stdout.flush()


def _tell(
    made: NewToken, replaced: int, configured: dict[str, Principal], *, as_json: bool, is_kept: bool = False
) -> None:
    """Tell on standard error what it is; `is_kept` if it is good for as long as what it replaces."""
    if as_json:
        return
    name = made.record.principal
    ends = (
        f"ends {terminal_output.moment(made.record.expires)}"
        if made.record.expires is not None
        else "doesn't end by itself"
    )
    if is_kept and made.record.expires is not None:
        ends += ", as long from now as what it replaces was made for (--expires says otherwise)"
    instead = f", in place of {_tokens(replaced)}" if replaced else ""
    terminal_output.echo_err(
        f"mcp-bridge: that is the token {made.id} of {name}{instead}. It {ends}, and isn't shown again."
    )
    if name not in configured:
        terminal_output.echo_err(
            f"mcp-bridge: there is no [principals.{name}] in your configuration: {name} may do what everybody may, and"
            " approves nothing."
        )


def _row(token: str, record: TokenRecord, configured: dict[str, Principal], now: float) -> dict[str, object]:
    return {
        "principal": record.principal,
        "id": token,
        "created": _json_date(record.created),
        "expires": _json_date(record.expires),
        "state": _state(record, configured, now),
    }


def _state(record: TokenRecord, configured: dict[str, Principal], now: float) -> str:
    if record.has_expired(now):
        return "expired"
    if record.restricted and record.principal not in configured:
        return "refused: not configured"
    return "good"


def _end(expires: float | None) -> str:
    return "never" if expires is None else terminal_output.moment(expires)


def _json_date(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _tokens(number: int) -> str:
    return "one token" if number == 1 else f"{number} tokens"
