"""The probe: what it chooses, what it says, and how it remembers."""

from __future__ import annotations

import json
import os
import pwd
import stat
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mcp_bridge.errors import BridgeError
from mcp_bridge.sandbox import engine_choice as probe_module
from mcp_bridge.sandbox import engine_info as info_module
from mcp_bridge.sandbox import subordinate_ids
from mcp_bridge.sandbox.engine_choice import probe
from mcp_bridge.sandbox.engine_info import EngineInfo, engine_info
from mcp_bridge.sandbox.isolation_flags import Enforced, RuntimeChoice
from mcp_bridge.sandbox.isolation_probe import Trial, run_trial
from mcp_bridge.sandbox.oci import detection
from mcp_bridge.sandbox.probe_report import Finding, ProbeReport, load_report, report_path, store_report

if TYPE_CHECKING:
    from sandbox_fixtures import Runner

CHOICE = RuntimeChoice(
    "podman", "/usr/bin/podman", "4.3.1", rootless=True, global_args=("--log-level=error",), environment={"A": "b"}
)
REPORT = ProbeReport(CHOICE, (Finding("ok", "engine", "Fine."), Finding("warning", "x", "Hm.", "Mend it.")))
GOOD = Trial(
    seccomp=True, no_new_privileges=True, capabilities=0, mapped=True, security_module="", command_line=False,
    pids=True, cpus=True, memory=True,
)  # fmt: skip
PODMAN_INFO: dict[str, Any] = {
    "host": {
        "security": {"rootless": False}, "cgroupManager": "cgroupfs", "eventLogger": "file", "cgroupVersion": "v2",
        "ociRuntime": {"name": "crun"},
    },
    "store": {"graphDriverName": "overlay"},
    "version": {"Version": "4.3.1"},
}  # fmt: skip


async def ensure(choice: RuntimeChoice) -> str:
    return "localhost/image:1"


def never(*_: object) -> Any:
    raise AssertionError("an engine was asked")


@pytest.fixture
def fake_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a `podman` on an otherwise empty PATH that answers `info`."""

    def make(info: dict[str, Any] | str, name: str = "podman", status: int = 0) -> Path:
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        text = info if isinstance(info, str) else json.dumps(info)
        (tmp_path / f"{name}.out").write_text(text + "\n")
        path.write_text(
            f'#!/bin/sh\nwhile read -r line; do echo "$line"; done < {tmp_path}/{name}.out\nexit {status}\n'
        )
        path.chmod(0o755)
        monkeypatch.setenv("PATH", str(path.parent))
        return path

    return make


def trials(monkeypatch: pytest.MonkeyPatch, *outcomes: Trial | BridgeError) -> list[RuntimeChoice]:
    """Makes the trials end so, in turn and then for ever as the last; returns the choices that were tried."""
    tried: list[RuntimeChoice] = []

    async def run(choice: RuntimeChoice, image: str, state_dir: Path) -> Trial:
        outcome = outcomes[min(len(tried), len(outcomes) - 1)]
        tried.append(choice)
        if isinstance(outcome, BridgeError):
            raise outcome
        return outcome

    monkeypatch.setattr(probe_module, "run_trial", run)
    return tried


def failed(output: str) -> BridgeError:
    return BridgeError("sandbox_start_failed", "No.", output=output)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def reports(state_dir: Path) -> list[Path]:
    return list(state_dir.glob("probe-*.json"))


def codes(report: ProbeReport) -> dict[str, str]:
    """The findings' codes, but why no OCI runtime was tried: these tests' PATHs have none."""
    return {finding.code: finding.level for finding in report.findings if finding.code != "oci_unused"}


# ---- the real host ----------------------------------------------------------------------------------------------


async def test_what_it_chose_starts_with_every_wall_that_it_says_stands(
    runner: Runner, sandbox_state_dir: Path
) -> None:
    choice = runner.engine.choice
    trial = await run_trial(choice, runner.image, sandbox_state_dir)
    assert trial.seccomp
    assert trial.no_new_privileges
    assert trial.capabilities == 0
    assert trial.mapped == choice.maps_users
    if choice.enforced.memory:
        assert trial.memory
    if choice.enforced.cpus:
        assert trial.cpus
    if choice.enforced.pids:
        assert trial.pids


def test_its_report_has_no_error_and_names_the_engine(probed: ProbeReport) -> None:
    assert [finding for finding in probed.findings if finding.level == "error"] == []
    (engine,) = [finding for finding in probed.findings if finding.code == "engine"]
    assert probed.choice.title in engine.message
    assert probed.choice.version in engine.message


def test_a_limit_that_nothing_enforces_is_a_warning_with_a_way_to_mend_it(probed: ProbeReport) -> None:
    found = {finding.code: finding for finding in probed.findings}
    for name in ("memory", "pids", "cpus"):
        warned = f"{name}_not_enforced" in found
        assert warned != getattr(probed.choice.enforced, name)
        assert not warned or found[f"{name}_not_enforced"].hint


async def test_a_second_probe_reads_the_report_in_milliseconds_and_asks_no_engine(
    probed: ProbeReport, sandbox_state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sandbox_fixtures import RUNTIME

    monkeypatch.setattr(info_module, "run_tool", never)
    monkeypatch.setattr(probe_module, "run_trial", never)
    times = []
    for _ in range(20):
        begin = time.perf_counter()
        again = await probe(runtime=RUNTIME, state_dir=sandbox_state_dir, ensure=never)
        times.append(time.perf_counter() - begin)
    assert again == probed
    assert sorted(times)[10] < 0.005


# ---- the search -------------------------------------------------------------------------------------------------


async def test_root_gets_a_user_mapping_and_everything_enforced(fake_engine, monkeypatch, tmp_path: Path) -> None:
    path = fake_engine(PODMAN_INFO)
    trials(monkeypatch, GOOD)
    report = await probe(state_dir=tmp_path, ensure=ensure)
    assert report.choice.path == str(path)
    assert report.choice.userns
    assert report.choice.enforced == Enforced(memory=True, pids=True, cpus=True)
    assert codes(report) == {"engine": "ok", "limits": "ok"}


async def test_limits_that_do_not_hold_are_tried_again_without(fake_engine, monkeypatch, tmp_path: Path) -> None:
    fake_engine(PODMAN_INFO)
    tried = trials(monkeypatch, replace(GOOD, memory=False, pids=False))
    report = await probe(state_dir=tmp_path, ensure=ensure)
    assert len(tried) == 2
    assert report.choice.enforced == Enforced(memory=False, pids=False, cpus=True)
    assert report.choice.uid_per_container
    assert codes(report) == {"engine": "ok", "memory_not_enforced": "warning", "pids_not_enforced": "warning"}


OCI = RuntimeChoice("oci", "/usr/bin/crun", "1.8.1", rootless=False, oci_runtime="crun")


@pytest.fixture
def with_oci(fake_engine, monkeypatch):
    """A host with an OCI runtime and with podman; on its PATH nothing else."""
    fake_engine(PODMAN_INFO)
    for name in detection.ELSEWHERE:
        monkeypatch.delenv(name, raising=False)

    async def candidates(oci_runtime: str, state_dir: Path) -> list[EngineInfo]:
        return [EngineInfo(OCI, "crun", "1", remote=False, findings=())]

    monkeypatch.setattr(probe_module, "candidates", candidates)
    monkeypatch.setattr(probe_module, "has_security_module", lambda: False)


async def test_an_oci_runtime_that_has_everything_is_taken_and_no_engine_asked(
    with_oci, monkeypatch, tmp_path: Path
) -> None:
    tried = trials(monkeypatch, GOOD)
    report = await probe(state_dir=tmp_path, ensure=ensure)
    assert report.choice == OCI
    assert tried == [OCI]
    assert codes(report) == {"engine": "ok", "limits": "ok"}
    assert report.findings[0].message == "Using crun 1.8.1 as root, without a container engine."


NO_LIMITS = replace(GOOD, memory=False, pids=False, cpus=False)


async def test_an_engine_that_enforces_more_limits_is_preferred_to_an_oci_runtime(
    with_oci, monkeypatch, tmp_path: Path
) -> None:
    trials(monkeypatch, NO_LIMITS, NO_LIMITS, GOOD)
    report = await probe(state_dir=tmp_path, ensure=ensure)
    assert report.choice.engine == "podman"
    assert codes(report) == {"engine": "ok", "limits": "ok"}
    (why,) = [finding for finding in report.findings if finding.code == "oci_unused"]
    assert "podman enforces limits" in why.message


async def test_an_oci_runtime_is_taken_where_no_engine_enforces_more(with_oci, monkeypatch, tmp_path: Path) -> None:
    trials(monkeypatch, NO_LIMITS)
    report = await probe(state_dir=tmp_path, ensure=ensure)
    assert report.choice.engine == "oci"
    assert codes(report)["pids_not_enforced"] == "warning"


@pytest.mark.parametrize(
    "lacking",
    [{"seccomp": False}, {"no_new_privileges": False}, {"capabilities": 1}, {"mapped": False}, {"command_line": True}],
)
async def test_an_oci_runtime_that_lacks_isolation_is_not_taken(with_oci, monkeypatch, tmp_path: Path, lacking) -> None:
    trials(monkeypatch, replace(GOOD, **lacking), GOOD)
    report = await probe(state_dir=tmp_path, ensure=ensure)
    assert report.choice.engine == "podman"
    trials(monkeypatch, replace(GOOD, **lacking))
    with pytest.raises(BridgeError) as caught:
        await probe(runtime="oci", state_dir=tmp_path, ensure=ensure)
    assert caught.value.code == "no_runtime"


@pytest.mark.parametrize(("label", "engine"), [("containers-default (enforce)", "podman"), ("", "oci")])
async def test_an_engine_that_confines_by_a_security_module_is_preferred(
    with_oci, monkeypatch, tmp_path: Path, label: str, engine: str
) -> None:
    monkeypatch.setattr(probe_module, "has_security_module", lambda: True)
    trials(monkeypatch, GOOD, replace(GOOD, security_module=label))
    report = await probe(state_dir=tmp_path, ensure=ensure)
    assert report.choice.engine == engine


async def test_what_says_where_containers_are_to_run_is_heeded(with_oci, monkeypatch, tmp_path: Path) -> None:
    trials(monkeypatch, GOOD)
    for options in ({"image": "localhost/image:1"}, {"oci_runtime": "runsc"}):
        report = await probe(state_dir=tmp_path, ensure=ensure, **options)
        assert report.choice.engine == "podman"
        (why,) = [finding for finding in report.findings if finding.code == "oci_unused"]
        assert next(iter(options.values())) in why.message
    monkeypatch.setenv("DOCKER_HOST", "tcp://elsewhere:1")
    report = await probe(state_dir=tmp_path, ensure=ensure)
    assert report.choice.engine == "podman"


async def test_a_report_of_an_oci_runtime_is_read_again(with_oci, monkeypatch, tmp_path: Path) -> None:
    trials(monkeypatch, GOOD)
    report = await probe(state_dir=tmp_path, ensure=ensure)
    (file,) = reports(tmp_path)
    assert load_report(file) == report


async def test_a_runtime_that_can_not_start_is_passed_over_for_one_that_can(
    fake_engine, monkeypatch, tmp_path: Path
) -> None:
    fake_engine(PODMAN_INFO)
    fake_engine("", name="runc")
    tried = trials(monkeypatch, failed("Error: crun: cgroups in hybrid mode not supported"), GOOD)
    report = await probe(runtime="podman", state_dir=tmp_path, ensure=ensure)
    assert [choice.oci_runtime for choice in tried] == ["", "runc"]
    assert report.choice.global_args[-1] == "--runtime=runc"
    assert codes(report)["oci_runtime_unusable"] == "ok"
    assert "crun" in report.findings[0].message


async def test_a_refused_mapping_is_given_up_and_said(fake_engine, monkeypatch, tmp_path: Path) -> None:
    fake_engine(PODMAN_INFO)
    trials(monkeypatch, failed("Error: newuidmap: write failed"), replace(GOOD, mapped=False))
    report = await probe(state_dir=tmp_path, ensure=ensure)
    assert report.choice.userns == ""
    assert codes(report) == {
        "userns_refused": "warning",
        "engine": "ok",
        "limits": "ok",
        "no_user_namespace": "warning",
    }


async def test_refused_rlimits_are_lowered_without_a_word(fake_engine, monkeypatch, tmp_path: Path) -> None:
    fake_engine(PODMAN_INFO)
    tried = trials(monkeypatch, failed("setrlimit `RLIMIT_NPROC`: Operation not permitted"), GOOD)
    report = await probe(state_dir=tmp_path, ensure=ensure)
    assert report.choice.nproc_max == tried[0].nproc_max // 2
    assert report.choice.userns
    assert codes(report) == {"engine": "ok", "limits": "ok"}


async def test_a_missing_cpu_controller_costs_the_cpu_limit_only(fake_engine, monkeypatch, tmp_path: Path) -> None:
    fake_engine(PODMAN_INFO)
    trials(
        monkeypatch, failed("crun: the requested cgroup controller `cpu` is not available"), replace(GOOD, cpus=False)
    )
    report = await probe(state_dir=tmp_path, ensure=ensure)
    assert report.choice.enforced == Enforced(memory=True, pids=True, cpus=False)


async def test_an_engine_without_seccomp_is_an_error_in_the_report(fake_engine, monkeypatch, tmp_path: Path) -> None:
    fake_engine(PODMAN_INFO)
    trials(monkeypatch, failed("seccomp: config provided but seccomp not supported"), replace(GOOD, seccomp=False))
    report = await probe(state_dir=tmp_path, ensure=ensure)
    assert not report.choice.seccomp
    assert codes(report)["seccomp_off"] == "error"


async def test_a_profile_that_fails_for_another_reason_is_never_given_up(
    fake_engine, monkeypatch, tmp_path: Path
) -> None:
    fake_engine(PODMAN_INFO)
    tried = trials(monkeypatch, failed("error adding seccomp filter rule for syscall execve: cannot allocate memory"))
    with pytest.raises(BridgeError, match="execve"):
        await probe(state_dir=tmp_path, ensure=ensure)
    assert all(choice.seccomp for choice in tried)


async def test_docker_serves_where_podman_does_not(fake_engine, monkeypatch, tmp_path: Path) -> None:
    # Whether this user has some, and newuidmap, is another matter.
    monkeypatch.setattr(subordinate_ids, "missing", lambda: None)
    fake_engine("", status=125)
    fake_engine(
        {"ServerVersion": "20.10.24", "DefaultRuntime": "runc", "CgroupVersion": "1", "Name": os.uname().nodename},
        name="docker",
    )
    trials(monkeypatch, replace(GOOD, mapped=False, command_line=True))
    report = await probe(state_dir=tmp_path, ensure=ensure)
    assert report.choice.engine == "docker"
    assert report.choice.userns == ""
    assert codes(report)["engine_silent"] == "error"
    assert codes(report)["kernel_command_line"] == "warning"


async def test_no_engine_at_all_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BridgeError) as caught:
        await probe(state_dir=tmp_path, ensure=never)
    assert caught.value.code == "no_runtime"
    assert "podman" in (caught.value.hint or "")
    assert {finding["code"] for finding in caught.value.details["findings"]} == {"engine_absent", "oci_unused"}
    assert reports(tmp_path) == []


async def test_a_daemon_that_is_not_running_is_named_with_a_way_to_start_it(fake_engine, tmp_path: Path) -> None:
    fake_engine({"ServerErrors": ["Cannot connect to the Docker daemon"]}, name="docker", status=1)
    with pytest.raises(BridgeError, match="Cannot connect to the Docker daemon") as caught:
        await probe(runtime="docker", state_dir=tmp_path, ensure=never)
    assert "Start the Docker daemon" in (caught.value.hint or "")


async def test_a_full_disk_is_not_taken_for_a_broken_engine(fake_engine, monkeypatch, tmp_path: Path) -> None:
    fake_engine(PODMAN_INFO)
    trials(monkeypatch, BridgeError("disk_full", "Full."))
    with pytest.raises(BridgeError) as caught:
        await probe(state_dir=tmp_path, ensure=ensure)
    assert caught.value.code == "disk_full"


# ---- what an engine says of itself ------------------------------------------------------------------------------


async def described(path: Path) -> EngineInfo:
    found = await engine_info("podman", str(path))
    assert isinstance(found, EngineInfo)
    return found


async def test_the_slow_storage_driver_is_warned_of(fake_engine) -> None:
    info = await described(fake_engine(PODMAN_INFO | {"store": {"graphDriverName": "vfs"}}))
    (found,) = info.findings
    assert found.code == "storage_vfs"
    assert "overlay" in (found.hint or "")


async def test_without_systemd_its_cgroup_manager_and_journal_are_not_used(fake_engine, monkeypatch) -> None:
    monkeypatch.setattr(info_module, "_systemd_session", lambda **_: False)
    host = PODMAN_INFO["host"] | {"cgroupManager": "systemd"}
    info = await described(fake_engine(PODMAN_INFO | {"host": host}))
    assert "--cgroup-manager=cgroupfs" in info.choice.global_args


async def test_a_runtime_directory_of_somebody_else_is_gone_round(fake_engine, monkeypatch, tmp_path: Path) -> None:
    path = fake_engine(PODMAN_INFO)
    monkeypatch.setattr(info_module.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "gone"))
    info = await described(path)
    own = Path(info.choice.environment["XDG_RUNTIME_DIR"])
    assert mode(own) == 0o700
    assert [finding.code for finding in info.findings] == ["runtime_directory"]
    executable, arguments = info.choice.invocation
    assert [executable, *arguments] == ["/usr/bin/env", f"XDG_RUNTIME_DIR={own}", str(path), "--log-level=error"]


async def test_a_link_is_never_taken_for_a_runtime_directory_of_our_own(
    fake_engine, monkeypatch, tmp_path: Path
) -> None:
    path = fake_engine(PODMAN_INFO)
    (tmp_path / f"mcp-bridge-run-{os.getuid()}").symlink_to(tmp_path)
    monkeypatch.setattr(info_module.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "gone"))
    assert (await described(path)).choice.environment == {}


async def test_no_rlimit_is_asked_for_above_our_own(fake_engine, monkeypatch) -> None:
    monkeypatch.setattr(info_module.resource, "getrlimit", lambda which: (100, 200))
    info = await described(fake_engine(PODMAN_INFO))
    assert (info.choice.nofile_max, info.choice.nproc_max) == (200, 200)


def rootless(size: int) -> dict[str, Any]:
    mapped = [{"container_id": 0, "host_id": 1000, "size": 1}, {"container_id": 1, "host_id": 100000, "size": size}]
    host = PODMAN_INFO["host"] | {"security": {"rootless": True}, "idMappings": {"uidmap": mapped[: 1 + bool(size)]}}
    return PODMAN_INFO | {"host": host}


@pytest.fixture
def ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts lines into files that stand for /etc/subuid and /etc/subgid."""
    files = (tmp_path / "subuid", tmp_path / "subgid")
    monkeypatch.setattr(subordinate_ids, "FILES", files)

    def write(*lines: str) -> None:
        for file in files:
            file.write_text("".join(f"{line}\n" for line in lines))

    return write


async def test_a_rootless_user_without_subordinate_ids_is_told_the_line_before_an_image_is_built(
    fake_engine, ranges, tmp_path: Path
) -> None:
    ranges("somebody:100000:65536", "other:165536:10")
    fake_engine(rootless(0))
    with pytest.raises(BridgeError) as caught:
        await probe(runtime="podman", state_dir=tmp_path / "state", ensure=never)
    user = pwd.getpwuid(os.getuid()).pw_name
    assert caught.value.hint == (
        f"As root: `usermod --add-subuids 231072-296607 --add-subgids 231072-296607 {user}`, "
        f"then as {user}: `podman system migrate`."
    )
    (found,) = caught.value.details["findings"]
    assert (found["level"], found["code"]) == ("error", "no_subordinate_ids")


async def test_an_engine_that_has_ids_to_give_is_believed_wherever_they_come_from(fake_engine, ranges) -> None:
    ranges()
    assert (await described(fake_engine(rootless(65536)))).choice.rootless


async def test_a_podman_that_can_not_start_for_want_of_ids_says_so_in_our_words(
    fake_engine, ranges, monkeypatch
) -> None:
    ranges(f"{os.getuid() + 1}:100000:65536")
    monkeypatch.setattr(info_module.os, "getuid", lambda: 54321)
    path = fake_engine("cannot set up namespace using newuidmap: exit status 1", status=125)
    found = await engine_info("podman", str(path))
    assert isinstance(found, Finding)
    assert found.code == "no_subordinate_ids"
    assert "The user 54321 has no ranges" in found.message


async def test_a_user_with_ranges_and_without_newuidmap_is_told_what_to_install(fake_engine, ranges) -> None:
    ranges(f"{os.getuid()}:100000:65536")
    found = await engine_info("podman", str(fake_engine(rootless(0))))
    assert isinstance(found, Finding)
    assert (found.code, found.hint) == ("no_newuidmap", "Install it, on Debian: `apt-get install uidmap`.")


@pytest.mark.parametrize(
    ("lines", "first"),
    [
        ([], 100_000),
        (["a:100000:65536"], 165_536),
        (["a:100000:65536", "b:231072:65536"], 165_536),
        (["a:0:4000000", "# b:4000000:1", "broken", "c:x:1"], 100_000 + 60 * 65_536),
    ],
)
def test_a_range_that_is_free_touches_none_of_the_others(lines: list[str], first: int) -> None:
    assert subordinate_ids.free_range(lines) == first


# ---- the cache --------------------------------------------------------------------------------------------------


def test_a_report_comes_back_as_it_was_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = report_path(tmp_path, "auto", "auto", None)
    store_report(path, REPORT)
    assert load_report(path) == REPORT
    assert mode(path) == 0o600
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"null",
        json.dumps({"choice": {}, "findings": []}).encode(),
        json.dumps(asdict(REPORT) | {"findings": [{"level": "ok"}]}).encode(),
        json.dumps(asdict(REPORT) | {"choice": asdict(CHOICE) | {"seccomp": "no"}}).encode(),
        json.dumps(asdict(REPORT) | {"choice": asdict(CHOICE) | {"engine": "sh"}}).encode(),
        json.dumps(asdict(REPORT) | {"choice": asdict(CHOICE) | {"environment": []}}).encode(),
    ],
)
def test_a_damaged_report_is_none(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "probe-1.json"
    path.write_bytes(damage)
    assert load_report(path) is None


def test_a_report_belongs_to_its_options_user_and_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = {
        report_path(tmp_path, "auto", "auto", None),
        report_path(tmp_path, "podman", "auto", None),
        report_path(tmp_path, "auto", "runc", None),
        report_path(tmp_path, "auto", "auto", "localhost/other:1"),
    }
    with monkeypatch.context() as other:
        other.setattr(os, "getuid", lambda: 12345)
        paths.add(report_path(tmp_path, "auto", "auto", None))
    with monkeypatch.context() as other:
        other.setenv("DOCKER_HOST", "unix:///elsewhere")
        paths.add(report_path(tmp_path, "auto", "auto", None))
    engine = tmp_path / "podman"
    engine.write_text("#!/bin/sh\n")
    engine.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    paths.add(report_path(tmp_path, "auto", "auto", None))
    os.utime(engine, (1, 1))
    paths.add(report_path(tmp_path, "auto", "auto", None))
    assert len(paths) == 8


def test_reports_of_long_gone_boots_are_removed(tmp_path: Path) -> None:
    old = tmp_path / "probe-old.json"
    old.write_text("{}")
    os.utime(old, (1, 1))
    store_report(report_path(tmp_path, "auto", "auto", None), REPORT)
    assert not old.exists()


def test_a_state_directory_that_can_not_be_written_costs_only_the_cache(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store_report(tmp_path / "file" / "probe-1.json", REPORT)
    assert load_report(tmp_path / "file" / "probe-1.json") is None
