"""`mcp-bridge serve`: the server stays up even if the configuration is invalid, and reports the error."""

from __future__ import annotations

import functools
import logging
import os
import sys
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mcp_bridge import settings
from mcp_bridge.atomic_files import stamp
from mcp_bridge.bridge_identity import PORT
from mcp_bridge.cli import configuration_loading, exit_statuses, process_start
from mcp_bridge.cli.streams import queue_errors
from mcp_bridge.downstream.configuration.known_clients import CLIENTS, claude_code_settings
from mcp_bridge.errors import BridgeError
from mcp_bridge.workspace.folder_content import CONFIG_NAME, PROJECT_NAME, real_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from mcp_bridge.downstream.configuration.discovery import Discovery
    from mcp_bridge.downstream.configuration.known_clients import Client
    from mcp_bridge.server.configuration_reload import Change, Configured

logger = logging.getLogger(__name__)

AT_A_TERMINAL = """\
mcp-bridge is an MCP server: a client (Claude Code, Cursor, …) starts it, and speaks to it on its standard input. It
waits for one now, and at a terminal none will come. Press Ctrl-C, and type one of these instead:

  mcp-bridge demo                  run an agent's code in a sandbox, without a client
  mcp-bridge doctor                see what works on this machine, and what to mend
  mcp-bridge run -c 'print(6*7)'   run a script of your own
  mcp-bridge --help                see everything else

To put it behind Claude Code: claude mcp add bridge -- mcp-bridge
"""

HOST = "127.0.0.1"
"""Where `serve --transport http` listens by default, at `PORT`."""

OPEN = (
    "mcp-bridge: warning: there is no authentication: every user of this machine can run code with this bridge, and "
    "use your servers. `mcp-bridge principal add NAME` makes a token, without which it then answers nobody."
)

PLAIN_HINT = "give it a certificate with --tls-cert and --tls-key, or have it listen behind a proxy that ends TLS."

WAITING = "mcp-bridge: waiting for an MCP client on standard input; Ctrl-C ends it.\n"


class ConfigurationFiles:
    """The configuration's files, as `server.configuration_reload.Source`.

    Args:
        named: The file given by `--config`, or None.
        port: The port of HTTP, as `configuration_loading.own_address`.
    """

    def __init__(self, named: Path | None, port: int = PORT) -> None:
        self._named = named
        self._port = port
        self._reported = ""
        self._configuration: configuration_loading.Configuration | None = None
        self._stamps: dict[Path, object] = {}
        self._last: object = None
        """What the last check has found, in a comparable form."""

    @property
    def layers(self) -> Sequence[settings.Layer]:
        """The undecoded content of the files that `configure` has read."""
        found = self._configuration
        assert found is not None  # it was called
        assert found.loaded is not None  # it sets both
        return found.loaded.layers

    def configure(self) -> Configured:
        """Read the files. Modules that an earlier attempt imported are imported again.

        Raises:
            BridgeError: As `configuration_loading.configure` and `configuration_loading.refuse_nesting`.
        """
        from mcp_bridge.server.configuration_reload import Configured

        if "mcp_bridge.registered.folders" in sys.modules:
            from mcp_bridge.registered import folders

            folders.unload()
        before = _stamps((*_configuration_files(self._named), *_client_files(CLIENTS.values())))
        found = configuration_loading.configure(self._named, port=self._port)
        configuration_loading.refuse_nesting(found)
        self._configuration, self._last = found, _meaning(found.loaded, found.discovery)
        # A change after the stamps were taken is noticed by the first check.
        watched = self._watched(found.loaded)
        self._stamps = {path: before[path] if path in before else stamp(path) for path in watched}
        return Configured(
            found.settings, tuple(found.discovery.servers.values()), found.governance, found.discovery.missing
        )

    def change(self) -> Change | BridgeError | None:
        """See `Source.change`. Modification times are checked each time, and the content if they differ.

        A server stays if its file can't be read now, or no longer matches what was trusted: the running server was
        started with trusted content.
        """
        from mcp_bridge.governance.governance import LOCAL, inputs_of, snapshot_of, written_policies
        from mcp_bridge.governance.principals import load_principals
        from mcp_bridge.server.configuration_reload import Change

        started = self._configuration
        assert started is not None  # a bridge was opened with it
        if process_start.is_folder_gone():
            # With its files: what they have allowed doesn't hold any more.
            os.chdir("/")
        stamps = _stamps(self._stamps)
        if stamps == self._stamps:
            return None
        self._stamps = stamps
        try:
            # What it would print is logged.
            loaded = configuration_loading.load(self._named, quiet=True)
            # The address of the start: other bridges come and go, and with them nothing changes here.
            found = configuration_loading.discover_servers(loaded, address=started.own_address, quiet=True)
            configuration_loading.warn_ignored_files((*loaded.ignored_files, *found.ignored_files), _log)
            configuration_loading.warn_problems(found.problems, _log)
            programs = started.governance.programs if started.governance else {}
            policy = snapshot_of(
                written_policies(loaded.layers, configuration_loading.folder_servers(loaded, found), programs)
            )
            principals = load_principals(loaded.layers)
            inputs = inputs_of(loaded.layers, started.settings.state_dir)
        except BridgeError as exc:
            same, self._last = str(exc) == self._last, str(exc)
            return None if same else exc
        # Including servers of the start: content that has changed may be restored to what was trusted.
        watched = (*self._watched(started.loaded), *self._watched(loaded))
        self._stamps = {path: stamps[path] if path in stamps else stamp(path) for path in watched}
        meaning = _meaning(loaded, found)
        if meaning == self._last:
            return None
        self._last, self._reported = meaning, ""
        unsure = _unsure(loaded, found)
        servers = {name for name, spec in found.servers.items() if spec.enabled}
        servers |= {name for name, spec in started.discovery.servers.items() if spec.source in unsure}
        if not any(
            _brings_tools(layer) and str(layer.file) not in unsure for layer in _removed_layers(started.loaded, loaded)
        ):
            servers.add(LOCAL)
        differs = meaning != _meaning(started.loaded, started.discovery)
        return Change(frozenset(servers), policy, principals, inputs, differs, loaded.settings.install)

    def report_error(self, error: BridgeError) -> None:
        """Log an error, once; print it while no configuration was read that says where the log is."""
        if (said := f"{error.code}: {error}") != self._reported:
            self._reported = said
            if logging.getLogger().handlers:
                logger.error("%s", said)
            else:
                exit_statuses.print_error(error)

    def _watched(self, loaded: settings.Loaded | None) -> Iterator[Path]:
        """The configuration's files, whether they exist or not, and the files that the trusted ones have loaded."""
        yield from _configuration_files(self._named)
        if loaded is not None:
            yield from _client_files(CLIENTS[name] for name in loaded.settings.clients)
            yield loaded.trust.directory
            for layer in loaded.layers:
                yield from map(Path, layer.trusted.files if layer.trusted else ())


def _configuration_files(named: Path | None) -> Iterator[Path]:
    own = settings.named_file(named)
    here = real_folder(Path.cwd())
    yield from (own,) if own else (settings.user_file(), here / CONFIG_NAME)
    yield from CLIENTS["claude-code"].user_paths(Path.home(), os.environ)
    yield claude_code_settings(Path.home(), os.environ)
    yield from (folder / PROJECT_NAME for folder in (here, *here.parents))


def _client_files(clients: Iterable[Client]) -> Iterator[Path]:
    """The files of these clients, whether they exist or not: the user's, and those of this folder and above it."""
    here = real_folder(Path.cwd())
    for client in clients:
        yield from client.watched_paths(Path.home(), os.environ, (here, *(here.parents if client.upward else ())))


def _log(text: str) -> None:
    logger.warning("%s", text)


def _stamps(paths: Iterable[Path]) -> dict[Path, object]:
    return {path: stamp(path) for path in paths}


def _removed_layers(before: settings.Loaded | None, now: settings.Loaded) -> Iterator[settings.Layer]:
    """The content of folder files that are no longer trusted or have been removed."""
    trusted = {layer.file for layer in now.layers if layer.trusted}
    return (layer for layer in (before.layers if before else ()) if layer.trusted and layer.file not in trusted)


def _brings_tools(layer: settings.Layer) -> bool:
    return "tools" in layer.tables


def _unsure(loaded: settings.Loaded, found: Discovery) -> frozenset[str]:
    """Files that can't be read or don't match what was trusted: their servers are not considered removed."""
    over = (*loaded.ignored_files, *found.ignored_files)
    broken = {problem.file for problem in found.problems}
    return frozenset(broken | {row.file for row in over if row.code != "untrusted_file"})


def _meaning(loaded: settings.Loaded | None, found: Discovery) -> object:
    """The relevant content: clients write to their files all the time, mostly something irrelevant here."""
    assert loaded is not None  # `configure` has it
    return loaded.settings, loaded.layers, found.servers, _unsure(loaded, found)


def serve(config: Path | None, *, programs: bool = False, bare: bool = False) -> int:
    """Serve MCP on standard input and output until it ends; return the exit status.

    A bare `mcp-bridge` in a terminal explains that it waits for a client, and what to type instead.

    Args:
        config: The file given by `--config`, or None.
        programs: Whether to offer tools for programs in addition to run_python.
        bare: Whether no command was typed.
    """
    process_start.end_at_sigint()
    queue_errors()
    if sys.stdin is not None and sys.stdin.isatty():
        print(AT_A_TERMINAL if bare else WAITING, end="", file=sys.stderr)  # noqa: T201
    files = ConfigurationFiles(config)
    from mcp_bridge.server.configuration_reload import configured

    # Outside of the event loop: the operator's modules are imported, and may run one of their own.
    first = configured(files)
    import anyio

    from mcp_bridge.server.deferred_models import deferred_models
    from mcp_bridge.server.late_packages import postpone
    from mcp_bridge.server.process_memory import missing

    postpone("mcp", "mcp.server")

    # With the SDK comes its HTTP server, and with that a library that hooks into uvicorn's shutdown if it is installed.
    # Nothing is served over HTTP here; whoever imports uvicorn later gets it.
    with missing("uvicorn"), deferred_models():
        from mcp_bridge.server.app import serve_stdio

    error = anyio.run(functools.partial(serve_stdio, programs=programs), files, first)
    return exit_statuses.OK if error is None else exit_statuses.exit_code(error)


def serve_http(
    config: Path | None,
    *,
    host: str = HOST,
    port: int = PORT,
    certificate: Path | None = None,
    key: Path | None = None,
    programs: bool = False,
) -> int:
    """Serve MCP over streamable HTTP until SIGTERM or SIGINT; return the exit status.

    Args:
        config: The file given by `--config`, or None.
        host: The host name or address to listen at.
        port: The port; 0 for any free one.
        certificate: The file of the TLS certificate chain; None for plain HTTP.
        key: The file of its private key; None if it is in the certificate's.
        programs: Whether to offer tools for programs in addition to run_python.

    Raises:
        BridgeError: `bad_argument`, `cannot_listen`, `authentication_needed`; as `ConfigurationFiles.configure`,
            `open_authenticator`.
    """
    process_start.end_at_sigint()
    queue_errors()
    _check_tls(certificate, key)
    files = ConfigurationFiles(config, port)
    from mcp_bridge.server.configuration_reload import configured

    first = configured(files)
    if isinstance(first, BridgeError):
        # Nobody would see why no call works: unlike a client of stdio, an operator sees the command fail.
        raise first
    import anyio

    from mcp_bridge.cli import terminal_output
    from mcp_bridge.cli.listen_addresses import listening, warn_of_plain_http
    from mcp_bridge.http_settings import VIEWER_PATH
    from mcp_bridge.server.deferred_models import deferred_models
    from mcp_bridge.server.late_packages import postpone

    postpone("mcp", "mcp.server")
    with deferred_models():
        from mcp_bridge.server.http.app import serve_http
        from mcp_bridge.server.http.certificate import Tls
    from mcp_bridge.server.http.authentication.authenticator import open_authenticator

    directory = first.settings.state_dir
    authenticator = open_authenticator(files.layers, directory)
    tls = Tls(certificate, key) if certificate else None
    with (
        listening(host, port, hint="Name another with --host and --port.") as listener,
        _serving_at(directory, listener.getsockname()[1]),
    ):
        address, bound = listener.getsockname()[:2]
        name = f"[{address}]" if ":" in address else address

        def announce() -> None:
            terminal_output.echo(
                f"MCP over HTTP: {'https' if tls else 'http'}://{name}:{bound}{first.settings.http.path}"
            )
            if first.settings.http.viewer:
                terminal_output.echo(f"The trace viewer: {'https' if tls else 'http'}://{name}:{bound}{VIEWER_PATH}/")
            sys.stdout.flush()
            if not authenticator.authenticates:
                terminal_output.echo_err(OPEN)
            elif tls is None:
                warn_of_plain_http(listener, "take the tokens, and act as their principals", PLAIN_HINT)

        error = anyio.run(
            functools.partial(serve_http, programs=programs, tls=tls, listening=announce),
            files,
            first,
            listener,
            first.settings.http,
            authenticator,
        )
    return exit_statuses.OK if error is None else exit_statuses.exit_code(error)


@contextmanager
def _serving_at(directory: Path, port: int) -> Iterator[None]:
    """Record where a bridge serves, so that `install` and the like know its address in clients' files."""
    from mcp_bridge.ledger.storage.live_bridges import Presence
    from mcp_bridge.sandbox.ownership import owner_label

    with ExitStack() as stack:
        # Why the state directory can't be used is said when the bridge is opened.
        with suppress(BridgeError):
            presence = Presence(directory, owner_label())
            stack.callback(presence.leave)
            presence.serve_at(port)
        yield


def _check_tls(certificate: Path | None, key: Path | None) -> None:
    """Refuse files that can't be used, before anything is started.

    Raises:
        BridgeError: `bad_argument`.
    """
    if certificate is None:
        if key is not None:
            raise BridgeError(
                "bad_argument", "--tls-key is there without the certificate.", hint="Name its file with --tls-cert."
            )
        return
    from mcp_bridge.server.http.certificate import Tls, why_unusable

    try:
        Tls(certificate, key).load()
    except (OSError, ValueError) as exc:
        raise BridgeError(
            "bad_argument",
            f"--tls-cert, --tls-key: {certificate} and its key can't be used: {why_unusable(exc)}.",
            hint="Name PEM files; the key has no passphrase.",
        ) from None
