"""A package index on loopback (PEP 503), and wheels made for tests: well-behaved ones, and others."""

import hashlib
import io
import threading
import zipfile
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


def wheel(name, version="1.0", files=None, *, requires=(), tag="py3-none-any", entries=(), claims=None):
    """A wheel's file name and bytes.

    Args:
        files: Texts or bytes by path; by default a module of the package's name.
        entries: Members as `zipfile.ZipInfo` with their bytes, which a builder would never write.
        claims: The name that its metadata has.
    """
    said = claims or name
    stem = name.replace("-", "_")
    files = {f"{stem}.py": f"version = {version!r}\n"} if files is None else files
    info = f"{stem}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {said}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {one}\n" for one in requires)
    files = files | {
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            archive.writestr(path, content)
        for member, content in entries:
            archive.writestr(member, content)
    return f"{stem}-{version}-{tag}.whl", out.getvalue()


class Index:
    """The index. `asked` has the paths of all requests; `before` is called with each path, and may take its time."""

    def __init__(self):
        self.files = {}
        self.yanked = set()
        self.asked = []
        self.before = lambda _: None
        self.status = 200
        self.url = ""
        self.hidden_hashes = False

    def add(self, *made):
        """Have wheels, or other files, as pairs of name and bytes."""
        for name, data in made:
            self.files[name] = data
        return self

    def downloads(self):
        """The files that were fetched, each as often as it was."""
        return [path.rpartition("/")[2] for path in self.asked if path.startswith("/files/")]

    def page(self, project):
        rows = []
        for name, data in sorted(self.files.items()):
            if name.replace("_", "-").lower().startswith(f"{project}-"):
                digest = "" if self.hidden_hashes else f"#sha256={hashlib.sha256(data).hexdigest()}"
                yanked = ' data-yanked="broken"' if name in self.yanked else ""
                rows.append(f'<a href="/files/{name}{digest}"{yanked}>{name}</a>')
        return "<html><body>" + "\n".join(rows) + "</body></html>"

    def answer(self, path):
        self.asked.append(path)
        self.before(path)
        if self.status != 200:
            return self.status, b"down", "text/plain"
        if path.startswith("/files/"):
            name = path.rpartition("/")[2]
            return (
                (200, self.files[name], "application/octet-stream") if name in self.files else (404, b"", "text/plain")
            )
        project = path.removeprefix("/simple/").strip("/")
        page = self.page(project)
        return (200, page.encode(), "text/html") if "<a " in page else (404, b"", "text/plain")


@contextmanager
def serving(index):
    """Serve an index on loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            status, data, kind = index.answer(self.path)
            try:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except OSError:
                pass

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    index.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield index
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def index(monkeypatch):
    """An empty index, which is the operator's: uv is configured for it."""
    with serving(Index()) as served:
        for name in ("UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_NO_INDEX"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"{served.url}/simple")
        monkeypatch.setenv("UV_HTTP_RETRIES", "0")
        yield served
