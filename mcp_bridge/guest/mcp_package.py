"""The `mcp` package from which scripts import, and the names that need no import."""

import sys
import types

from mcp_bridge.guest import runtime
from mcp_bridge.guest.channel import Channel
from mcp_bridge.guest.proxies import Calls, ServerModule
from mcp_bridge.wire.annotations import Any, Callable, Iterator, Mapping


class Modules:
    """Creates and finds `mcp`, `mcp.runtime`, `mcp.servers.*`, `mcp.sync.servers.*` and `mcp.tools`."""

    def __init__(
        self,
        channel: Channel,
        calls: Calls,
        servers: list[dict[str, Any]],
        prepared: dict[str, Callable[[], None]],
    ) -> None:
        """Create the modules.

        Args:
            channel: Sends their requests.
            calls: Makes their calls.
            servers: A dict `{name, alias}` for each server.
            prepared: Callbacks to run when the modules of these names are first imported.
        """
        self._prepared = prepared
        self._late = (channel, calls)
        self._aliases = [row["alias"] for row in servers]
        self._functions = runtime._Functions(channel, calls, servers)  # noqa: SLF001
        root = self._package("mcp", "The bridge: mcp.servers, mcp.sync.servers, mcp.runtime.")
        self.servers = self._server_package("mcp.servers", servers, calls, blocking=False)
        sync = self._package("mcp.sync", "The blocking forms.")
        sync.servers = self._server_package("mcp.sync.servers", servers, calls, blocking=True)  # type: ignore[attr-defined]
        self.runtime = runtime.build(self._functions, calls, servers)
        tools = self._package("mcp.tools", "Functions kept by runtime.save_tool.")
        tools.__getattr__ = self._saved_tool  # type: ignore[method-assign]
        sys.modules["mcp.runtime"] = self.runtime
        root.__getattr__ = self._later(root)  # type: ignore[method-assign]
        sync.__getattr__ = self._later(sync)  # type: ignore[method-assign]
        root.servers, root.sync, root.runtime, root.tools = self.servers, sync, self.runtime, tools  # type: ignore[attr-defined]
        root.ToolError, root.MCPError = runtime.ToolError, runtime.MCPError  # type: ignore[attr-defined]
        # The name that the SDK uses.
        root.McpError = runtime.MCPError  # type: ignore[attr-defined]
        self._own = {name: module for name, module in sys.modules.items() if name == "mcp" or name.startswith("mcp.")}
        sys.meta_path.insert(0, self)

    def names(self, servers: list[dict[str, Any]], more: dict[str, Any]) -> dict[str, Any]:
        """The names that scripts, and the functions they have kept, can use without an import: `more` among them."""
        by_name = {row["name"]: getattr(self.servers, row["alias"]) for row in servers}
        self._functions.given = given = {
            **more,
            **{f"mcp_{row['alias']}": by_name[row["name"]] for row in servers},
            "mcp_servers": by_name,
            "mcp": sys.modules["mcp"],
            "runtime": self.runtime,
            "LOADED_MCP_SERVERS": tuple(by_name),
        }
        return given

    def known_tools(self) -> dict[str, list[str]]:
        """Tools by server alias, for the servers whose tools are already listed."""
        counted = {row["alias"] for row in self._functions.list_loaded_server_metadata() if row["tools"] is not None}
        modules = {alias: getattr(self.servers, alias) for alias in self._aliases}
        return {
            alias: list(module.__dict__["__bridge__"].rows()) for alias, module in modules.items() if alias in counted
        }

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:  # noqa: ARG002
        """Suggest the nearest server for an unknown one; run callbacks for modules that are first imported."""
        if name in _LATE:
            return type(sys.__spec__)(name, _LazyLoader(*self._late))  # type: ignore[arg-type]
        if name in self._own:
            # A script has taken it out of `sys.modules`, or reloads it.
            module = self._own[name]
            return type(sys.__spec__)(name, _SameModule(module), is_package=hasattr(module, "__path__"))  # type: ignore[arg-type]
        if name.startswith("mcp."):
            # Without `name=`, "from mcp.servers import x" would swallow the message.
            raise ModuleNotFoundError(self._unknown(name))
        prepare = self._prepared.pop(name, None)
        if prepare is not None:
            for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
                spec = finder.find_spec(name, path)
                if spec is not None:
                    spec.loader = _LoaderWithCallback(spec.loader, prepare)  # type: ignore[assignment]
                    return spec
        return None

    def _unknown(self, name: str) -> str:
        """The error message for an unknown module, or an unknown name in a module."""
        from mcp_bridge.guest.advice.unknown_modules import unknown_module

        asked, near = self._functions.near_tools
        return unknown_module(name, self._aliases, self.runtime.__all__, near if name == f"mcp.tools.{asked}" else [])

    def _package(self, name: str, doc: str) -> types.ModuleType:
        module = types.ModuleType(name, doc)
        module.__path__ = []
        sys.modules[name] = module
        return module

    def _later(self, package: types.ModuleType) -> Callable[[str], Any]:
        def attribute(name: str) -> Any:
            full = f"{package.__name__}.{name}"
            if full in _LATE:
                import importlib

                return importlib.import_module(full)
            if name in self._aliases:
                return getattr(package.servers, name)
            if name.startswith("__"):
                raise AttributeError(f"module {package.__name__!r} has no attribute {name!r}")
            raise AttributeError(self._unknown(full))

        return attribute

    def _server_package(
        self, name: str, servers: list[dict[str, Any]], calls: Calls, *, blocking: bool
    ) -> types.ModuleType:
        package = ServerPackage(name, "One module a server: " + (", ".join(self._aliases) or "none configured"))
        by_name: dict[str, ServerModule] = {}
        package.__dict__["__bridge__"] = by_name, lambda wanted: self._unknown(f"{name}.{wanted}")
        package.__path__ = []
        sys.modules[name] = package
        for row in servers:
            full = f"{name}.{row['alias']}"
            module = ServerModule(full, row["name"], row["alias"], calls, blocking=blocking)
            sys.modules[full] = by_name[row["name"]] = module
            setattr(package, row["alias"], module)
        package.__all__ = list(self._aliases)  # type: ignore[attr-defined]
        return package

    def _saved_tool(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        source = self._functions.load_tool_source(name)
        if source is None:
            near = self._functions.near_tools[1]
            raise AttributeError(f"no saved tool {name!r}" + (f"; nearest: {', '.join(near)}" if near else ""))
        namespace: dict[str, Any] = {**self._functions.given, "__name__": f"mcp.tools.{name}"}
        exec(compile(source, f"/workspace/mcp.tools.{name}", "exec", dont_inherit=True), namespace)  # noqa: S102
        return namespace[name]


class ServerPackage(types.ModuleType, Mapping[str, ServerModule]):
    """`mcp.servers`: servers as attributes by alias, and as a mapping by name or alias.

    A server takes precedence over a mapping method of the same name.
    """

    def __getitem__(self, name: str) -> ServerModule:
        by_name, unknown = self.__dict__["__bridge__"]
        module = by_name.get(name) or (self.__dict__.get(name) if isinstance(name, str) else None)
        if not isinstance(module, ServerModule):
            raise KeyError(unknown(name))
        return module

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dict__["__bridge__"][0])

    def __len__(self) -> int:
        return len(self.__dict__["__bridge__"][0])

    def __bool__(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name if name.startswith("__") else self.__dict__["__bridge__"][1](name))

    def __repr__(self) -> str:
        return f"<MCP servers: {', '.join(self) or 'none configured'}>"

    __eq__ = object.__eq__
    __hash__ = object.__hash__


_LATE = frozenset({"mcp.programs", "mcp.traces", "mcp.sync.programs", "mcp.sync.traces"})
"""Modules that are built on first use: most scripts don't need the kernel, which they import."""


class _LazyLoader:
    """The loader of such a module."""

    def __init__(self, channel: Channel, calls: Calls) -> None:
        self._needs = (channel, calls)

    def create_module(self, spec: Any) -> types.ModuleType:
        from mcp_bridge.guest import programs

        return programs.build(*self._needs, spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class _SameModule:
    """The loader of a module that there is."""

    def __init__(self, module: types.ModuleType) -> None:
        self._module = module

    def create_module(self, spec: Any) -> types.ModuleType:  # noqa: ARG002
        return self._module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class _LoaderWithCallback:
    """A loader that runs a callback after its module is loaded."""

    def __init__(self, loader: Any, then: Callable[[], None]) -> None:
        self._loader = loader
        self._then = then

    def exec_module(self, module: types.ModuleType) -> None:
        self._loader.exec_module(module)
        self._then()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
