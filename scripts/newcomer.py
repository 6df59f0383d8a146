"""A new user's way, by the words of docs/install.md, in a Debian that holds nothing yet.

scripts/newcomer-test.sh starts it there. It runs as root, and so can say afterwards what is left in the whole file
system; the page's commands run as the new user, but for those that begin with sudo. Every command of the page is run:
one that nobody has run is a failure.
"""

import argparse
import json
import os
import pty
import pwd
import re
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

COMMAND_SECONDS = 120  # for any one command: an apt-get with its downloads takes longest
END_SECONDS = 30  # for a bridge, after its client's end: it stops its servers and containers
SHOWN_LINES = 40  # of what a command prints

HERE = Path(__file__).parent
NOT_OURS = {"/proc", "/sys", "/dev", str(HERE)}
CLAUDES = ("~/.claude", "~/.claude.json", "~/.cache/claude-cli-nodejs", "/tmp/claude-*", "/tmp/cc-socks")  # noqa: S108
CHECKOUT = "/home/me/mcp-code-bridge"  # what the page calls the folder that has dist/
BY_HAND = ("mcp-bridge uninstall --state", "uv tool uninstall mcp-code-bridge", "uv cache clean mcp-code-bridge")

ASKS = re.compile(r"^(sudo apt-get install|mcp-bridge uninstall)\b(?!.* (-y|--yes)\b)")
QUESTION = re.compile(rb"\[(y/N|Y/n)\] $")

Listing = dict[str, tuple[object, ...]]


class WrongError(Exception):
    """What did not go as the page says."""


def expect(holds: object, what: str) -> None:
    """Go on only if it holds.

    Raises:
        WrongError: It doesn't.
    """
    if not holds:
        raise WrongError(what)


class Page:
    """A page's commands, and the text between them, by their headings.

    Attributes:
        unused: The commands that nothing has run yet.
    """

    def __init__(self, path: Path) -> None:
        self.blocks: dict[str, list[str]] = {}
        self.texts: dict[str, list[str]] = {}
        heading, language = "", None
        for line in path.read_text("utf-8").splitlines():
            if line.startswith("```"):
                language = None if language is not None else line[3:]
            elif language == "sh":
                self.blocks[heading].append(line)
            elif language is None and (title := re.fullmatch(r"#+ (.+)", line)):
                heading = title[1]
                self.blocks[heading], self.texts[heading] = [], []
            elif language is None and heading:
                self.texts[heading].append(line)
        self.unused = [command for heading in self.blocks for command in self.commands(heading)]

    def commands(self, heading: str) -> list[str]:
        """The commands of a section, in order; a line that ends in a backslash goes on in the next one.

        Raises:
            WrongError: The page has no such section.
        """
        expect(heading in self.blocks, f"the page has no section {heading!r}, only {list(self.blocks)}")
        lines = "\n".join(self.blocks[heading]).replace("\\\n", "").splitlines()
        return [line for line in lines if line.strip() and not line.startswith("#")]

    def rows(self, heading: str) -> list[tuple[list[str], str]]:
        """Of each row of a section's table the paths that it names, `~/…` or `/…`, and its last column."""
        lines = [line.strip("| ").split(" | ") for line in self.texts[heading] if line.startswith("| ")]
        return [(re.findall(r"`(~?/[^`\s]+)`", " ".join(line)), line[-1]) for line in lines]


class Person:
    """Who types the commands.

    Attributes:
        home: Where they are typed.
    """

    def __init__(self, name: str, environment: dict[str, str]) -> None:
        entry = pwd.getpwnam(name)
        self.name = name
        self.ids = (entry.pw_uid, entry.pw_gid)
        self.home = Path(entry.pw_dir)
        self._environment = environment | {"HOME": str(self.home), "USER": name}

    def types(self, command: str, *, status: int = 0) -> str:
        """What a command prints in a new terminal, both streams; a question whether to go on is answered with yes.

        Raises:
            WrongError: It ends with another status, or doesn't end.
        """
        print(f"$ {command}", flush=True)
        begun = time.monotonic()
        uid, gid = (0, 0) if command.startswith("sudo ") else self.ids
        ours, theirs = pty.openpty() if ASKS.match(command) else os.pipe()
        process = subprocess.Popen(
            # The shell reads the user's profile, as a new terminal's does. timeout ends what it has started, too.
            ["timeout", "--kill-after=5", str(COMMAND_SECONDS), "bash", "-lc", command],
            cwd=self.home,
            env=self._environment,
            user=uid,
            group=gid,
            extra_groups=[],
            start_new_session=True,
            stdin=theirs if os.isatty(theirs) else subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        said = _read(ours)
        ended = process.wait()
        took = time.monotonic() - begun
        for line in said.splitlines()[-SHOWN_LINES:]:
            print(f"    {line}")
        print(f"    ({took:.1f} s)", flush=True)
        expect(ended == status, f"{command}: ended with {ended}, not {status}\n{said}")
        return said

    def follows(self, page: Page, heading: str, written: Callable[[str], str] = str) -> list[str]:
        """What each command of a section prints; `written` is what is typed for one."""
        said = []
        for command in page.commands(heading):
            said.append(self.types(written(command)))
            page.unused.remove(command)
        return said

    def asks(self, code: str) -> str:
        """What Claude Code's model is told by run_python, called with this code."""
        return self.types(f"claude -p '<run>{code}</run>' --allowedTools mcp__bridge__run_python").strip()

    def own(self, path: str) -> str:
        """A path that may begin with `~`."""
        return path.replace("~", str(self.home), 1)

    def writes(self, path: Path, text: str) -> None:
        """Put a file where this person's own would be."""
        for parent in reversed([parent for parent in path.parents if not parent.exists()]):
            parent.mkdir()
            os.chown(parent, *self.ids)
        path.write_text(text, "utf-8")
        os.chown(path, *self.ids)


def _read(descriptor: int) -> str:
    """All that is written to the other end, as lines; the questions of a terminal are answered."""
    said = b""
    while True:
        try:
            data = os.read(descriptor, 65536)
        except OSError:  # a terminal that nobody has open any more
            data = b""
        if not data:
            break
        said += data
        if os.isatty(descriptor) and QUESTION.search(said):
            os.write(descriptor, b"y\n")
    os.close(descriptor)
    return said.decode("utf-8", "replace").replace("\r\n", "\n")


def listing() -> Listing:
    """Every path of this root with its kind, mode and owner, a file's size and time, a link's target."""
    found: Listing = {}
    for folder, folders, files in os.walk("/"):
        folders[:] = [name for name in folders if os.path.join(folder, name) not in NOT_OURS]  # noqa: PTH118
        for name in folders + files:
            path = Path(folder, name)
            seen = path.lstat()
            of_file = (seen.st_size, seen.st_mtime_ns) if stat.S_ISREG(seen.st_mode) else ()
            target = (str(path.readlink()),) if path.is_symlink() else ()
            found[str(path)] = (seen.st_mode, seen.st_uid, seen.st_gid, *of_file, *target)
    return found


def left_over(before: Listing, after: Listing, named: list[str], removed: list[str]) -> list[str]:
    """What is new, changed or gone, but for what is named, and the folders that had to be made for a path.

    Args:
        before: What there was.
        after: What there is.
        named: What may stay, with all in it; `*` for what varies.
        removed: What may not, even in such a folder.
    """
    may_stay, may_not = _under(named), _under(removed)
    above = {str(folder) for path in (*named, *removed) for folder in Path(path).parents}
    found = []
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) == after.get(path) or (path not in before and path in above):
            continue
        if may_stay.match(path) and not may_not.match(path):
            continue
        what = "new" if path not in before else "changed" if path in after else "gone"
        found.append(f"{what}: {path}")
    return found


def _under(paths: list[str]) -> re.Pattern[str]:
    """Matches each of them, and what is in them."""
    named = "|".join(re.escape(path.rstrip("/")).replace(r"\*", "[^/]*") for path in paths)
    return re.compile(rf"(?:{named})(?:/|$)" if named else r"(?!)")


def end_of_bridges() -> None:
    """Wait until those that a client has told to end have ended.

    Raises:
        WrongError: One goes on.
    """
    deadline = time.monotonic() + END_SECONDS
    while any(b"mcp-bridge" in _bytes(path) for path in Path("/proc").glob("[0-9]*/cmdline")):
        expect(time.monotonic() < deadline, "a bridge is at work after its client has ended")
        time.sleep(0.1)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # its process has ended
        return b""


class Index:
    """An index of packages that has this program alone, in a folder, beside the one that has all others."""

    def __init__(self, wheels: Path, folder: Path) -> None:
        self.address = folder.as_uri()
        self._wheels = wheels
        self._folder = folder / "mcp-code-bridge"
        self._folder.mkdir(parents=True)

    def publish(self, version: str) -> None:
        """Have this version, too."""
        (wheel,) = self._wheels.glob(f"*-{version}-*.whl")
        shutil.copy(wheel, self._folder)
        links = "".join(f'<a href="{path.name}">{path.name}</a>\n' for path in self._folder.glob("*.whl"))
        (self._folder / "index.html").write_text(f"<!DOCTYPE html><html><body>\n{links}</body></html>\n", "utf-8")


class Way:
    """All of it, in the order in which a user meets it; WrongError where it doesn't go as the page says."""

    def __init__(self, page: Page, ada: Person, index: Index, older: str, newer: str) -> None:
        self.page = page
        self.ada = ada
        self.index = index
        self.older = older
        self.newer = newer
        self.configuration = ada.home / ".config/mcp-bridge/config.toml"

    def go(self) -> None:
        """From the beginning to the end."""
        self.prepare()
        before = listing()
        begun = time.monotonic()
        self.install()
        installed = time.monotonic() - begun
        self.use()
        self.break_and_mend()
        self.upgrade()
        self.remove()
        self.come_back_and_clear(before)
        expect(not self.page.unused, "\n".join(["commands of the page that were not run:", *self.page.unused]))
        print(f"== as {self.ada.name}, it goes as the page says; {installed:.0f} s from a wheel to an answer")

    def _here(self, command: str) -> str:
        return command.replace(CHECKOUT, str(self.ada.home))

    def _before(self, command: str) -> str:
        return self._here(command).replace(f"-{self.newer}-", f"-{self.older}-")

    def prepare(self) -> None:
        """What the program needs."""
        print("== what it needs")
        self.ada.follows(self.page, "A container engine")
        self.ada.follows(self.page, "uv")
        said = self.ada.types("claude mcp list")  # Claude Code makes what it makes for itself
        expect("bridge" not in said, "Claude Code knows a bridge before there is one")

    def install(self) -> None:
        """The older version, in each of the page's ways, and a first answer."""
        print("== install")
        self.index.publish(self.older)
        said = "".join(self.ada.follows(self.page, "The program", self._before))
        versions = "".join(self.page.commands("The program")).count("--version")
        expect(said.count(f"mcp-bridge {self.older}\n") == versions, "another version is installed")
        expect("\n42\n" in said, "the first script has no answer")

    def use(self) -> None:
        """Behind Claude Code, with a server behind the bridge."""
        print("== Claude Code")
        said = "".join(self.ada.follows(self.page, "Put it behind a client"))
        expect("✔ Connected" in said, "Claude Code doesn't reach the bridge")
        self._answers("the model isn't told what the script printed")
        self.ada.writes(self.configuration, '[servers.time]\ncommand = "uvx"\nargs = ["mcp-server-time"]\n')
        code = 'from mcp.servers import time; print((await time.get_current_time("Asia/Tokyo"))["timezone"])'
        expect(self.ada.asks(code) == "Asia/Tokyo", "the model isn't told what the server behind the bridge says")

    def _answers(self, otherwise: str) -> None:
        expect(self.ada.asks("print(6 * 7)") == "42", otherwise)

    def break_and_mend(self) -> None:
        """A typing error in the configuration."""
        print("== a broken configuration, and its mending")
        broken = "timout = 30\n" + self.configuration.read_text("utf-8")
        self.ada.writes(self.configuration, broken)
        said = self.ada.types("mcp-bridge run -c 'print(6 * 7)'", status=2)
        told = self.ada.asks("print(6 * 7)")
        for part in ("bad_config", f"{self.configuration}, line 1", "Did you mean timeout?"):
            expect(part in said, f"who has broken the configuration isn't told: {part}")
            expect(part in told, f"the model behind a broken configuration isn't told: {part}, but: {told}")
        self.ada.writes(self.configuration, broken.replace("timout", "timeout"))
        self._answers("the bridge doesn't recover from a broken configuration")

    def upgrade(self) -> None:
        """From the index and from a wheel; what was recorded stays."""
        print("== upgrade")
        self.ada.types("uv tool install mcp-code-bridge")  # the installation was from a wheel by now
        kept = self._record()
        self.index.publish(self.newer)
        said = self.ada.follows(self.page, "Upgrade", self._here)
        expect(self.newer in said[0], "the upgrade from an index installs nothing new")
        expect(self.ada.types("mcp-bridge --version") == f"mcp-bridge {self.newer}\n", "another version is installed")
        expect(self._record()[-len(kept) :] == kept, "the new version doesn't read what the old one has recorded")
        self.ada.types("mcp-bridge audit verify")
        self._answers("the upgraded bridge doesn't answer Claude Code")

    def _record(self) -> list[object]:
        executions: list[object] = json.loads(self.ada.types("mcp-bridge execution list --json"))["executions"]
        expect(executions, "the bridge knows of no execution")
        return executions

    def remove(self) -> None:
        """By the page's commands."""
        print("== remove")
        end_of_bridges()
        self.ada.follows(self.page, "Remove")
        expect("bridge" not in self.ada.types("claude mcp list"), "Claude Code still has the bridge")
        said = self.ada.types("podman ps --all --quiet; podman images --quiet")
        expect(not said.strip(), "containers or images are left")
        self.ada.types("mcp-bridge --version", status=127)

    def come_back_and_clear(self, before: Listing) -> None:
        """The record is there for who comes back; what the page's table says removes all but what it says stays."""
        print("== come back, and remove the rest")
        self.ada.types("uv tool install mcp-code-bridge")
        self._record()
        rows = self.page.rows("Remove")
        for command in BY_HAND:
            expect(any(f"`{command}`" in how for _, how in rows), f"the page's table doesn't name `{command}`")
            self.ada.types(command)
        for path in (self.ada.own(path) for paths, how in rows if how.startswith("you") for path in paths):
            shutil.rmtree(path)
        done = ("you", *(f"`{command}`" for command in BY_HAND))
        removed = [self.ada.own(path) for paths, how in rows for path in paths if how.startswith(done)]
        named = [self.ada.own(path) for paths, how in rows for path in paths if not how.startswith(done)]
        left = left_over(before, listing(), [*named, *map(self.ada.own, CLAUDES)], removed)
        expect(not left, "\n".join(["left behind, and the page doesn't name it:", *left]))


def main() -> int:
    """Go the way, and say where it ends early."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("user", "model", "older", "newer"):
        parser.add_argument(f"--{name}", required=True)
    given = parser.parse_args()
    index = Index(HERE / "wheels", HERE / "index")
    # Claude Code asks nobody but the model on loopback, and stays what it is.
    model = {"ANTHROPIC_BASE_URL": given.model, "ANTHROPIC_API_KEY": "sk-test", "DISABLE_AUTOUPDATER": "1"}
    quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    ada = Person(given.user, dict(os.environ) | model | quiet | {"UV_INDEX": index.address})
    shutil.copytree(HERE / "wheels", ada.home / "dist")
    try:
        Way(Page(HERE / "install.md"), ada, index, given.older, given.newer).go()
    except WrongError as wrong:
        print(f"\nnewcomer-test: {wrong}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
