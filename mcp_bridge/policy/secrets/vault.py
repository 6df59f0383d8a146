"""Secrets: where each comes from, which tools may receive it, and the plaintexts that one execution works with.

```toml
[secrets.github-token]
env = "GITHUB_TOKEN"            # an environment variable of the bridge,
tools = ["github.*"]            # which tools may receive it; none unless named here

[secrets.db-password]
file = true                     # or what `mcp-bridge secret set` keeps in the state directory,
tools = ["postgres.query"]

[secrets.signing-key]
keyring = true                  # or in the system's keyring

[secrets.door]
file = true
masked = false                  # a PIN: its tools get it, and it is hidden nowhere
```
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, field_validator, model_validator

from mcp_bridge.errors import BridgeError
from mcp_bridge.policy.redaction.masking import MIN_SECRET_CHARS
from mcp_bridge.policy.rules.globs import ToolGlob
from mcp_bridge.policy.secrets.secret_stores import SecretFile
from mcp_bridge.policy.secrets.strength import MIN_BITS, bits
from mcp_bridge.policy.secrets.vault_uris import REFERENCE_PREFIX, SECRET_ID, SECRET_PREFIX
from mcp_bridge.system_keyring import SystemKeyring
from mcp_bridge.toml_files.decoding import bad_config, decode

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from mcp_bridge.policy.rules.globs import ToolNames

MAX_SECRET_CHARS = 64 << 10

Source = Literal["env", "file", "keyring"]


class SecretConfig(BaseModel):
    """One `[secrets.NAME]` table: exactly one source, and the tools that may receive the secret.

    A secret that isn't `masked` may be as short as a PIN. It isn't searched for in results: masking a value that can be
    guessed would confirm a right guess.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    env: str | None = None
    file: bool = False
    keyring: bool = False
    tools: tuple[str, ...] = ()
    masked: bool = True

    @field_validator("env")
    @classmethod
    def _names_a_variable(cls, name: str | None) -> str | None:
        if name is not None and (not name or "=" in name or "\0" in name):
            raise ValueError("that is no name of an environment variable")
        return name

    @field_validator("tools", mode="before")
    @classmethod
    def _array(cls, tools: Any) -> Any:
        return tuple(tools) if isinstance(tools, list) else tools

    @field_validator("tools")
    @classmethod
    def _globs(cls, tools: tuple[str, ...]) -> tuple[str, ...]:
        for tool in tools:
            ToolGlob(tool)
        return tools

    @model_validator(mode="after")
    def _one_source(self) -> SecretConfig:
        if (self.env is not None) + self.file + self.keyring != 1:
            raise ValueError('one source is needed: env = "VARIABLE", file = true or keyring = true')
        return self

    @property
    def source(self) -> Source:
        """Where the secret comes from."""
        return "env" if self.env is not None else "file" if self.file else "keyring"


def secrets_from_toml(table: Any, file: Path | None) -> dict[str, SecretConfig]:
    """Decode the `[secrets]` table.

    Args:
        table: `secrets`, as the TOML reader gives it.
        file: Where it came from, for messages.

    Raises:
        BridgeError: `bad_config`.
    """
    if not isinstance(table, dict):
        raise bad_config("is a table of tables", file, "secrets", hint="Write [secrets.NAME].")
    configs = {}
    for name, entry in table.items():
        if not SECRET_ID.fullmatch(name):
            raise bad_config(
                "is no name for a secret",
                file,
                "secrets",
                name,
                hint="Use letters, digits, '_', '.' and '-', up to 100.",
            )
        if isinstance(entry, str) or (isinstance(entry, dict) and "value" in entry):
            raise bad_config(
                "holds a value, and a configuration is no place for one",
                file,
                "secrets",
                name,
                hint=f"Write file = true there, and keep the value with: mcp-bridge secret set {name}",
            )
        configs[name] = decode(SecretConfig, entry, file, "secrets", name)
    return configs


@dataclass(frozen=True, slots=True)
class SecretStatus:
    """The status of a secret, without its value.

    Attributes:
        id: Its id.
        source: Where it comes from.
        variable: The environment variable, for that source.
        tools: Globs of the tools that may receive it.
        configured: Whether there is a `[secrets.NAME]` for it. A stored secret without one is not used.
        problem: Why it can't be used, or None.
    """

    id: str
    source: Source
    variable: str | None = None
    tools: tuple[str, ...] = ()
    configured: bool = True
    problem: str | None = None

    def record(self) -> dict[str, Any]:
        """The status as a JSON object."""
        return {
            "id": self.id,
            "source": self.source,
            "variable": self.variable,
            "tools": list(self.tools),
            "configured": self.configured,
            "problem": self.problem,
        }


@dataclass(frozen=True, slots=True)
class Bounds:
    """Restrictions of the user's own grants while a folder's configuration is in use, too.

    Attributes:
        grants: For each of the user's secrets that the folder's configuration names too, the folder's globs. A tool
            must match globs of both.
        folder_servers: Servers that the folder configures. They receive a secret of the user only if it is in `grants`,
            since the user may have meant another server of that name.
        owned: The ids of the user's own secrets.
    """

    grants: Mapping[str, tuple[ToolGlob, ...]] = field(default_factory=dict)
    folder_servers: frozenset[str] = frozenset()
    owned: frozenset[str] = frozenset()

    def allow(self, secret_id: str, tool: ToolNames) -> bool:
        """Whether a tool that has been granted a secret may receive it."""
        globs = self.grants.get(secret_id)
        if globs is not None:
            return any(glob.names(tool) for glob in globs)
        return secret_id not in self.owned or tool.server not in self.folder_servers


UNBOUNDED = Bounds()
"""No restrictions: there is one configuration."""


@dataclass(frozen=True, slots=True, eq=False)
class Secrets:
    """A snapshot of the secrets. No `repr` shows a value.

    Attributes:
        plaintexts: The values of the available secrets, by id.
        grants: For every configured secret, which tools may receive it.
        problems: Why a configured secret isn't available, by id.
        unmasked: The ids of those that are not masked.
        bounds: Restrictions of the grants.
    """

    plaintexts: Mapping[str, str] = field(default_factory=dict, repr=False)
    grants: Mapping[str, tuple[ToolGlob, ...]] = field(default_factory=dict, repr=False)
    problems: Mapping[str, BridgeError] = field(default_factory=dict, repr=False)
    unmasked: frozenset[str] = frozenset()
    bounds: Bounds = UNBOUNDED

    def limited(self, names: frozenset[str]) -> Secrets:
        """The secrets as one principal may use them. Others are masked in its results, too, but not named."""
        return replace(
            self, grants=MappingProxyType({name: self.grants[name] for name in self.grants if name in names})
        )

    @property
    def hidden(self) -> Mapping[str, str]:
        """The values that are replaced by references, by id; one that isn't granted here by a number."""
        hidden = {name: plaintext for name, plaintext in self.plaintexts.items() if name not in self.unmasked}
        withheld = sorted(hidden.keys() - self.grants.keys())
        free = (name for number in itertools.count(1) if (name := f"withheld-{number}") not in self.plaintexts)
        renamed = dict(zip(withheld, free, strict=False))
        return {renamed.get(name, name): plaintext for name, plaintext in hidden.items()}

    @property
    def ids(self) -> frozenset[str]:
        """The ids of all configured secrets that may be used."""
        return frozenset(self.grants)

    def reveal(self, secret_id: str, tool: ToolNames) -> str:
        """A secret's value, for one tool.

        Raises:
            BridgeError: `secret_denied`, `secret_missing`. Neither contains more than the id and the tool; the reason
                why a secret is missing is in `private`.
        """
        globs = self.grants.get(secret_id)
        granted = globs is not None and any(glob.names(tool) for glob in globs)
        if globs is not None and not (granted and self.bounds.allow(secret_id, tool)):
            raise BridgeError(
                "secret_denied",
                f"The tool {tool} may not receive the secret {secret_id!r}.",
                secret=secret_id,
                tool=str(tool),
            )
        plaintext = self.plaintexts.get(secret_id)
        if globs is None or plaintext is None:
            problem = None if globs is None else self.problems.get(secret_id)
            raise BridgeError(
                "secret_missing",
                f"There is no secret {secret_id!r} that the tool {tool} could be given.",
                private={"reason": str(problem)} if problem else None,
                secret=secret_id,
                tool=str(tool),
            )
        return plaintext


def check_secret(secret_id: str, plaintext: str, *, masked: bool = True) -> None:
    """Refuse a value that can't be a secret.

    A masked value must be long enough that it isn't found in ordinary text, and must not be guessable.

    Args:
        secret_id: The secret's id.
        plaintext: The value.
        masked: Whether the secret is masked.

    Raises:
        BridgeError: `bad_secret`, which doesn't repeat the value.
    """
    why = _unfit(secret_id, plaintext) or (_unmaskable(secret_id, plaintext) if masked else None)
    if why:
        raise BridgeError("bad_secret", why, secret=secret_id)
    if masked and bits(plaintext) < MIN_BITS:
        raise BridgeError(
            "bad_secret",
            f"The value of the secret {secret_id!r} can be guessed: code that tries all of its kind would see which of"
            " them is masked.",
            hint="Use a longer one, of more kinds of characters. If it can't be another,"
            f" masked = false in [secrets.{secret_id}] gives it to its tools, and hides it nowhere.",
            secret=secret_id,
        )


def _unfit(secret_id: str, plaintext: str) -> str | None:
    if not SECRET_ID.fullmatch(secret_id):
        return f"{secret_id[:120]!r} is no name for a secret: letters, digits, '_', '.' and '-', up to 100."
    what = f"The value of the secret {secret_id!r}"
    if not plaintext.strip():
        return f"{what} is empty."
    if len(plaintext) > MAX_SECRET_CHARS:
        return f"{what} is longer than {MAX_SECRET_CHARS} characters."
    if plaintext in SECRET_PREFIX or plaintext in REFERENCE_PREFIX or "vault://" in plaintext:
        return f"{what} is, or holds, a part of what references look like."
    try:
        plaintext.encode()
    except UnicodeEncodeError:
        return f"{what} is not Unicode text."
    return None


def _unmaskable(secret_id: str, plaintext: str) -> str | None:
    what = f"The value of the secret {secret_id!r}"
    if len(plaintext.strip()) < MIN_SECRET_CHARS:
        return f"{what} is shorter than {MIN_SECRET_CHARS} characters, which would be found in any text."
    if len(set(plaintext.strip())) == 1:
        return f"{what} is one character repeated, which would be found in any text."
    return None


class Vault:
    """The operator's secrets.

    Args:
        configs: The `[secrets.NAME]` tables.
        state_dir: The state directory, which has the file of secrets.
        environ: The environment; by default that of the process.
        bounds: Restrictions of the grants.

    Attributes:
        known: The values that have been read so far, by id.
    """

    def __init__(
        self,
        configs: Mapping[str, SecretConfig],
        state_dir: Path,
        environ: Mapping[str, str] | None = None,
        bounds: Bounds = UNBOUNDED,
    ) -> None:
        self._configs = configs
        self._bounds = bounds
        self._file = SecretFile(state_dir)
        self._keyring = SystemKeyring()
        self._environ = os.environ if environ is None else environ
        self.known: Mapping[str, str] = {}

    @property
    def names(self) -> frozenset[str]:
        """The names of the secrets, also of those that aren't available."""
        return frozenset(self._configs)

    @property
    def variables(self) -> frozenset[str]:
        """The environment variables that secrets come from."""
        return frozenset(config.env for config in self._configs.values() if config.env is not None)

    @property
    def is_empty(self) -> bool:
        """Whether no secret is configured: `load` has nothing to wait for."""
        return not self._configs

    def load(self) -> Secrets:
        """Read every configured secret. One that isn't available has its error in `Secrets.problems`.

        May block until a person unlocks the keyring: call it on a thread, not on the event loop.
        """
        plaintexts: dict[str, str] = {}
        problems: dict[str, BridgeError] = {}
        stored = self._stored() if any(config.file for config in self._configs.values()) else {}
        for name, config in self._configs.items():
            try:
                plaintexts[name] = self._read(name, config, stored)
            except BridgeError as error:
                problems[name] = error
        grants = {name: tuple(map(ToolGlob, config.tools)) for name, config in self._configs.items()}
        self.known = {**self.known, **plaintexts}
        unmasked = frozenset(name for name, config in self._configs.items() if not config.masked)
        return Secrets(
            MappingProxyType(plaintexts), MappingProxyType(grants), MappingProxyType(problems), unmasked, self._bounds
        )

    def status(self) -> list[SecretStatus]:
        """The status of every secret that is configured or stored in the file, sorted by id."""
        problems = self.load().problems
        rows = [
            SecretStatus(
                name,
                config.source,
                config.env,
                config.tools,
                problem=str(problems[name]) if name in problems else None,
            )
            for name, config in self._configs.items()
        ]
        stored = self._stored()
        if isinstance(stored, dict):
            rows += [SecretStatus(name, "file", configured=False) for name in stored if name not in self._configs]
        return sorted(rows, key=lambda row: row.id)

    def set(self, secret_id: str, plaintext: str, store: Literal["file", "keyring"] | None = None) -> Source:
        """Store a secret.

        Args:
            secret_id: Its id; it need not be configured yet.
            plaintext: The value, stored unchanged with any newline at its end.
            store: Where to store one that isn't configured; None for the file.

        Returns:
            Where it is stored.

        Raises:
            BridgeError: `bad_secret`, `secret_elsewhere` (the configuration names another source), and as
                `SecretFile.set` and `SystemKeyring.set`.
        """
        config = self._configs.get(secret_id)
        check_secret(secret_id, plaintext, masked=config is None or config.masked)
        where = self._store_of(secret_id, store)
        (self._keyring if where == "keyring" else self._file).set(secret_id, plaintext)
        return where

    def remove(self, secret_id: str, store: Literal["file", "keyring"] | None = None) -> bool:
        """Delete a secret that `set` has stored; whether it existed.

        Raises:
            BridgeError: As `set`.
        """
        where = self._store_of(secret_id, store)
        return (self._keyring if where == "keyring" else self._file).remove(secret_id)

    def _store_of(self, secret_id: str, store: Literal["file", "keyring"] | None) -> Source:
        config = self._configs.get(secret_id)
        if config is None:
            return store or "file"
        if config.env is not None:
            raise BridgeError(
                "secret_elsewhere",
                f"The secret {secret_id!r} comes from the environment variable {config.env}.",
                hint=f"Set the variable, or write file = true in [secrets.{secret_id}].",
            )
        if store not in {None, config.source}:
            raise BridgeError(
                "secret_elsewhere",
                f"The secret {secret_id!r} is configured to come from the {config.source}.",
                hint=f"Write {store} = true in [secrets.{secret_id}], or leave the option out.",
            )
        return config.source

    def _stored(self) -> dict[str, str] | BridgeError:
        try:
            return self._file.read()
        except BridgeError as error:
            return error

    def _read(self, name: str, config: SecretConfig, stored: dict[str, str] | BridgeError) -> str:
        if config.env is not None:
            value, hint = self._environ.get(config.env), f"Set the environment variable {config.env}."
        elif config.file:
            if isinstance(stored, BridgeError):
                raise stored
            value, hint = stored.get(name), f"Keep it with: mcp-bridge secret set {name}"
        else:
            value, hint = self._keyring.get(name), f"Keep it with: mcp-bridge secret set {name}"
        if not value:
            raise BridgeError("secret_missing", f"There is no value for the secret {name!r}.", hint=hint)
        check_secret(name, value, masked=config.masked)
        return value
