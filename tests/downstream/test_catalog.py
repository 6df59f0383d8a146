"""Finding and describing tools, of servers that run and of those that don't."""

import json
import stat
import warnings
from dataclasses import replace

import anyio
import pytest
from downstream_calls import call_tool
from hypothesis import given
from hypothesis import strategies as st
from servers.specs import faulty

from mcp_bridge.downstream.catalog import describe, schema_types, signatures
from mcp_bridge.downstream.catalog.catalog import Catalog
from mcp_bridge.downstream.catalog.schema_types import TypeRenderer, object_shape
from mcp_bridge.downstream.catalog.tool_results import convert, is_wrapped
from mcp_bridge.downstream.catalog.tools import listing_from_wire
from mcp_bridge.downstream.client import supervised_server as supervisor_module
from mcp_bridge.downstream.client.fleet import Fleet
from mcp_bridge.downstream.configuration.spec import ServerSpec
from mcp_bridge.downstream.search.index import InvertedIndex
from mcp_bridge.downstream.search.search import SearchIndex
from mcp_bridge.downstream.search.words import split
from mcp_bridge.errors import BridgeError

pytest_plugins = ["server_fixtures"]
pytestmark = pytest.mark.timeout(60)


def make(name, description="", *, server="s", schema=None, output=None, title=None):
    [tool] = listing_from_wire(
        server,
        server,
        [
            {
                "name": name,
                "description": description,
                "inputSchema": schema or {},
                "outputSchema": output,
                "title": title,
            }
        ],
    ).tools
    return tool


# Search.

TOOLS = [
    make("create_issue", "Create a new issue in a repository", server="github"),
    make("list_issues", "List issues of a repository", server="github"),
    make("create_pull_request", "Open a pull request; may close an issue", server="github"),
    make("readFile", "Read the whole content of a file", server="filesystem"),
    make("write_file", "Write content to a file, creating it if needed", server="filesystem"),
    make("read_media_file", "Read an image or audio file", server="filesystem"),
    make("git_log", "Shows the commit logs: the history of commits", server="git"),
    make("git_commit", "Records changes to the repository", server="git"),
    make("git_status", "Shows the working tree status", server="git"),
    make("browser_click", "Click an element", server="browser", schema={"properties": {"elementReference": {}}}),
]


@pytest.fixture
def index():
    return SearchIndex(TOOLS)


def found(index, query, **options):
    return [hit.tool.name for hit in index.search(query, **options)]


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("create issue", "create_issue"),
        ("creating issues", "create_issue"),
        ("createIssue", "create_issue"),
        ("read file", "readFile"),
        ("READ-FILE", "readFile"),
        ("readfile", "readFile"),
        ("git commit history", "git_log"),
        ("git status", "git_status"),
        ("add ticket", "create_issue"),
        ("element reference", "browser_click"),
        ("stat", "git_status"),
        ("filesys writ", "write_file"),
    ],
)
def test_the_obvious_tool_comes_first(index, query, first):
    assert found(index, query)[0] == first


def test_all_words_must_match_when_any_tool_has_them_all(index):
    assert set(found(index, "read file")) == {"readFile", "read_media_file"}


def test_when_no_tool_has_every_word_those_with_any_are_ranked_unless_strict(index):
    assert "create_issue" in found(index, "create issue banana")
    assert found(index, "create issue banana", strict=True) == []
    assert found(index, "banana") == []


@pytest.mark.parametrize("query", ["", "   ", "*", '"', "()-^:+"])
def test_a_query_without_a_word_lists_tools_up_to_the_limit(index, query):
    assert found(index, query, limit=4) == ["browser_click", "readFile", "read_media_file", "write_file"]
    assert found(index, query, limit=0) == []


def test_a_phrase_that_no_tool_has_finds_what_has_its_words(index):
    assert len(index.search("ErrorType")) <= 10


@given(st.text(max_size=60))
def test_no_text_is_ever_read_as_search_syntax(query):
    index = SearchIndex(TOOLS)
    assert len(index.search(query)) <= 10


@pytest.mark.parametrize(
    "query", ['issue" OR name:"git', "NEAR(git log)", "name : git", "NOT git", "AND", "issue*", "a\0b"]
)
def test_operators_in_a_query_are_words(index, query):
    index.search(query)


HIDING = [
    make("push_files", "Add files to a GitHub repository in a single commit", server="github"),
    make("merge_pull_request", "Merge a request; may add a commit to the git history", server="github"),
    make("git_add", "Adds file contents to the staging area", server="git"),
    make("git_commit", "Records changes to the repository", server="git"),
    make("git_status", "Shows the working tree status", server="git"),
    make("convert_time", "Convert between zones", server="time"),
    make("get_current_time", "The time now", server="time"),
    make("echo", "Says what it was told", server="everything"),
    make("search_files", "Search for files by the time of their last change", server="filesystem"),
]


def test_tools_whose_name_or_server_is_in_the_query_are_not_hidden_by_those_that_have_every_word():
    index = SearchIndex(HIDING)
    assert found(index, "push files commit", strict=True) == ["push_files"]
    assert set(found(index, "git add commit")[:2]) == {"git_add", "git_commit"}
    assert {"push_files", "merge_pull_request"} <= set(found(index, "git add commit"))
    assert "git_status" not in found(index, "git add commit"), "of it the query has its server's name alone"
    assert set(found(index, "git add commit", strict=True)) == {"merge_pull_request", "push_files"}
    assert found(index, "search files by time")[0] == "search_files"
    assert set(found(index, "time")) >= {"convert_time", "get_current_time"}
    only = found(index, "git add commit", allowed=lambda tool: tool.server == "github")
    assert set(only) == {"push_files", "merge_pull_request"}


def test_equals_are_ranked_by_server_and_name():
    # No word of the names has a vector: they are equally near to everything.
    tools = [make(name, "same text", server=server) for server in ("b", "a") for name in ("qqy", "qqx")]
    for ordered in (tools, tools[::-1]):
        hits = SearchIndex(ordered).search("same text")
        assert [(hit.tool.server, hit.tool.name) for hit in hits] == [
            ("a", "qqx"),
            ("a", "qqy"),
            ("b", "qqx"),
            ("b", "qqy"),
        ]


def test_what_is_not_allowed_is_left_out_before_the_limit(index):
    assert found(index, "issue", limit=1, allowed=lambda tool: tool.name == "list_issues") == ["list_issues"]


def test_names_are_split_into_words():
    assert split("getHTTPResponse_v2-now") == ["get", "http", "response", "v2", "now"]


# Descriptions.

STATUS = make(
    "git_status",
    "Shows the working tree status. Needs a repository.",
    server="git",
    schema={
        "type": "object",
        "properties": {
            "verbose": {"type": "boolean", "default": False},
            "repo_path": {"type": "string", "description": "Path of\n the repository"},
            "from": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "kebab-case": {"enum": ["a", "b"]},
        },
        "required": ["repo_path", "from"],
    },
    output={"type": "object", "properties": {"result": {"type": "string"}}, "required": ["result"]},
)


def test_a_line_names_the_call_and_its_purpose():
    assert describe.line(STATUS) == (
        "git.git_status(repo_path, from_, verbose=False, kebab_case=...) — Shows the working tree status"
    )


def test_a_signature_has_the_required_first_then_the_schemas_order():
    signature = signatures.signature(STATUS)
    shown = [(p.py_name, p.json_name, p.annotation, p.required, p.has_default, p.default) for p in signature.params]
    assert shown == [
        ("repo_path", "repo_path", "str", True, False, None),
        ("from_", "from", "str | None", True, False, None),
        ("verbose", "verbose", "bool", False, True, False),
        ("kebab_case", "kebab-case", "Literal['a', 'b']", False, False, None),
    ]
    assert signature.returns == "str"
    assert json.loads(json.dumps(signature.record()))["params"][0]["description"] == "Path of the repository"


def test_a_rendering_is_a_call_a_description_and_the_described_parameters():
    assert describe.render(STATUS) == (
        "await git.git_status(repo_path: str, from_: str | None, verbose: bool = False, "
        "kebab_case: Literal['a', 'b'] = ...) -> str\n"
        "  Shows the working tree status. Needs a repository.\n"
        "  repo_path: Path of the repository"
    )


def test_what_a_rendering_cuts_is_read_in_full():
    long = {
        "properties": {
            "a": {"type": "string", "description": "first words " + "and more " * 40 + "last words"},
            "b": {"type": "string", "default": "x" * 100},
        }
    }
    cases = {
        "description": make("x", "Begins. " + "More of it. " * 100 + "It ends."),
        "parameter": make("x", "Short.", schema={"properties": {"a": long["properties"]["a"]}}),
        "default": make("x", "Short.", schema={"properties": {"b": long["properties"]["b"]}}),
        "parameters": make("x", "Short.", schema={"properties": {f"p{number}": {} for number in range(60)}}),
    }
    ends = {"description": "It ends.", "parameter": "last words", "default": "x" * 100, "parameters": "p59: Any"}
    for case, tool in cases.items():
        rendered = describe.render(tool)
        assert rendered.splitlines()[-1] == '  … all of it: await runtime.describe("s.x", "full")', case
        assert ends[case] not in rendered
        assert ends[case] in describe.full(tool)
        assert "…" not in describe.full(tool)
    assert "all of it" not in describe.render(STATUS)


TASK = {
    "type": "object",
    "properties": {
        "content": {"type": "string", "description": "What is to be done."},
        **{f"field_{number}": {"type": "integer"} for number in range(18)},
        "state": {"$ref": "#/$defs/State"},
    },
    "required": ["content"],
}
STATES = {"enum": [f"state {number}" for number in range(40)], "description": "Where it stands."}
SORT = {"oneOf": [{"const": "asc", "description": "The first one first."}, {"const": "desc"}]}
CREATE = make(
    "create_tasks",
    "Creates tasks.",
    schema={
        "properties": {"items": {"type": "array", "items": TASK}, "sort": SORT, "state": {"$ref": "#/$defs/State"}},
        "required": ["items"],
        "$defs": {"State": STATES},
    },
    output={"type": "object", "properties": {"ids": {"type": "array", "description": "Their ids."}}},
)


def test_in_full_a_tool_has_the_fields_values_and_descriptions_within_its_types():
    rendered = describe.render(CREATE)
    assert "items: list[dict(content: str, …)]" in rendered
    assert "state: Literal['state 0', 'state 1', 'state 2', …] = ..." in rendered
    assert rendered.endswith('… all of it: await runtime.describe("s.create_tasks", "full")')
    full = describe.full(CREATE)
    assert "list[dict(content: str, field_0?: int, " in full
    assert full.count("'state 39'") == 2
    assert full.splitlines()[1:] == [
        "  Creates tasks.",
        "    items[].content: What is to be done.",
        "    items[].state: Where it stands.",
        "    sort = 'asc': The first one first.",
        "  state: Where it stands.",
        "  result.ids: Their ids.",
        '  As JSON Schema: await runtime.describe("s.create_tasks", "schema")',
    ]
    assert "…" not in full
    types = {row["name"]: row["type"] for row in describe.proxy_row(CREATE, is_whole=True)["params"]}
    assert "field_17?: int" in types["items"]


def test_a_signature_says_that_descriptions_within_a_type_are_left_out():
    tool = make("x", schema={"properties": {"a": {"items": {"type": "string", "description": "One of them."}}}})
    assert describe.render(tool).endswith(
        'list[str] = ...) -> str | list | None\n  … all of it: await runtime.describe("s.x", "full")'
    )


def test_what_is_too_long_even_in_full_is_said_with_where_to_read_it():
    large = {"properties": {f"{number}{'x' * 300}": {"type": "string"} for number in range(100)}}
    long = {"items": {"type": "string", "description": "word " * 10_000}}
    tree = {"properties": {"children": {"items": {"$ref": "#/properties/tree"}}}}
    full = describe.full(make("x", schema={"properties": {"a": {}, "large": large, "long": long, "tree": tree}}))
    assert full.splitlines()[-1] == (
        "  … left out: parts of large, tree, long (more than 20,000 characters, or a type within itself). "
        'As JSON Schema: await runtime.describe("s.x", "schema")'
    )
    many = make("x", schema={"properties": {f"p{number}": {} for number in range(250)}})
    assert "p199: Any = ..., … 50 more) -> " in describe.full(many)


EITHER = {"properties": {"id": {"type": "string"}, "userName": {"type": "string"}, "from": {}}}


@pytest.mark.parametrize(("keyword", "said"), [("oneOf", "Give one of"), ("anyOf", "Give at least one of")])
def test_what_is_needed_in_one_of_several_ways_is_said(keyword, said):
    ways = [{"required": ["id"]}, {"required": ["userName", "from"]}]
    tool = make("x", "About it.", schema=EITHER | {keyword: ways})
    line = f"{said}: id; userName and from_."
    assert describe.render(tool).splitlines()[2] == f"  {line}"
    assert describe.full(tool).splitlines()[2] == f"  {line}"
    assert describe.proxy_row(tool)["doc"] == f"About it.\n\n{line}"
    one_needs_nothing = make("x", schema=EITHER | {keyword: [*ways, {"properties": {"from": {}}}]})
    assert said not in describe.render(one_needs_nothing)
    nested = make("x", schema={"properties": {"rows": {"items": EITHER | {keyword: ways}}}})
    assert f"rows[]: {said.lower()}: id; userName and from" in describe.full(nested)


def test_one_sentence_says_how_a_tool_is_called():
    assert describe.call_hint(STATUS) == (
        "It is git.git_status(repo_path: str, from_: str | None, verbose: bool = False, "
        "kebab_case: Literal['a', 'b'] = ...) -> str. In a dict of arguments: 'from' for from_, 'kebab-case' for kebab_case."
    )
    many = make("x", schema={"properties": {f"parameter_{number}": {"type": "string"} for number in range(150)}})
    assert len(describe.call_hint(many)) < 1700
    assert 'more: await runtime.describe("s.x", "full")' in describe.call_hint(many)


def test_what_is_required_and_has_a_default_may_be_left_out():
    schema = {
        "properties": {
            "element": {"type": "string", "default": "body"},
            "ref": {"type": "string"},
            "verbose": {"type": "boolean", "default": False},
            "size": {"$ref": "#/$defs/Size"},
            "to": {"type": ["string", "null"], "default": None},
        },
        "required": ["element", "ref", "size", "to"],
        "$defs": {"Size": {"type": "integer", "default": 3}},
    }
    tool = make("x", schema=schema)
    shown = "s.x(ref: str, to: str | None, element: str = 'body', size: int = 3, verbose: bool = False)"
    assert describe.render(tool).startswith(f"await {shown}")
    rows = {row["name"]: row for row in describe.proxy_row(tool)["params"]}
    assert [name for name, row in rows.items() if row["required"]] == ["ref", "to"], "null is no default to be sent"
    assert (rows["element"]["default"], rows["size"]["default"]) == ("body", 3)


def test_a_proxy_row_carries_what_a_function_is_made_from():
    row = describe.proxy_row(STATUS)
    assert row["params"][2] == {
        "name": "verbose",
        "json": "verbose",
        "type": "bool",
        "required": False,
        "default": False,
    }
    assert "default" not in row["params"][3]
    assert (row["name"], row["alias"], row["returns"], row["extra"]) == ("git_status", "git_status", "str", False)
    assert row["doc"].endswith("repo_path: Path of the repository")


def test_controls_and_what_turns_text_around_are_escaped_in_descriptions():
    odd = "a\x1b[31mb\u202ec"
    described = make("x", f"{odd}\n\tmore", schema={"properties": {"p": {"type": "string", "description": odd}}})
    shown = [describe.line(described), describe.render(described), describe.full(described)]
    for text in [*shown, describe.proxy_row(described)["doc"]]:
        assert "a\\x1b[31mb\\u202ec" in text
        assert not {"\x1b", "\u202e"} & set(text)
    assert describe.schemas(described)["input"]["properties"]["p"]["description"] == odd


def test_schemas_are_given_as_they_came():
    assert describe.schemas(STATUS)["input"] is STATUS.input_schema
    assert describe.schemas(make("x"))["output"] is None


def test_what_a_schema_allows_besides_is_a_keyword_parameter():
    schema = {"properties": {"kwargs": {}}, "additionalProperties": {"type": "integer"}}
    *_, rest = signatures.signature(make("x", schema=schema)).params
    assert (rest.py_name, rest.annotation, rest.kind) == ("extra_kwargs", "int", "var_keyword")
    assert "**extra_kwargs: int" in describe.render(make("x", schema=schema))


@pytest.mark.parametrize(
    ("others", "shown"),
    [
        ({"patternProperties": {"^x-": {"type": "integer"}}, "additionalProperties": False}, "**kwargs: int"),
        ({"patternProperties": {"^x-": {"type": "integer"}, "^y-": {"type": "string"}}}, "**kwargs: int | str"),
        (
            {"patternProperties": {"^x-": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
            "**kwargs: int | str",
        ),
        ({"patternProperties": {"^x-": {"type": "integer"}}, "additionalProperties": True}, "**kwargs: Any"),
        ({"allOf": [{"patternProperties": {"^x-": {"type": "integer"}}}]}, "**kwargs: int"),
        ({"patternProperties": {"^x-": False, "^y-": {"$ref": "#/$defs/a"}}, "$defs": {"a": {}}}, "**kwargs: Any"),
        ({"patternProperties": {"^x-": False}}, ""),
        ({"patternProperties": ["^x-"]}, ""),
    ],
)
def test_names_that_a_schema_tells_by_an_expression_are_a_keyword_parameter(others, shown):
    tool = make("x", schema={"type": "object"} | others)
    assert describe.render(tool).startswith(f"await s.x({shown})")
    assert describe.proxy_row(tool)["extra"] == bool(shown)


@pytest.mark.parametrize(
    ("expression", "beginning"),
    [
        ("^x-", "x-"),
        ("^x-.*$", "x-"),
        (r"^\$ref\.[a-z]+$", "$ref."),
        ("^ab*$", "a"),
        ("^a?", ""),
        (r"^a\-{0,2}", "a"),
        ("^x-(a|b)", ""),
        ("^x|y", ""),
        (r"^a\d", "a"),
        ("x-", ""),
        (".*", ""),
        ("(?i)^x-", ""),
        ("^[xy]-", ""),
        ("^" + "x" * 1000, "x" * 100),
    ],
)
def test_of_names_that_an_expression_tells_the_beginning_is_known(expression, beginning):
    schema = {"type": "object", "patternProperties": {expression: {}}}
    assert describe.proxy_row(make("x", schema=schema))["beginnings"] == [beginning]
    assert "beginnings" not in describe.proxy_row(make("x", schema=schema | {"additionalProperties": {}}))


def test_of_many_expressions_none_refuses_a_name_that_another_tells():
    schema = {"type": "object", "patternProperties": {f"^x{number}": {} for number in range(60)}}
    assert "" in describe.proxy_row(make("x", schema=schema))["beginnings"]


def test_parameters_whose_names_collide_get_distinct_ones():
    schema = {"properties": {"a-b": {}, "a_b": {}, "class": {}, "class_": {}, "": {}}}
    names = {p.json_name: p.py_name for p in signatures.signature(make("x", schema=schema)).params}
    assert len(set(names.values())) == 5
    assert (names["a_b"], names["class_"]) == ("a_b", "class_")


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "string"}, "str"),
        ({"type": ["string", "null"]}, "str | None"),
        ({"type": "integer", "nullable": True}, "int | None"),
        ({"anyOf": [{"type": "null"}, {"type": "number"}]}, "float | None"),
        ({"oneOf": [{"const": "a"}, {"const": 1}]}, "Literal['a'] | Literal[1]"),
        ({"enum": ["a", None]}, "Literal['a'] | None"),
        ({"enum": [f"value {number}" for number in range(50)]}, "Literal['value 0', 'value 1', 'value 2', …]"),
        ({"enum": [*("x" * 50 + str(number) for number in range(50)), None]}, "str(…) | None"),
        ({"properties": {f"f{number}": {} for number in range(13)}, "required": ["f3"]}, "dict(f3: Any, …)"),
        ({"items": {"properties": {f"f{number}": {} for number in range(13)}}}, "list[dict(…)]"),
        (
            {"anyOf": [{"required": ["x"]}, {"required": ["y"]}], "properties": {"x": {}, "y": {}}},
            "dict(x?: Any, y?: Any)",
        ),
        (
            {"allOf": [{"$ref": "#/$defs/Point"}, {"properties": {"y": {"type": "integer"}}}]},
            "dict(x: int, label?: str, y?: int)",
        ),
        ({"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}, "list[list[int]]"),
        ({"type": "array"}, "list"),
        ({"items": {"$ref": "#/$defs/Point"}}, "list[dict(x: int, label?: str)]"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "dict[str, float]"),
        ({"allOf": [{"$ref": "#/$defs/Point"}], "default": None}, "dict(x: int, label?: str)"),
        ({"$ref": "#/$defs/Tree"}, "dict(children?: list[dict(…)])"),
        ({"$ref": "#/$defs/Loop"}, "Any(…)"),
        ({"$ref": "https://example.org/x"}, "Any"),
        ({}, "Any"),
        (True, "Any"),
        ({"type": "martian"}, "Any"),
    ],
)
def test_types_are_rendered_as_python_would_write_them(schema, text):
    defs = {
        "Point": {
            "type": "object",
            "properties": {"x": {"type": "integer"}, "label": {"type": "string"}},
            "required": ["x"],
        },
        "Tree": {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}}},
        "Loop": {"$ref": "#/$defs/Loop"},
    }
    assert TypeRenderer({"$defs": defs}).render(schema) == text


def test_the_parameters_of_a_union_of_objects_are_all_of_them_and_required_those_in_common():
    one = {"properties": {"a": {}, "b": {}}, "required": ["a", "b"]}
    other = {"properties": {"a": {}, "c": {}}, "required": ["a", "c"]}
    shape = object_shape({"oneOf": [one, other], "allOf": [{"properties": {"d": {}}, "required": ["d"]}]})
    assert (set(shape.properties), shape.required) == ({"a", "b", "c", "d"}, {"a", "d"})


def _nested(depth):
    schema = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"x": schema}, "anyOf": [schema, {"type": "array", "items": schema}]}
    return schema


HOSTILE = [
    {"properties": []},
    {"properties": {"a": 7, "b": None, "c": [], "d": True, "e": "x"}},
    {
        "properties": {
            "a": {"type": {"no": 1}},
            "b": {"enum": 7},
            "c": {"items": 3},
            "d": {"anyOf": {}},
            "e": {"$ref": 7},
        }
    },
    {
        "properties": {
            "a": {"enum": [[], {}, 1.5, None]},
            "b": {"type": [[], {}, None]},
            "c": {"required": 7, "properties": {"x": 1}},
        }
    },
    {"required": "abc", "properties": {"a": {}}},
    {"required": [1, None, {}, "missing"]},
    {"$ref": "#"},
    {"allOf": [{"$ref": "#"}] * 5, "anyOf": [{"$ref": "#"}] * 5},
    {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    {"properties": {f"property_{number}": {"type": "string"} for number in range(10_000)}},
    {"properties": {"x" * 100_000: {"description": " " * 1_000_000, "default": "y" * 1_000_000}}},
    {"properties": {"a": {"$ref": "#/properties/a/items/0/~0~1"}}},
    _nested(12),
    {"additionalProperties": {"$ref": "#"}},
    {"properties": {"a": {"anyOf": [{"$ref": "#/properties/a"}] * 50}}},
]


def test_what_unions_need_costs_a_bounded_number_of_merges(monkeypatch):
    """A schema of 18 KB that refers to a union in a union has thousands of names in each of many ways."""
    merged = []
    gather = schema_types._gather
    monkeypatch.setattr(schema_types, "_gather", lambda *given: merged.append(1) or gather(*given))
    union = {"anyOf": [{"$ref": "#/$defs/B"}] * 50, "oneOf": [{"$ref": "#/$defs/B"}] * 50}
    schema = {
        "type": "object",
        "$defs": {"A": {"required": [f"n{i}" for i in range(1000)]}, "B": {"allOf": [{"$ref": "#/$defs/A"}] * 24}},
        "allOf": [union] * 50,
        "properties": {f"p{i}": {"type": "object", "allOf": [union] * 50} for i in range(5)},
    }
    tool = make("t", schema=schema)
    for shown in (describe.proxy_row, describe.render, describe.full):
        merged.clear()
        assert shown(tool)
        assert len(merged) < 5_000, shown


@pytest.mark.parametrize("index", ["²", "٣", "-1", "9", "9" * 5000])
def test_a_reference_to_what_is_no_index_of_a_list_leads_nowhere(index):
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": f"#/properties/b/anyOf/{index}"}, "b": {"anyOf": [{"type": "string"}]}},
    }
    tool = make("t", schema=schema, output=schema)
    assert describe.line(tool) == "s.t(a=..., b=...)"
    assert "(a: Any = ..., b: str = ...)" in describe.render(tool)
    assert describe.search_result_line(tool)
    assert describe.full(tool)
    assert describe.proxy_row(tool)


def test_a_reference_that_is_very_long_leads_nowhere():
    name = "A" * schema_types.MAX_REFERENCE_CHARS
    root = {"$defs": {name: {"type": "string"}, "B": {"type": "string"}}}
    assert schema_types.resolve(root, "#/$defs/B") == {"type": "string"}
    assert schema_types.resolve(root, f"#/$defs/{name}") is None


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_no_schema_makes_a_description_raise_or_run_away(number):
    schema = HOSTILE[number]
    tool = make("x", "words " * 100_000, schema=schema, output=schema)
    json.dumps(signatures.signature(tool).record())
    json.dumps(describe.proxy_row(tool))
    assert len(describe.full(tool).replace("x" * 100_000, "")) < 2_000_000
    json.dumps(describe.proxy_row(tool, is_whole=True))
    assert len(describe.line(tool).replace("x" * 100_000, "")) < 1_000
    assert len(describe.render(tool).replace("x" * 100_000, "")) < 20_000


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["type", "properties", "items", "$ref", "anyOf", "allOf", "enum", "required", "const", "default", "a"]
            ),
            inner | st.sampled_from(["object", "array", "string", "#", "#/properties/a", "null"]),
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(
    st.dictionaries(st.sampled_from(["type", "properties", "$ref", "anyOf", "oneOf", "allOf", "required"]), json_values)
)
def test_any_json_can_stand_where_a_schema_should(schema):
    tool = make("x", schema=schema, output=schema)
    json.dumps(describe.proxy_row(tool))
    describe.line(tool)
    describe.render(tool)
    describe.full(tool)


# Results.


def result(*blocks, **fields):
    from mcp_types import CallToolResult

    return CallToolResult.model_validate({"content": list(blocks), **fields}, by_name=False)


WRAPPED = {"type": "object", "properties": {"result": {"type": "integer"}}, "required": ["result"]}
TEXT = {"type": "text", "text": "hello"}


def test_structured_content_is_the_value_and_is_unwrapped_only_where_an_sdk_wrapped_it():
    wrapped = make("x", output=WRAPPED)
    assert convert(result(TEXT, structuredContent={"result": 3}), wrapped)["value"] == 3
    assert convert(result(TEXT, structuredContent={"result": 3}))["value"] == {"result": 3}
    free = make("x", output={"type": "object", "properties": {"result": {}, "more": {}}, "required": ["result"]})
    assert convert(result(TEXT, structuredContent={"result": 3}), free)["value"] == {"result": 3}
    optional = {key: value for key, value in WRAPPED.items() if key != "required"}
    assert not is_wrapped(optional)
    assert is_wrapped(optional | {"x-fastmcp-wrap-result": True})


@pytest.mark.parametrize(
    ("blocks", "value"),
    [
        ([], None),
        ([TEXT], "hello"),
        ([TEXT, {"type": "text", "text": "  "}, TEXT], "hello\n  \nhello"),
        (
            [{"type": "image", "data": "AAAA", "mimeType": "image/png"}],
            [{"type": "image", "mime_type": "image/png", "data": "AAAA"}],
        ),
        (
            [TEXT, {"type": "resource", "resource": {"uri": "file:///x", "mimeType": "text/plain", "text": "t"}}],
            ["hello", {"type": "resource", "uri": "file:///x", "mime_type": "text/plain", "text": "t"}],
        ),
        (
            [{"type": "resource", "resource": {"uri": "file:///x", "blob": "AA=="}}],
            [{"type": "resource", "uri": "file:///x", "mime_type": None, "data": "AA=="}],
        ),
        (
            [{"type": "resource_link", "uri": "file:///x", "name": "x", "size": 3}],
            [{"type": "resource_link", "uri": "file:///x", "name": "x", "mime_type": None, "size": 3}],
        ),
    ],
)
def test_content_becomes_text_or_a_list_of_blocks(blocks, value):
    assert convert(result(*blocks))["value"] == value


def test_an_error_gives_its_text_and_raw_gives_what_was_sent():
    converted = convert(result(TEXT, isError=True, structuredContent={"a": 1}, _meta={"k": 1}))
    assert (converted["value"], converted["is_error"]) == ("hello", True)
    assert converted["raw"] == {"content": [TEXT], "isError": True, "structuredContent": {"a": 1}, "_meta": {"k": 1}}


# The catalog.


def fleet_of(*specs):
    return Fleet(specs)


async def test_a_search_covers_servers_that_do_not_run_and_says_which_it_could_not_see(tmp_path):
    specs = [
        faulty(),
        faulty("dead", name="dead"),
        faulty("silent", name="silent"),
        faulty(name="off", enabled=False),
    ]
    async with fleet_of(*specs) as fleet:
        catalog = Catalog(fleet, tmp_path)
        answer = await catalog.search("echo", wait=2.0)
        assert [hit.tool.server for hit in answer.hits] == ["faulty"]
        assert [part for part in ("dead", "silent") if part in " ".join(answer.notices)] == ["dead", "silent"]
        assert len(answer.notices) == 2


async def test_what_can_not_be_started_as_configured_is_passed_over_in_silence(tmp_path):
    async with fleet_of(faulty()) as fleet:
        await Catalog(fleet, tmp_path).search("")
    specs = [
        faulty(enabled=False),
        ServerSpec(name="wrong", command="x", problem="env.K is missing."),
    ]
    async with fleet_of(*specs) as fleet:
        catalog = Catalog(fleet, tmp_path)
        assert [status.state for status in catalog.servers()] == ["disabled", "misconfigured"]
        answer = await catalog.search("echo")
        assert (answer.hits, answer.notices) == ([], [])


async def test_a_search_waits_once_for_a_server_that_hangs_and_a_later_one_finds_it(tmp_path):
    slow = faulty("slow", 3, name="slow", era="legacy", start_timeout=20)
    hung = faulty("silent", name="hung", start_timeout=20)
    async with fleet_of(faulty(), slow, hung) as fleet:
        catalog = Catalog(fleet, tmp_path)
        first = await catalog.search("echo", wait=1.0)
        assert [hit.tool.server for hit in first.hits] == ["faulty"]
        assert len(first.notices) == 2
        with anyio.fail_after(2):
            second = await catalog.search("echo")
        assert [notice.split("'")[1] for notice in second.notices] == ["hung", "slow"]
        with anyio.fail_after(10):
            while len((last := await catalog.search("echo")).notices) > 1:  # noqa: ASYNC110 - as a client would
                await anyio.sleep(0.05)
        assert {hit.tool.server for hit in last.hits} == {"faulty", "slow"}
        assert fleet.server("slow").status().starts == 1, "it went on behind the searches"


async def test_a_server_that_failed_is_tried_again_behind_the_next_search(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor_module, "BACKOFF_BASE", 0.01)
    async with fleet_of(faulty("flaky", tmp_path / "ready")) as fleet:
        catalog = Catalog(fleet)
        [first] = (await catalog.search("echo")).notices
        assert "exit code 4" in first
        (tmp_path / "ready").touch()
        with anyio.fail_after(10):
            while (answer := await catalog.search("echo")).notices:
                assert answer.notices == [first], "why it failed, not that it waits"
                await anyio.sleep(0.02)
        assert [hit.tool.name for hit in answer.hits] == ["echo"]


async def test_a_search_waits_for_tools_that_have_changed_since(tmp_path):
    async with fleet_of(faulty()) as fleet:
        catalog = Catalog(fleet)
        for number in range(2):
            await catalog.search("grown")
            await call_tool(fleet, "faulty", "grow")
            with anyio.fail_after(10):
                while not fleet.server("faulty").stale:  # noqa: ASYNC110 - nothing announces it
                    await anyio.sleep(0.01)
            found = {hit.tool.name for hit in (await catalog.search("grown", strict=True)).hits}
            assert f"grown_{number}" in found


async def test_a_search_of_a_fleet_that_is_down_says_so():
    answer = await Catalog(fleet_of(faulty())).search("echo")
    assert "not running" in answer.notices[0]


async def test_a_cached_listing_is_searched_and_described_without_starting_anything(tmp_path):
    async with fleet_of(faulty("twins")) as fleet:
        await Catalog(fleet, tmp_path).search("")
    async with fleet_of(faulty("twins")) as fleet:
        catalog = Catalog(fleet, tmp_path)
        assert [hit.tool.name for hit in (await catalog.search("echo")).hits] == ["echo"]
        assert (await catalog.tool("faulty", "a_b_3")).name == "a-b"
        assert len(await catalog.tools("faulty")) == 15
        [status] = catalog.servers()
        assert (status.state, status.tool_count, status.starts) == ("idle", 15, 0)
        with pytest.raises(BridgeError) as caught:
            await catalog.tool("faulty", "nothing_like_it")
        assert caught.value.code == "unknown_tool"
        assert catalog.servers()[0].starts > 0, "the cache may be old: only the server itself can deny a tool"


async def test_of_a_server_only_the_tools_are_there_that_its_configuration_lets_through(tmp_path):
    async with fleet_of(faulty()) as fleet:
        names = sorted(tool.name for tool in await Catalog(fleet, tmp_path).tools("faulty"))
    kept, *others = names
    spec = replace(faulty(), include_tools=(f"{kept[:3]}*", others[-1]), exclude_tools=(others[-1],))
    async with fleet_of(spec) as fleet:
        catalog = Catalog(fleet, tmp_path)
        found = {tool.name for tool in await catalog.tools("faulty")}
        assert found == {name for name in names if name.startswith(kept[:3]) and name != others[-1]}
        assert {hit.tool.name for hit in (await catalog.search("", 100)).hits} == found
        with pytest.raises(BridgeError) as refused:
            await catalog.bind("faulty", others[-1])
        assert refused.value.code == "unknown_tool"
    assert len(list((tmp_path / "catalog").glob("*.json"))) >= 2, "a listing each"


async def test_a_cached_listing_is_replaced_when_the_server_starts(tmp_path):
    async with fleet_of(faulty()) as fleet:
        catalog = Catalog(fleet, tmp_path)
        await catalog.tools("faulty")
        [path] = (tmp_path / "catalog").iterdir()
        content = json.loads(path.read_text())
        content["tools"] = content["tools"][:1]
        path.write_text(json.dumps(content))
    async with fleet_of(faulty()) as fleet:
        catalog = Catalog(fleet, tmp_path)
        assert len(await catalog.tools("faulty")) == 1
        await fleet.server("faulty").start()
        assert len(await catalog.tools("faulty")) > 1
        assert len((await catalog.search("", 100)).hits) > 1
    assert len(json.loads(path.read_text())["tools"]) > 1


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"format": 99, "tools": []}', b'{"format": 1}', b"\xff", b"[" * 100_000]
)
async def test_a_corrupt_cache_is_discarded(tmp_path, content):
    spec = faulty()
    (tmp_path / "catalog").mkdir()
    path = tmp_path / "catalog" / f"{spec.fingerprint()}.json"
    path.write_bytes(content)
    async with fleet_of(spec) as fleet:
        catalog = Catalog(fleet, tmp_path)
        assert catalog.servers()[0].tool_count is None
        assert not path.exists()


async def test_tools_are_indexed_once_and_a_bad_index_is_made_again(tmp_path, monkeypatch):
    async def searched():
        async with fleet_of(faulty()) as fleet:
            return [hit.tool.name for hit in (await Catalog(fleet, tmp_path).search("echo")).hits]

    first = await searched()
    assert first == ["echo"]
    [path] = (tmp_path / "catalog").glob("index-*")
    whole = path.read_bytes()

    def again(_):
        raise AssertionError("indexed again")

    with monkeypatch.context() as patched:
        patched.setattr(InvertedIndex, "of", again)
        assert await searched() == first
    for bad in (b"", b"x" * 1000, whole[:-1], InvertedIndex.of([]).to_bytes("of other tools")):
        path.write_bytes(bad)
        assert await searched() == first
        assert path.read_bytes() == whole


async def test_the_cache_is_private_and_shows_no_secret(tmp_path):
    async with fleet_of(faulty(env={"TOKEN": "hunter2"})) as fleet:
        await Catalog(fleet, tmp_path / "state").tools("faulty")
    [path] = (tmp_path / "state" / "catalog").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert "hunter2" not in path.name + path.read_text()


async def test_a_state_directory_that_cannot_be_written_only_costs_the_cache(tmp_path):
    (tmp_path / "catalog").write_text("a file where the directory should be")
    async with fleet_of(faulty()) as fleet:
        assert await Catalog(fleet, tmp_path).tools("faulty")


async def test_a_search_is_held_to_the_servers_it_may_see(tmp_path):
    async with fleet_of(faulty(), faulty(name="other")) as fleet:
        catalog = Catalog(fleet)
        answer = await catalog.search("echo", servers={"other"})
        assert {hit.tool.server for hit in answer.hits} == {"other"}
        assert fleet.server("faulty").status().starts == 0


async def test_tools_of_many_servers_and_a_thousand_tools_are_searched_together(tmp_path):
    async with fleet_of(faulty(), faulty("many", name="many")) as fleet:
        answer = await Catalog(fleet, tmp_path).search("tool 0042", strict=True)
        assert [hit.tool.name for hit in answer.hits] == ["tool_0042"]


async def test_real_servers_are_found_by_what_they_do_and_described_within_budget(
    everything_server,
    filesystem_server,
    memory_server,
    git_server,
    tmp_path,
):
    with warnings.catch_warnings(action="ignore"):  # it reads its tables in a deprecated way
        import bpe_openai

        encoding = bpe_openai.get_encoding("o200k_base")

    def count(text):
        return len(encoding.encode(text))

    async with fleet_of(everything_server, filesystem_server, memory_server, git_server) as fleet:
        catalog = Catalog(fleet, tmp_path)
        for query, first in [
            ("git commit history", "git_log"),
            ("read text file", "read_text_file"),
            ("list directory", "list_directory"),
            ("create entities", "create_entities"),
            ("uncommitted changes unstaged", "git_diff_unstaged"),
        ]:
            hits = (await catalog.search(query, limit=5)).hits
            assert hits[0].tool.name == first, [hit.tool.name for hit in hits]
            lines = "\n".join(describe.search_result_line(hit.tool) for hit in hits)
            assert count(lines) + count(describe.render(hits[0].tool)) <= 300
        for name in fleet.servers:
            for tool in await catalog.tools(name):
                assert count(describe.render(tool)) <= 350, tool.name
