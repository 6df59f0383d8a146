"""Determines by trial which engine to use on this host, how to call it, and which isolation features work.

The probe tries an OCI runtime without an engine, then Podman, then Docker; for each, the possible OCI runtimes; and for
each of these it gives up one isolation feature after another until a trial container starts. What it gave up, and
limits that the trial found not to be enforced, become findings with a hint. The result is cached: reading it runs no
engine.

An OCI runtime without an engine is the fastest, and is taken only if that costs nothing: it has to have every isolation
feature, and an engine that enforces more limits, or confines containers by a security module, is preferred.
"""

from __future__ import annotations

import platform
import shutil
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from mcp_bridge.errors import BridgeError
from mcp_bridge.sandbox.engine_info import EngineInfo, engine_info
from mcp_bridge.sandbox.isolation_flags import Enforced, RuntimeChoice
from mcp_bridge.sandbox.isolation_probe import Trial, run_trial
from mcp_bridge.sandbox.oci.detection import candidates, not_wanted
from mcp_bridge.sandbox.oci.host_resources import USER_BASE, USER_COUNT, has_security_module
from mcp_bridge.sandbox.probe_report import Finding, ProbeReport, load_report, report_path, store_report

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from mcp_bridge.error_codes import Code
    from mcp_bridge.sandbox.isolation_flags import EngineName

    Ensure = Callable[[RuntimeChoice], Awaitable[str]]

USERNS = f"0:{USER_BASE}:{USER_COUNT}"
"""The mapping for an engine that runs as root."""

_ATTEMPTS = 8
_LEAST_NPROC = 1024

_NO_SECCOMP = ("not supported", "not enabled", "unsupported", "not compiled in", "without seccomp")

_OCI_RUNTIMES = ("runc", "crun")
"""Tried in this order after the engine's default."""

_INSTALL = {
    "Darwin": "Install Podman (`brew install podman`), then `podman machine init` and `podman machine start`.",
    "Linux": "Install one, on Debian: `apt-get install podman runc uidmap slirp4netns fuse-overlayfs`.",
}


async def probe(
    *,
    runtime: Literal["auto", "oci", "podman", "docker"] = "auto",
    oci_runtime: str = "auto",
    state_dir: Path,
    ensure: Ensure,
    image: str | None = None,
    refresh: bool = False,
) -> ProbeReport:
    """Choose the engine by trial.

    Args:
        runtime: An engine, or `auto` for the first that works; `oci` is an OCI runtime without an engine.
        oci_runtime: The name of an OCI runtime, or `auto` for the first that works.
        state_dir: Holds the cached report and the trial's files; created if missing.
        ensure: Returns an image for the trial, given an engine.
        image: An image for the trial, instead of calling `ensure`.
        refresh: Whether to ignore a cached report.

    Returns:
        The choice and the findings. Cached for this boot, user, engine and these options.

    Raises:
        BridgeError: `no_runtime` if no engine works, with the findings in `details["findings"]`; errors of `ensure`;
            `disk_full`, `state_unwritable`.
    """
    path = report_path(state_dir, runtime, oci_runtime, image)
    if not refresh and (cached := load_report(path)):
        return cached
    names: tuple[EngineName, ...] = ("podman", "docker") if runtime == "auto" else (runtime,)
    findings: list[Finding] = []
    direct: ProbeReport | None = None
    if runtime == "auto":
        direct = await _direct(_Search(state_dir, oci_runtime, ensure, image), findings)
    if direct is None or direct.choice.enforced != _ALL or has_security_module():
        for name in names:
            search = _Search(state_dir, oci_runtime, ensure, image)
            choice = await search.engine(name)
            findings += search.findings
            if choice is not None:
                report = ProbeReport(choice, tuple(findings))
                if direct is None:
                    store_report(path, report)
                    return report
                if (why := _surpasses(search, choice, direct.choice)) is not None:
                    report = ProbeReport(choice, (_unused(why), *findings))
                    store_report(path, report)
                    return report
                break
    if direct is not None:
        store_report(path, direct)
        return direct
    raise BridgeError(
        "no_runtime",
        f"No container engine works here: {' '.join(found.message for found in findings)}",
        hint=next((found.hint for found in findings if found.level == "error" and found.hint), None)
        or _INSTALL.get(platform.system()),
        findings=[found.record() for found in findings],
    )


async def _direct(search: _Search, findings: list[Finding]) -> ProbeReport | None:
    """The report for an OCI runtime without an engine; None, and a finding, if that isn't used."""
    why = not_wanted(search.oci_runtime, search.image)
    if why is None:
        choice = await search.engine("oci")
        if choice is not None:
            return ProbeReport(choice, tuple(search.findings))
        why = " ".join(found.message for found in search.findings).removesuffix(".")
    findings.append(_unused(why))
    return None


def _surpasses(search: _Search, engine: RuntimeChoice, direct: RuntimeChoice) -> str | None:
    """What an engine has on this host that an OCI runtime without one lacks; None if there is nothing."""
    if engine.enforced.more_than(direct.enforced):
        return f"{engine.engine} enforces limits here that {direct.title} by itself doesn't"
    # A bundle names no profile of a security module: the engines bring their own.
    return f"{engine.engine} has its containers confined as {search.confined}" if search.confined else None


def _unused(why: str) -> Finding:
    return Finding("ok", "oci_unused", f"No OCI runtime is used without a container engine: {why}.")


@dataclass
class _Search:
    """The state of a probe: its options and the findings so far."""

    state_dir: Path
    oci_runtime: str
    ensure: Ensure
    image: str | None
    findings: list[Finding] = field(default_factory=list)
    confined: str = ""
    """The label of a security module that the chosen engine's containers have."""

    async def engine(self, name: EngineName) -> RuntimeChoice | None:
        """The choice for one engine, or None if no trial container starts."""
        if name == "oci":
            return await self._oci()
        path = shutil.which(name)
        if path is None:
            self._add_finding("warning", "engine_absent", f"{name} is not installed.", _INSTALL.get(platform.system()))
            return None
        info = await engine_info(name, path)
        if isinstance(info, Finding):
            self.findings.append(info)
            return None
        self.findings += info.findings
        return await self._first_working(info, self._candidates(info))

    async def _oci(self) -> RuntimeChoice | None:
        infos = await candidates(self.oci_runtime, self.state_dir)
        if isinstance(infos, Finding):
            self.findings.append(infos)
            return None
        for info in infos:
            choice = await self._first_working(info, [info.choice])
            if choice is not None:
                return choice
        return None

    async def _first_working(self, info: EngineInfo, choices: list[RuntimeChoice]) -> RuntimeChoice | None:
        image = self.image or await self.ensure(info.choice)
        for candidate in choices:
            found = await self._find_working(info, candidate, image)
            if found is not None:
                choice, trial = found
                # Findings about rejected candidates don't matter once one works.
                self.findings = [
                    replace(finding, level="ok") if finding.code == "oci_runtime_unusable" else finding
                    for finding in self.findings
                ]
                self._report(info, choice, trial)
                return choice
        return None

    def _candidates(self, info: EngineInfo) -> list[RuntimeChoice]:
        """One choice for each OCI runtime, with all isolation features enabled."""
        first = info.choice
        if first.engine == "podman" and not first.rootless and not info.remote:
            first = replace(first, userns=USERNS)
        if self.oci_runtime != "auto":
            names = [self.oci_runtime]
        elif info.remote or first.engine == "docker":
            names = [""]
        else:
            others = (name for name in _OCI_RUNTIMES if name != info.default_runtime and shutil.which(name))
            names = ["", *others]
        return [_with_runtime(first, name) for name in names]

    async def _find_working(
        self, info: EngineInfo, choice: RuntimeChoice, image: str
    ) -> tuple[RuntimeChoice, Trial] | None:
        """Give up isolation features until a trial container starts; return the choice and the trial's report."""
        for _ in range(_ATTEMPTS):
            try:
                trial = await run_trial(choice, image, self.state_dir)
            except BridgeError as error:
                if error.code in {"image_missing", "image_without_python", "disk_full", "state_unwritable"}:
                    raise
                weaker = self._weaken(info, choice, error)
                if weaker is None:
                    return None
                choice = weaker
                continue
            enforced = Enforced(
                memory=trial.memory and choice.enforced.memory,
                pids=trial.pids and choice.enforced.pids,
                cpus=trial.cpus and choice.enforced.cpus,
            )
            if enforced == choice.enforced:
                if choice.engine == "oci" and not trial.is_isolated:
                    self._add_finding(
                        "warning", "oci_runtime_unusable", f"{choice.title} lacks isolation here: {trial}"
                    )
                    return None
                return choice, trial
            # The flags have changed: run another trial with these.
            choice = replace(choice, enforced=enforced)
        return None

    def _weaken(self, info: EngineInfo, choice: RuntimeChoice, error: BridgeError) -> RuntimeChoice | None:
        """The next weaker choice after a failed trial, or None if nothing can be given up."""
        # Without a message from the engine, an isolation feature may not be the cause.
        text = str(error.details.get("output", "")).lower()
        last = (str(error.details.get("output", "")).strip() or error.message).splitlines()[-1]
        runtime = choice.oci_runtime or info.default_runtime or "its default OCI runtime"
        title = choice.title if choice.engine == "oci" else f"{choice.engine} with {runtime}"
        if "rlimit" in text and choice.nproc_max > _LEAST_NPROC:
            return replace(choice, nproc_max=choice.nproc_max // 2, nofile_max=min(choice.nofile_max, 4096))
        if "hybrid" not in text and "cgroup" in text and choice.enforced != _NOTHING:
            self._add_finding("warning", "limits_refused", f"{choice.title} refuses limits: {last}")
            only_cpus = "cpu" in text and "memory" not in text and "pids" not in text and choice.enforced.cpus
            return replace(choice, enforced=replace(choice.enforced, cpus=False) if only_cpus else _NOTHING)
        # Only if the engine doesn't support seccomp at all: another failure of the profile doesn't justify none.
        if (
            choice.engine != "oci"
            and choice.seccomp
            and "seccomp" in text
            and any(words in text for words in _NO_SECCOMP)
        ):
            self._add_finding("warning", "seccomp_refused", f"{choice.engine} refuses the seccomp profile: {last}")
            return replace(choice, seccomp=False)
        if choice.userns and text and "hybrid" not in text:
            self._add_finding("warning", "userns_refused", f"{title} refuses a user mapping: {last}")
            return replace(choice, userns="")
        self._add_finding("warning", "oci_runtime_unusable", f"{title} can't start a container here: {last}")
        return None

    def _report(self, info: EngineInfo, choice: RuntimeChoice, trial: Trial) -> None:
        kind = "rootless" if choice.rootless else "as root"
        runtime = choice.oci_runtime or info.default_runtime or "its default OCI runtime"
        using = f"{choice.title} {choice.version} {kind}"
        how = "without a container engine" if choice.engine == "oci" else f"with {runtime}"
        self._add_finding("ok", "engine", f"Using {using}, {how}.")
        self._limits(info, choice)
        if not trial.seccomp:
            self._add_finding(
                "error",
                "seccomp_off",
                "The seccomp profile is not in force: the sandbox reaches kernel interfaces it should not.",
                "Use an engine and a kernel with seccomp support.",
            )
        if trial.capabilities or not trial.no_new_privileges:
            self._add_finding("error", "privileges", "The sandbox keeps capabilities or may gain privileges.")
        if not trial.mapped:
            self._add_finding(
                "warning",
                "no_user_namespace",
                "Users in the sandbox are the host's users of the same numbers.",
                "Run Podman rootless, or Docker with `userns-remap`."
                if choice.engine == "docker"
                else "A kernel from 5.19 on lets Podman map users as root; rootless Podman always does.",
            )
        if trial.command_line:
            self._add_finding(
                "warning",
                "kernel_command_line",
                f"{choice.engine} can't hide the host's /proc/cmdline from the sandbox.",
                "Podman can.",
            )
        if trial.security_module not in {"", "unconfined"}:
            self.confined = trial.security_module
            self._add_finding("ok", "security_module", f"Confined as {trial.security_module} as well.")

    def _limits(self, info: EngineInfo, choice: RuntimeChoice) -> None:
        held = choice.enforced
        mend = (
            "Version 1 control groups can't be delegated to a user: boot with `systemd.unified_cgroup_hierarchy=1`, or "
            "run the engine as root."
            if choice.rootless and info.cgroup_version == "1"
            else "Give the user's session the memory, pids and cpu controllers (systemd: `Delegate=yes`)."
        )
        if held == _ALL:
            self._add_finding("ok", "limits", "Limits of memory, processes and CPU are in force.")
        if not held.memory:
            self._add_finding(
                "warning",
                "memory_not_enforced",
                "The memory limit holds for each process separately, not for a sandbox as a whole.",
                mend,
            )
        if not held.pids:
            self._add_finding(
                "warning",
                "pids_not_enforced",
                "Processes are counted by user id (RLIMIT_NPROC), so each sandbox gets a user id of its own.",
                mend,
            )
        if not held.cpus:
            self._add_finding("warning", "cpus_not_enforced", "A sandbox may take every CPU there is.", mend)

    def _add_finding(
        self, level: Literal["ok", "warning", "error"], code: Code, message: str, hint: str | None = None
    ) -> None:
        self.findings.append(Finding(level, code, message, hint))


_NOTHING = Enforced(memory=False, pids=False, cpus=False)
_ALL = Enforced(memory=True, pids=True, cpus=True)


def _with_runtime(choice: RuntimeChoice, name: str) -> RuntimeChoice:
    if not name:
        return choice
    arguments = choice.global_args
    if choice.engine == "podman":
        arguments = (*arguments, f"--runtime={name}")
    return replace(choice, oci_runtime=name, global_args=arguments)
