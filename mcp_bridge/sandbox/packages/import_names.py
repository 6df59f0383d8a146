"""Which package has a module that a script has not found: by what is known, and by what is in the cache."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp_bridge.sandbox.packages.cache import WheelCache

_DIFFERENT: Mapping[str, str] = MappingProxyType(
    {
        "Crypto": "pycryptodome",
        "IPython": "ipython",
        "OpenSSL": "pyopenssl",
        "PIL": "pillow",
        "PyPDF2": "pypdf2",
        "attr": "attrs",
        "bs4": "beautifulsoup4",
        "cv2": "opencv-python-headless",
        "dateutil": "python-dateutil",
        "docx": "python-docx",
        "dotenv": "python-dotenv",
        "faiss": "faiss-cpu",
        "fitz": "pymupdf",
        "git": "gitpython",
        "github": "pygithub",
        "igraph": "python-igraph",
        "jose": "python-jose",
        "jwt": "pyjwt",
        "Levenshtein": "levenshtein",
        "magic": "python-magic",
        "mpl_toolkits": "matplotlib",
        "multipart": "python-multipart",
        "nacl": "pynacl",
        "osgeo": "gdal",
        "patoolib": "patool",
        "pkg_resources": "setuptools",
        "pptx": "python-pptx",
        "psycopg2": "psycopg2-binary",
        "pylab": "matplotlib",
        "pywt": "pywavelets",
        "serial": "pyserial",
        "shapefile": "pyshp",
        "skimage": "scikit-image",
        "sklearn": "scikit-learn",
        "slugify": "python-slugify",
        "snappy": "python-snappy",
        "telegram": "python-telegram-bot",
        "usb": "pyusb",
        "websocket": "websocket-client",
        "yaml": "pyyaml",
        "zmq": "pyzmq",
    }
)
"""Packages whose modules have another name than the package, of those that are asked for most."""

NAMESPACES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "azure": (),
        "backports": (),
        "google": ("protobuf",),
        "jaraco": (),
        "opentelemetry": (),
        "ruamel": (),
        "sphinxcontrib": (),
        "zope": (),
    }
)
"""Top-level modules that many packages share, whose names begin with it, and the packages of other names that have it.
A package of exactly that name is another one, or nobody's yet."""

_NOT_FOUND = re.compile(r"No module named '([A-Za-z_][A-Za-z0-9_.]{0,99})'")

_OPTIONAL = re.compile(r"`Import ([A-Za-z_]\w{0,99})` failed|Missing optional dependency '([A-Za-z_]\w{0,99})'")
"""How pandas says that it needs a package for something."""


def missing_module(message: str) -> str | None:
    """The top-level module that an import has not found, by Python's message; None if it tells of none.

    Nor does it tell of one where a module isn't found in a package that is there: Python names the module in full then.
    """
    found = _NOT_FOUND.search(message) or _OPTIONAL.search(message)
    if found is None:
        return None
    module, _, inner = (found[1] or found[2]).partition(".")
    return None if inner and module not in NAMESPACES else module


def package_of(module: str, cache: WheelCache) -> str:
    """The normalised name of the package that has a module: as in the cache, as known, else of the same name."""
    if (known := _DIFFERENT.get(module)) is not None:
        return canonicalize_name(known)
    # Of several the one of the module's own name, and else the one that has least besides.
    names = sorted((len(files.modules), files.name) for _, files in cache.modules() if module in files.modules)
    same = canonicalize_name(module)
    return same if not names or any(name == same for _, name in names) else names[0][1]
