"""No module of the package imports itself by way of others, however late an import is made."""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "mcp_bridge"


def modules() -> dict[str, Path]:
    """The package's modules, by name."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(tree: ast.AST) -> Iterator[tuple[str, str | None]]:
    """What is imported anywhere in a module: at its top, in a function, or for a type checker alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from ((node.module or "", alias.name) for alias in node.names)


def import_graph(paths: dict[str, Path]) -> dict[str, set[str]]:
    """From each module to those that it imports. That a module's packages are imported before it isn't counted."""
    graph: dict[str, set[str]] = {}
    for module, path in paths.items():
        edges = graph[module] = set()
        for name, member in imported(ast.parse(path.read_text("utf-8"))):
            target = f"{name}.{member}" if f"{name}.{member}" in paths else name
            if target in paths and target != module:
                edges.add(target)
    return graph


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected components that have more than one member."""

    def reachable(start: str, edges: dict[str, set[str]]) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            for target in edges[waiting.pop()] - seen:
                seen.add(target)
                waiting.append(target)
        return seen

    backwards: dict[str, set[str]] = {module: set() for module in graph}
    for module, targets in graph.items():
        for target in targets:
            backwards[target].add(module)
    found: list[list[str]] = []
    left: Iterable[str] = sorted(graph)
    known: set[str] = set()
    for module in left:
        if module not in known:
            component = reachable(module, graph) & reachable(module, backwards)
            known |= component
            if component:
                found.append(sorted(component))
    return found


def test_no_module_imports_itself_by_way_of_others():
    found = cycles(import_graph(modules()))
    assert not found, "\n".join(" <-> ".join(cycle) for cycle in found)


def test_a_cycle_is_found_by_a_late_import_and_by_one_for_types(tmp_path):
    sources = {
        "mcp_bridge.a": "from mcp_bridge import b\n",
        "mcp_bridge.b": "def late():\n    from mcp_bridge.c import x\n",
        "mcp_bridge.c": "if TYPE_CHECKING:\n    import mcp_bridge.a\n",
        "mcp_bridge.d": "from mcp_bridge.a import x\n",
    }
    paths = {}
    for name, source in sources.items():
        paths[name] = tmp_path / f"{name}.py"
        paths[name].write_text(source)
    assert cycles(import_graph(paths)) == [["mcp_bridge.a", "mcp_bridge.b", "mcp_bridge.c"]]
