"""The example of a team's bridge: behind the real nginx with TLS, for two principals, and as a unit of systemd."""

import contextlib
import dataclasses
import os
import re
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import tomllib
from pathlib import Path

import anyio
import httpx2
import pytest
from bridge_fixtures import COMMAND, DEADLINE_SECONDS, Setup
from http_bridge import ACCEPT, serving
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from pages import REPOSITORY, blocks
from sandbox_fixtures import RUNTIME

pytestmark = pytest.mark.timeout(180)

FOLDER = "examples/team"

NAME = "bridge.example.com"

CONFIGURE, NGINX, CERTIFICATES, SERVICE = range(4)
"""The page's blocks of commands, by what they are for."""

PEM = ("pem", "key")

ISSUER = "https://issuer.example.com"
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}

WAITS = """
import time
runtime.save_memory_sync("whose", WHOSE)
progress(1, 2, "begun")
while not runtime.load_memory_sync("seen"):
    time.sleep(0.05)
print("seen by", runtime.load_memory_sync("whose"))
"""
"""It ends when its client has seen its progress, and said so by another call."""

SUDO = """#!/bin/sh
[ "$1" != -u ] || shift 2
exec "$@"
"""

NGINX_CONF = """
daemon off;
worker_processes 1;
pid nginx.pid;
error_log stderr;
events {}
http {
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    scgi_temp_path scgi;
    uwsgi_temp_path uwsgi;
    include conf.d/*.conf;
}
"""


@dataclasses.dataclass
class Machine:
    """A folder in place of `/`, and in it a copy of the example with paths and ports of the test's."""

    root: Path
    listener: socket.socket
    setup: Setup

    @property
    def url(self):
        return f"https://127.0.0.1:{self.listener.getsockname()[1]}"

    @property
    def nginx_folder(self):
        return self.root / "etc/nginx"

    def change(self, file, old, new):
        path = self.root / FOLDER / file
        text = path.read_text("utf-8")
        assert old in text, (file, old)
        path.write_text(text.replace(old, new), "utf-8")

    def run(self, block, only="", **changes):
        """Run the commands of a block of the page, or those with a word; each as it has ended."""
        ended = []
        for line in blocks(f"{FOLDER}/README.md", "sh")[block].splitlines():
            if only not in line:
                continue
            command = line.replace("/etc/", f"{self.root}/etc/")
            for old, new in changes.items():
                command = command.replace(old, new)
            done = subprocess.run(
                shlex.split(command),
                cwd=self.root,
                env=self.setup.env,
                capture_output=True,
                text=True,
                timeout=DEADLINE_SECONDS,
                check=False,
            )
            assert done.returncode == 0, (command, done.stderr)
            ended.append(done)
        return ended

    @contextlib.asynccontextmanager
    async def bridge(self):
        """The bridge of the configuration; at its end SIGTERM stops it as systemd does."""
        async with serving(self.setup) as bridge:
            self.change("nginx/proxy.conf", "127.0.0.1:8350", f"127.0.0.1:{bridge.port}")
            yield bridge
            bridge.process.send_signal(signal.SIGTERM)
            assert await bridge.ended() == 0, bytes(bridge.logged).decode()

    @contextlib.contextmanager
    def nginx(self):
        """nginx, which takes over a socket that listens already: no other program can get its port."""
        number = self.listener.fileno()
        with (self.root / "nginx.log").open("wb") as log:
            process = subprocess.Popen(
                ["nginx"],
                env=self.setup.env | {"NGINX": f"{number};"},
                pass_fds=[number],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                yield
                assert process.poll() is None, (self.root / "nginx.log").read_text()
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def http(self, token="", certificate=None, **headers):
        """A client that knows nginx by its name and certificate."""
        trusted = ssl.create_default_context(cafile=self.nginx_folder / "mcp-bridge/server.pem")
        if certificate:
            trusted.load_cert_chain(*(self.root / f"etc/mcp-bridge/authority/{certificate}.{end}" for end in PEM))

        async def by_name(request):
            request.extensions["sni_hostname"] = NAME

        headers = {"host": NAME} | headers | ({"authorization": f"Bearer {token}"} if token else {})
        return httpx2.AsyncClient(
            base_url=self.url,
            verify=trusted,
            headers=headers,
            timeout=DEADLINE_SECONDS,
            event_hooks={"request": [by_name]},
        )

    @contextlib.asynccontextmanager
    async def client(self, mode, **who):
        """The SDK's own client, through nginx."""
        async with self.http(**who) as http:
            target = streamable_http_client(f"{self.url}/mcp", http_client=http)
            async with Client(target, mode=mode, read_timeout_seconds=DEADLINE_SECONDS) as client:
                yield client


@pytest.fixture
def machine(tmp_path, configure):
    program = shutil.which("nginx", path=f"{REPOSITORY}/.cache/bin:{os.environ['PATH']}:/usr/sbin")
    assert program, "nginx is missing; make setup-test installs it"
    # Short, and apart from what the other fixtures have in the folder.
    root = tmp_path / "root"
    shutil.copytree(REPOSITORY / FOLDER, root / FOLDER)
    (root / "etc/nginx").mkdir(parents=True)
    # Workers of another user couldn't enter the test's folder.
    user = "user root root;" if os.geteuid() == 0 else ""
    (root / "etc/nginx/nginx.conf").write_text(user + NGINX_CONF)
    programs = root / "bin"
    programs.mkdir()
    started = f'exec {shlex.quote(program)} -e stderr -p {root}/etc/nginx/ -c {root}/etc/nginx/nginx.conf "$@"\n'
    for name, text in (("sudo", SUDO), ("nginx", f"#!/bin/sh\n{started}")):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)

    setup = configure()
    path = os.pathsep.join([str(programs), str(Path(COMMAND).parent), setup.env["PATH"]])
    setup = dataclasses.replace(
        setup, config=root / "etc/mcp-bridge/mcp-bridge.toml", env=setup.env | {"PATH": path}, transport="http"
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = Machine(root, listener, setup)
        for file in ("mcp-bridge.toml", "mcp-bridge-certificates.toml"):
            made.change(file, "/var/lib/mcp-bridge/state", str(setup.state_dir))
            # As all tests: without containers that are started ahead.
            made.change(
                file, "client_configs = false\n", f'client_configs = false\nruntime = "{RUNTIME}"\npool_max = 0\n'
            )
        for file in ("nginx/tokens.conf", "nginx/certificates.conf"):
            made.change(file, "listen 443 ssl", f"listen 127.0.0.1:{listener.getsockname()[1]} ssl")
        made.change("mcp-bridge.service", "/usr/local/bin/mcp-bridge", COMMAND)
        yield made


async def ran(client, code, **options):
    result = await client.call_tool("run_python", {"code": code}, **options)
    assert not result.is_error, result.content
    return result.content[0].text.rstrip()


async def streams_arrive(client, name):
    """A script that ends when its client has had its progress ends."""
    seen = anyio.Event()

    async def progress(done, total, message):
        if message == "begun":
            seen.set()

    async def answer():
        await seen.wait()
        await ran(client, 'runtime.save_memory_sync("seen", True)')

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer)
        printed = await ran(client, WAITS.replace("WHOSE", repr(name)), progress_callback=progress)
        assert printed == f"seen by {name}"
        await ran(client, 'runtime.delete_memory_sync("seen")')


async def uses_what_is_its_own(machine, anna, ben):
    """Both call run_python through nginx: streams arrive as they are written, and neither sees what is the other's."""
    for mode, who in (("legacy", anna), ("2026-07-28", ben)):
        name = "anna" if who is anna else "ben"
        async with machine.client(mode, **who) as client:
            assert await ran(client, 'print("known:", runtime.load_memory_sync("whose"))') == "known: None"
            await streams_arrive(client, name)


async def test_two_principals_with_tokens_use_the_bridge_through_nginx_and_tls(machine):
    _, *added = machine.run(CONFIGURE)
    anna, ben = (done.stdout.strip() for done in added)
    async with machine.bridge():
        machine.run(NGINX)
        with machine.nginx():
            await uses_what_is_its_own(machine, {"token": anna}, {"token": ben})
            for token in ("", "mcpb_wrong"):
                # Whoever says by the other variant's header who they are has said nothing.
                headers = {"x-client-subject": "CN=anna,O=Example"}
                async with machine.http(token, **headers) as http:
                    refused = await http.post("/mcp", json=PING, headers=ACCEPT)
                    assert refused.status_code == 401
                    assert refused.headers["www-authenticate"].startswith("Bearer ")
                    assert (await http.get("/metrics")).status_code == 404
            # A browser names the port, too, where it isn't the usual one.
            port = machine.url.rpartition(":")[2]
            async with machine.http(anna, host=f"{NAME}:{port}", origin=f"https://{NAME}:{port}") as http:
                assert (await http.post("/mcp", json=PING, headers=ACCEPT)).status_code != 403
            async with machine.http(anna, host="elsewhere.example.com") as http:
                assert (await http.post("/mcp", json=PING, headers=ACCEPT)).status_code == 421


async def test_a_client_without_a_token_finds_the_authorization_server_through_nginx(machine):
    machine.run(CONFIGURE)
    with machine.setup.config.open("a") as file:
        file.write(f'[authentication.oauth]\nissuer = "{ISSUER}"\naudience = "https://{NAME}/mcp"\n')
    async with machine.bridge():
        machine.run(NGINX)
        with machine.nginx():
            async with machine.http() as http:
                refused = await http.post("/mcp", json=PING, headers=ACCEPT)
                [address] = re.findall(r'resource_metadata="([^"]*)"', refused.headers["www-authenticate"])
                told = (await http.get(address.removeprefix(f"https://{NAME}"))).raise_for_status().json()
            assert told == {
                "resource": f"https://{NAME}/mcp",
                "authorization_servers": [ISSUER],
                "bearer_methods_supported": ["header"],
            }


async def test_two_principals_with_client_certificates_use_the_bridge_through_nginx(machine):
    # The bridge reads it when it starts; the rest needs the bridge's port.
    machine.run(CERTIFICATES, only="certificates.toml")
    async with machine.bridge() as bridge:
        machine.run(NGINX)
        machine.run(CERTIFICATES)
        machine.run(CERTIFICATES, only="anna", anna="ben")
        machine.run(CERTIFICATES, only="anna", anna="eve")
        with machine.nginx():
            anna = {"certificate": "anna"}
            await uses_what_is_its_own(machine, anna, {"certificate": "ben"})
            # What a client says of itself is replaced.
            async with machine.client("legacy", certificate="ben", **{"x-client-subject": "CN=anna,O=Example"}) as ben:
                assert await ran(ben, 'print(runtime.load_memory_sync("whose"))') == "ben"
            async with machine.http() as http:
                refused = await http.post("/mcp", json=PING, headers=ACCEPT)
                assert refused.status_code == 400
                assert "No required SSL certificate" in refused.text
            # A good certificate of somebody who is no principal.
            async with machine.http(certificate="eve") as http:
                assert (await http.post("/mcp", json=PING, headers=ACCEPT)).status_code == 403
        # Without nginx, nobody is anybody.
        async with bridge.http() as http:
            assert (await http.post("/mcp", json=PING, headers=ACCEPT)).status_code == 401


async def test_the_location_on_the_page_passes_streams_on(machine, configure):
    [location] = blocks("docs/http.md", "nginx")
    async with serving(configure()) as bridge:
        folder = machine.nginx_folder / "conf.d"
        folder.mkdir()
        place = f"127.0.0.1:{machine.listener.getsockname()[1]}"
        location = location.replace("127.0.0.1:8350", f"127.0.0.1:{bridge.port}")
        (folder / "page.conf").write_text(f"server {{ listen {place};\n{location}\n}}")
        with machine.nginx():
            through = dataclasses.replace(bridge, url=f"http://{place}/mcp")
            for mode in ("legacy", "2026-07-28"):
                async with through.client(mode) as client:
                    await streams_arrive(client, mode)


def unit(text):
    """The values of a unit's settings, each a list."""
    found = {}
    for key, value in re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE):
        found.setdefault(key, []).append(value)
    return found


def test_the_unit_waits_for_running_calls_and_leaves_containers_possible(machine):
    file = REPOSITORY / FOLDER / "mcp-bridge.service"
    settings = unit(file.read_text("utf-8"))
    assert settings["Type"] == ["exec"]
    # Else containers and servers would get SIGTERM with the bridge, and running calls with them.
    assert settings["KillMode"] == ["mixed"]
    [stop] = settings["TimeoutStopSec"]
    for name in ("mcp-bridge.toml", "mcp-bridge-certificates.toml"):
        drain = tomllib.loads((file.parent / name).read_text("utf-8"))["http"]["drain_timeout"]
        assert int(stop.removesuffix("s")) >= drain + 30
    # What the file's comment says is left out: rootless containers don't start with any of it.
    comment = re.search(r"# Left out on purpose.*?(?=\n\n)", file.read_text("utf-8"), re.DOTALL)[0]
    left_out = set(re.findall(r"\b(?:[A-Z][a-z]+){2,}\b|NoNewPrivileges|LockPersonality|ProcSubset", comment))
    assert {"NoNewPrivileges", "PrivateDevices", "ProtectProc", "SystemCallFilter"} <= left_out
    assert not left_out & set(settings)
    command = shlex.split(settings["ExecStart"][0])
    assert command[1:] == ["--config", "/etc/mcp-bridge/mcp-bridge.toml", "serve", "--transport", "http"]


def test_systemd_finds_no_fault_in_the_unit(machine):
    # A machine without systemd has nothing to ask; the test above reads the file everywhere.
    *_, verified = machine.run(SERVICE, only="" if shutil.which("systemd-analyze") else "install")
    # It ends well with settings that it doesn't know, and says so.
    assert "mcp-bridge.service" not in verified.stdout + verified.stderr
    installed = machine.root / "etc/systemd/system/mcp-bridge.service"
    assert unit(installed.read_text("utf-8"))["ExecStart"][0].startswith(f"{COMMAND} ")
