"""Advice on code that doesn't compile."""

import re

from mcp_bridge.guest.advice import packages
from mcp_bridge.guest.advice.code_repair import FENCES, unfenced
from mcp_bridge.guest.advice.script_environment import ScriptEnvironment
from mcp_bridge.guest.runner import Source

MAX_LINE_CHARS = 500
MAX_REST_CHARS = 60

_SERVERS = re.compile(r"\s*(?:from\s+mcp(?P<sync>\.sync)?\.servers\s+import\s+|import\s+mcp\.servers\.)(?P<names>.+)")
_HYPHENATED = re.compile(r"[A-Za-z_]\w*(?:-\w+)+")
_SHELL = re.compile(
    r"\s*(?:\$\s+)?(?P<program>pip3?|uv|conda|npm|npx|node|python3?|bash|sh|sudo|apt|apt-get|ls|cd|cat|cp|mv|rm|mkdir|echo|"
    r"grep|find|curl|wget|git|docker)\s+(?![=.([])"
)
_HELP = re.compile(r"\?{1,2}(?P<before>[A-Za-z_][\w.]*)|(?P<after>[A-Za-z_][\w.]*)\?{1,2}")
_ASSIGNED_MAGIC = re.compile(r"[A-Za-z_]\w*\s*=\s*[!%]")
_CHANGED_FOLDER = re.compile(r"%cd\s+['\"]?(?P<path>[^'\"\s]+)")
_DEF = re.compile(r"(?P<indent>\s*)(?P<async>async\s+)?def\s+(?P<name>\w+)")
_COLON = re.compile(r"[(,]\s*(?P<name>[A-Za-z_]\w*)\s*:$")
_NESTED = re.compile(r"""[fF]"[^"]*\{[^}"]*"|[fF]'[^']*\{[^}']*'""")
_UNINDENTED = re.compile(r"expected an indented block after .* on line (?P<above>\d+)$")
_UNFINISHED = re.compile(
    r"was never closed|expected an indented block|unterminated triple-quoted|expected 'except' or 'finally'|"
    r"unexpected EOF"
)

_JAVASCRIPT = (
    (re.compile(r"^\s*(?:export\s+)?(?:const|let|var)\s+[\[{]"), "`a, b = r['a'], r['b']`"),
    (re.compile(r"^\s*(?:export\s+)?(?:const|let|var)\s+(?P<name>[\w$]+)"), "`{name} = …`"),
    (re.compile(r"^\s*(?:export\s+)?(?P<async>async\s+)?function\b\s*(?P<name>\w*)"), "`{async}def {name}(…):`"),
    (re.compile(r"^\s*import\s+.*\bfrom\s+['\"]"), "`from module import name`"),
    (re.compile(r"^\s*(?://|/\*)"), "`# a comment`"),
    (re.compile(r"=>"), "`lambda x: …`, or a `def`"),
    (re.compile(r"===|!=="), "`==` and `!=`"),
    (re.compile(r"&&|\|\|"), "`and` and `or`"),
    (re.compile(r"^\s*\}?\s*else\s+if\b"), "`elif …:`"),
    (re.compile(r"^\s*(?:try\s*\{|\}\s*catch\b)"), "`try:` and `except Exception as e:`"),
    (re.compile(r"^\s*switch\s*\("), "`match x:` and `case …:`, or `if` and `elif`"),
    (re.compile(r"^\s*for\s*\(.*\bof\b"), "`for x in items:`"),
    (re.compile(r"^\s*for\s*\("), "`for i in range(n):`"),
    (re.compile(r"^\s*(?:if|while)\s*\(.*\)\s*\{"), "`if …:`, and an indented block"),
    (re.compile(r"\bnew\s+[A-Z]\w*"), "`Name(…)`, without `new`"),
    (re.compile(r"\w\s*(?:\+\+|--)\s*(?:$|[;)])"), "`x += 1`"),
    (re.compile(r"`"), "`f'{{x}}'`"),
    (re.compile(r"\s\?\s.+\s:\s"), "`a if condition else b`"),
    (re.compile(r"(?:^|[\s(])!\s*[\w(]"), "`not x`"),
    (re.compile(r"\btypeof\b"), "`type(x)`"),
)
"""JavaScript syntax, and its equivalent in Python."""

_TEXTS = re.compile(r"'[^']*'|\"[^\"]*\"|#.*")

_PLAIN = {
    "\u201c": '"', "\u201d": '"', "\u201e": '"', "\u2018": "'", "\u2019": "'", "\u2013": "-", "\u2014": "-",
    "\u2212": "-", "\u00d7": "*", "\u2026": "...",
}  # fmt: skip
"""Typographic characters, and the plain characters that they replace."""


def advice(exc: SyntaxError, environment: ScriptEnvironment) -> str | None:
    """Advice on code that doesn't compile."""
    if exc.filename != Source.running or not isinstance(exc.lineno, int):
        return None
    lines = environment.code.split("\n")
    line = lines[exc.lineno - 1][:MAX_LINE_CHARS] if 0 < exc.lineno <= len(lines) else ""
    message = str(exc.msg)
    return (
        _of_server(line, environment)
        or _of_notebook(line)
        or _of_message(message, line, exc, environment.code)
        or _of_shell(line, environment)
        or _of_other_language(environment.code, lines)
        or _of_javascript(line, environment)
        or _of_end(message, exc, lines)
    )


def _of_server(line: str, environment: ScriptEnvironment) -> str | None:
    found = _SERVERS.match(line)
    if found is None:
        return None
    names = _HYPHENATED.findall(found["names"])
    known = [environment.aliases.get(name, name.replace("-", "_")) for name in names]
    if not names:
        return None
    return f"A name has no hyphen: write `from mcp{found['sync'] or ''}.servers import {', '.join(known)}`."


def _of_notebook(line: str) -> str | None:
    start = line.strip()
    if start.startswith(">>>"):
        return "Send the code alone, without the prompt `>>>` and without what was printed."
    if found := _HELP.fullmatch(start):
        return f"This is no notebook: write `help({found['before'] or found['after']})`."
    if found := _ASSIGNED_MAGIC.match(start):
        start = start[found.end() - 1 :]
    if not start.startswith(("!", "%")):
        return None
    if re.match(r"[!%]+\s*(?:pip|conda|uv)\b", start):
        return packages.no_installing()
    if found := _CHANGED_FOLDER.match(start):
        return f"This is no notebook: write `import os; os.chdir({found['path']!r})`."
    if start.startswith(("!", "%%bash", "%%sh", "%%script")):
        return "There is no shell here: use Python, or an MCP server's tool (`await runtime.search('words')`)."
    return "This is no notebook: leave the line with `%` out."


def _of_message(message: str, line: str, exc: SyntaxError, code: str) -> str | None:
    if message == "'return' outside function":
        value = line.partition("return")[2].strip() or "result"
        return f"A script returns nothing: end it with `{value[:MAX_REST_CHARS]}`, which is shown, or print it."
    if "outside async function" in message or "outside of an asynchronous function" in message:
        return _async(exc.lineno or 1, code)
    if message.startswith("invalid character") and (wrong := [char for char in line if char in _PLAIN]):
        plain = " and ".join(f"`{_PLAIN[char]}` for {char}" for char in dict.fromkeys(wrong))
        return f"Write plain characters: {plain}."
    if message.startswith("invalid non-printable character"):
        return "There are characters that can't be seen: write plain spaces."
    if message.startswith("unexpected character after line continuation") and "\\n" in line:
        return r"Lines end with `\n` written out as two characters: send real line ends."
    if message.startswith(("unexpected indent", "unindent does not match")):
        return f"Line {exc.lineno} begins in another column than its block: line it up."
    found = _UNINDENTED.match(message)
    if found is not None and line[max(exc.offset or 1, 1) - 1 :].strip():
        return f"Indent line {exc.lineno}, if it belongs below line {found['above']}."
    if message.startswith("inconsistent use of tabs"):
        return "Indent with spaces only."
    if message.startswith("f-string: "):
        return _of_fstring(message, line)
    if line[: exc.offset or 0].endswith(":") and (found := _COLON.search(line[: exc.offset or 0])):
        return f"A keyword has an equals sign: write `{found['name']}=…`."
    if message.startswith("unterminated string literal"):
        return r"A text in quotes ends on its line: write `\n` for a new line in it, or use three quotes."
    return None


def _of_fstring(message: str, line: str) -> str | None:
    if "empty expression" in message or "valid expression required" in message:
        return "Write an expression between the braces, or `{{}}` for the braces themselves."
    if _NESTED.search(line):
        return "Before Python 3.12 an expression in an f-string has other quotes than it: write `f\"{row['name']}\"`."
    return None


def _async(lineno: int, code: str) -> str | None:
    """Advice on `await` in a function that isn't asynchronous."""
    lines = code.split("\n")
    indent = len(lines[lineno - 1]) - len(lines[lineno - 1].lstrip())
    if "lambda" in lines[lineno - 1]:
        return "A lambda can't await: write `async def f(x): …`."
    for line in reversed(lines[: lineno - 1]):
        found = _DEF.match(line)
        if found and len(found["indent"]) < indent:
            name = found["name"]
            return f"Write `async def {name}(...)`, and call it with `await {name}(...)`."
    return None


def _of_shell(line: str, environment: ScriptEnvironment) -> str | None:
    found = _SHELL.match(line)
    if found is None:
        return None
    program = found["program"]
    words = line.split()
    if program in {"pip", "pip3", "uv", "conda", "apt", "apt-get"} or words[1:3] == ["-m", "pip"]:
        return packages.no_installing()
    if program in environment.aliases:
        alias = environment.aliases[program]
        return (
            f"There is no shell here; `{program}` is an MCP server: `from mcp.servers import {alias}`, "
            f"then `dir({alias})`."
        )
    return "That is a shell's command, and run_python runs Python: use pathlib and shutil, or an MCP server's tool."


def _of_other_language(code: str, lines: list[str]) -> str | None:
    if unfenced(code) is None and any(one.lstrip().startswith(FENCES) for one in lines):
        return "Send the code alone, without fences and text around it."
    return None


def _of_javascript(line: str, environment: ScriptEnvironment) -> str | None:
    bare = _TEXTS.sub("''", line)
    for pattern, python in _JAVASCRIPT:
        # Unlike Python's, an import in JavaScript contains a string.
        if found := pattern.search(line if "import" in pattern.pattern else bare):
            names = {"name": "name", "async": ""} | {key: value or "" for key, value in found.groupdict().items()}
            other = " JavaScript runs with run_javascript." if environment.runs_both else ""
            return f"run_python runs Python; there it is {python.format(**names)}.{other}"
    return None


def _of_end(message: str, exc: SyntaxError, lines: list[str]) -> str | None:
    # Where the error is at a word, that is there: the code doesn't end before it.
    rest = "".join(lines[(exc.lineno or 1) - 1 :])[max(exc.offset or 1, 1) - 1 :].strip()
    if _UNFINISHED.search(message) and (not rest or "was never closed" in message or "triple" in message):
        return "The code ends too early: send all of it."
    return None
