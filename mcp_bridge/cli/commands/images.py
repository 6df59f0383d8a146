"""`mcp-bridge image build|list|prune|inspect`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from mcp_bridge import escaping
from mcp_bridge.cli import configuration_loading, exit_statuses, terminal_output
from mcp_bridge.cli.command_runner import finish, print_json
from mcp_bridge.cli.options import Config, Json  # noqa: TC001  (typer reads the annotations)
from mcp_bridge.errors import BridgeError
from mcp_bridge.private_files import require_writable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from mcp_bridge.sandbox.image.store import ImageInfo
    from mcp_bridge.sandbox.isolation_flags import RuntimeChoice

images = typer.Typer(help="Build, look at and remove the sandbox's images.", no_args_is_help=True)

T = TypeVar("T")


@images.command()
def build(
    ctx: typer.Context,
    profile: Annotated[str | None, typer.Option(help="Package profile: base or data.")] = None,
    with_: Annotated[list[str] | None, typer.Option("--with", metavar="NAME", help="Add a package.")] = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Build the image from the running interpreter, and packages from PyPI."""
    from rich.console import Console

    from mcp_bridge.sandbox.image import image
    from mcp_bridge.sandbox.open_driver import open_images

    console = Console(stderr=True)

    async def work(choice: RuntimeChoice, configuration: configuration_loading.Configuration) -> ImageInfo:
        settings = configuration.settings
        require_writable(settings.state_dir)
        request = image.ImageRequest(
            profile or settings.profile, tuple(with_ or settings.packages), "javascript" in settings.languages
        )
        with console.status("Building…") as status:
            return await image.build_image(
                open_images(choice, settings.state_dir),
                request,
                progress=status.update,
                state_dir=settings.state_dir,
            )

    built = _with_engine(config or ctx.obj, work, as_json=as_json)
    if as_json:
        print_json(asdict(built))
    else:
        sys.stdout.write(f"{built.reference}\n")


@images.command("list")
def list_(ctx: typer.Context, config: Config = None, as_json: Json = False) -> None:
    """List the images that are here."""
    from mcp_bridge.sandbox.open_driver import open_images

    async def work(choice: RuntimeChoice, configuration: configuration_loading.Configuration) -> list[ImageInfo]:
        return await open_images(choice, configuration.settings.state_dir).images()

    rows = _with_engine(config or ctx.obj, work, as_json=as_json)
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    if rows:
        cells = [
            (row.reference, row.profile, row.python, str(len(row.packages)), f"{row.size / 1e6:.0f} MB") for row in rows
        ]
        terminal_output.table(("image", "profile", "python", "packages", "size"), cells)
    else:
        terminal_output.echo("No image yet: the first run builds one, or `mcp-bridge image build`.")


@images.command(epilog="Examples:\n\nmcp-bridge image prune\n\nmcp-bridge image prune --all")
def prune(
    ctx: typer.Context,
    everything: Annotated[
        bool, typer.Option("--all", help="Also remove the image in use; the next run rebuilds it.")
    ] = False,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Remove the images that were built here and that the configuration doesn't use."""
    from mcp_bridge.cli.commands.image_prune import prune as work

    finish(
        lambda: work(configuration_loading.load(config or ctx.obj), everything=everything, as_json=as_json),
        as_json=as_json,
    )


@images.command()
def inspect(
    ctx: typer.Context,
    reference: Annotated[str | None, typer.Argument(help="The configured one by default.")] = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Show what is in an image."""
    from mcp_bridge.sandbox.image import image
    from mcp_bridge.sandbox.open_driver import open_images

    async def work(choice: RuntimeChoice, configuration: configuration_loading.Configuration) -> ImageInfo:
        settings = configuration.settings
        wanted = reference or settings.image
        configured = image.ImageRequest(settings.profile, tuple(settings.packages), "javascript" in settings.languages)
        wanted = wanted or image.image_reference(configured)
        return await image.inspect_image(open_images(choice, settings.state_dir), wanted)

    facts = _with_engine(config or ctx.obj, work, as_json=as_json)
    if as_json:
        print_json(asdict(facts))
        return
    for name, value in asdict(facts).items():
        if name != "labels":
            text = ", ".join(value) if isinstance(value, tuple) else value
            sys.stdout.write(escaping.escape_controls(f"{name}: {text}\n"))


def _with_engine(
    config: Path | None,
    work: Callable[[RuntimeChoice, configuration_loading.Configuration], Awaitable[T]],
    *,
    as_json: bool,
) -> T:
    import anyio

    from mcp_bridge.host.engine_setup import choose_engine

    async def both() -> T:
        choice = await choose_engine(configuration.settings)
        return await work(choice, configuration)

    try:
        configuration = configuration_loading.configure(config)
        return anyio.run(both)
    except BridgeError as exc:
        if not as_json:
            raise typer.Exit(exit_statuses.print_error(exc)) from None
        status = exit_statuses.exit_code(exc)
        print_json(exit_statuses.error_record(exc, status))
        raise typer.Exit(status) from None
