"""The driver without a container engine: bundles, images, the supervisor, and what is left when something is killed."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from sandbox_fixtures import Runner, files_of_containers, knows_the_sandbox

from mcp_bridge.errors import BridgeError
from mcp_bridge.sandbox.engine import OWNER_LABEL, SandboxSpec
from mcp_bridge.sandbox.engine_choice import probe
from mcp_bridge.sandbox.image.image import ImageRequest, ensure_image
from mcp_bridge.sandbox.image.store import LABEL_RECIPE
from mcp_bridge.sandbox.isolation_flags import MASKED, Enforced, RuntimeChoice
from mcp_bridge.sandbox.isolation_probe import run_trial
from mcp_bridge.sandbox.oci import bundle_config, host_resources, images, supervisor
from mcp_bridge.sandbox.oci import engine as engine_module
from mcp_bridge.sandbox.oci.bundle_config import Users
from mcp_bridge.sandbox.oci.engine import OciEngine
from mcp_bridge.sandbox.oci.images import BundleImages
from mcp_bridge.sandbox.orphans import sweep

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcp_bridge.sandbox.probe_report import ProbeReport

pytestmark = pytest.mark.xdist_group("oci")

CHOICE = RuntimeChoice("oci", "/usr/bin/crun", "1.8.1", rootless=False, oci_runtime="crun")
SPEC = SandboxSpec(
    image="localhost/image:1",
    name="sandbox-1",
    argv=["python3", "-c", "pass"],
    labels={OWNER_LABEL: "h:1:2"},
    environment={"HOME": "/workspace"},
)
FOREVER = "import time\nprint('up', flush=True)\ntime.sleep(600)"


def rendered(choice: RuntimeChoice = CHOICE, spec: SandboxSpec = SPEC, cgroup_version: str = "2") -> dict[str, Any]:
    text = bundle_config.render(
        choice,
        spec,
        annotations=spec.labels,
        root="/mnt/x",
        users=Users(1000, 1007),
        cgroup="/mcp-bridge-x",
        cgroup_version=cgroup_version,
        oom_score=300,
    )
    return json.loads(text)


@pytest.fixture(scope="module")
def direct(probed: ProbeReport, tmp_path_factory: pytest.TempPathFactory, sandbox_state_dir: Path) -> Iterator[Runner]:
    """The driver with what it needs, whichever engine the other tests use."""
    state = knows_the_sandbox(tmp_path_factory.mktemp("direct"), sandbox_state_dir)

    async def ensure(_: object = None) -> str:
        return (await ensure_image(BundleImages(state / "oci"), ImageRequest(), state_dir=state)).reference

    async def prepare() -> tuple[RuntimeChoice, str]:
        report = await probe(runtime="oci", state_dir=state, ensure=ensure)
        return report.choice, await ensure()

    choice, image = anyio.run(prepare)
    yield Runner(OciEngine(choice, state), image)
    assert not files_of_containers(state)


def state_of(runner: Runner) -> Path:
    return runner.engine._directory.parent


# ---- the bundle's description ------------------------------------------------------------------------------------


def test_a_bundle_has_every_wall_that_the_engines_flags_make() -> None:
    found = rendered()
    assert found["root"] == {"path": "/mnt/x", "readonly": True}
    assert {row["type"] for row in found["linux"]["namespaces"]} == {
        "user", "pid", "network", "ipc", "uts", "mount", "cgroup",
    }  # fmt: skip
    assert not any("path" in row for row in found["linux"]["namespaces"])
    process = found["process"]
    assert process["noNewPrivileges"] is True
    assert process["terminal"] is False
    assert set(map(tuple, process["capabilities"].values())) == {()}
    assert process["user"] == {"uid": 65534, "gid": 65534}
    assert process["env"] == ["HOME=/workspace", "HOSTNAME=sandbox"]
    assert process["cwd"] == "/workspace"
    assert process["oomScoreAdj"] == 300
    limits = {row["type"]: (row["soft"], row["hard"]) for row in process["rlimits"]}
    assert limits["RLIMIT_CORE"] == limits["RLIMIT_MSGQUEUE"] == (0, 0)
    assert limits["RLIMIT_NOFILE"] == (1024, 1024)
    assert set(MASKED) <= set(found["linux"]["maskedPaths"])
    assert {"/proc/sys", "/proc/sysrq-trigger"} <= set(found["linux"]["readonlyPaths"])
    assert found["linux"]["seccomp"]["defaultAction"] == "SCMP_ACT_ERRNO"
    assert len(found["linux"]["seccomp"]["architectures"]) == 1
    assert "hooks" not in found


def test_nothing_that_is_mounted_comes_from_the_host() -> None:
    mounts = {row["destination"]: row for row in rendered()["mounts"]}
    assert {row["type"] for row in mounts.values()} == {"proc", "tmpfs", "devpts", "mqueue", "sysfs", "cgroup"}
    for path, size in (("/tmp", 67108864), ("/workspace", 134217728), ("/dev/shm", 16777216)):
        assert {"nosuid", "noexec", "nodev", "mode=1777", f"size={size}"} <= set(mounts[path]["options"])
    assert "ro" in mounts["/sys"]["options"]
    assert "ro" in mounts["/sys/fs/cgroup"]["options"]
    # The tmpfs beneath version 1's hierarchies; of version 2's only the kernel knows how to.
    last = [rendered(cgroup_version=version)["mounts"][-3] for version in ("1", "2")]
    assert [("remount" in row["options"], "ro" in row["options"]) for row in last] == [(True, True), (False, True)]
    assert {row["destination"] for row in last} == {"/sys/fs/cgroup"}


def test_a_bundle_limits_what_control_groups_hold_and_leaves_the_rest_to_rlimits() -> None:
    resources = rendered()["linux"]["resources"]
    assert resources["memory"] == {"limit": 512 << 20, "swap": 512 << 20}
    assert resources["pids"] == {"limit": 128}
    assert resources["cpu"] == {"quota": 100_000, "period": 100_000}
    assert resources["devices"] == [{"allow": False, "access": "rwm"}]
    found = rendered(replace(CHOICE, enforced=Enforced(memory=False, pids=False, cpus=False)))
    assert set(found["linux"]["resources"]) == {"devices"}
    assert "cgroupsPath" not in found["linux"]
    assert "/sys/fs/cgroup" not in {row["destination"] for row in found["mounts"]}
    assert {"type": "RLIMIT_DATA", "soft": 512 << 20, "hard": 512 << 20} in found["process"]["rlimits"]


def test_only_the_sandboxs_two_users_are_mapped() -> None:
    linux = rendered(spec=replace(SPEC, user="1234:0"))["linux"]
    root = {"containerID": 0, "hostID": 1000, "size": 1}
    assert linux["uidMappings"] == [root, {"containerID": 1234, "hostID": 1007, "size": 1}]
    assert linux["gidMappings"] == [root]


# ---- sandboxes ---------------------------------------------------------------------------------------------------


async def test_two_sandboxes_are_two_users_of_the_host_and_neither_is_the_bridges(direct: Runner) -> None:
    source = "print(open('/proc/self/uid_map').read(), open('/proc/self/gid_map').read())"
    seen = [(await direct.run(source)).stdout.split() for _ in range(2)]
    for words in seen:
        assert words[0] == "0"
        assert "0" not in {words[1], words[4]}
        assert words[:6] == words[6:]
    assert seen[0][1] == seen[1][1]
    assert seen[0][4] != seen[1][4]


async def test_the_image_belongs_to_no_user_of_the_sandbox(direct: Runner) -> None:
    source = (
        "import os\nowner = os.stat('/usr/local/bin/python3').st_uid\n"
        "print(owner == int(open('/proc/sys/kernel/overflowuid').read()), os.access('/usr', os.W_OK))"
    )
    assert (await direct.run(source)).stdout == "True False\n"


async def test_a_sandbox_can_mark_no_device_node_for_others_to_see(direct: Runner) -> None:
    source = (
        "import errno, os\n"
        "for name in ('full', 'null', 'random', 'tty', 'urandom', 'zero'):\n"
        "    path, answer = '/dev/' + name, 'marked'\n"
        "    try:\n        os.utime(path)\n"
        "    except OSError as error:\n        answer = errno.errorcode[error.errno]\n"
        "    print(name, answer)\n"
        "with open('/dev/null', 'wb') as null:\n    print(null.write(b'x'))\n"
    )
    expected = "".join(f"{name} EROFS\n" for name in ("full", "null", "random", "tty", "urandom", "zero"))
    assert (await direct.run(source)).stdout == expected + "1\n"


async def test_the_limits_are_in_force_whatever_the_bridges_umask_is(direct: Runner) -> None:
    choice, state = direct.engine.choice, state_of(direct)
    expected = await run_trial(choice, direct.image, state)
    previous = os.umask(0o077)
    try:
        assert await run_trial(choice, direct.image, state) == expected
    finally:
        os.umask(previous)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def test_no_process_stays_beside_a_sandbox(direct: Runner) -> None:
    process = await direct.start(FOREVER)
    try:
        with anyio.fail_after(60):
            assert await process.stdout.receive() == b"up\n"
            await process.container_id()
        (first,) = children(process._supervisor.owner.pid)
        assert children(first) == []
        status = Path(f"/proc/{first}/status").read_text()
        # Process 1 of its namespace, in that of the supervisor, in the host's.
        (numbers,) = [line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")]
        assert numbers[-1] == "1"
        assert len(numbers) >= 3
    finally:
        await process.aclose()


async def test_the_sandboxes_are_killed_with_their_supervisor_and_the_next_one_gets_another(direct: Runner) -> None:
    first, second = await direct.start(FOREVER), await direct.start(FOREVER)
    try:
        with anyio.fail_after(60):
            for process in (first, second):
                assert await process.stdout.receive() == b"up\n"
            pidfds = [os.pidfd_open(child) for child in children(first._supervisor.owner.pid)]
            os.kill(first._supervisor.owner.pid, signal.SIGKILL)
            for pidfd in pidfds:
                await anyio.wait_readable(pidfd)
                os.close(pidfd)
            assert (await first.wait()).code is None
            assert (await second.wait()).code is None
            assert (await direct.run("print('well')")).stdout == "well\n"
    finally:
        await first.aclose()
        await second.aclose()
    assert files_of_containers(state_of(direct)) == []


async def test_a_supervisor_that_hangs_is_killed_with_all_that_it_has(
    direct: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = await direct.start(FOREVER)
    with anyio.fail_after(60):
        assert await process.stdout.receive() == b"up\n"
        os.kill(process._supervisor.owner.pid, signal.SIGSTOP)
        monkeypatch.setattr(engine_module, "EXIT_SECONDS", 0.2)
        await process.aclose()
    assert process._supervisor.has_ended
    assert files_of_containers(state_of(direct)) == []


async def test_a_runtime_that_hangs_is_killed_with_what_it_has_begun(
    direct: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "runc"
    fake.write_text("#!/bin/sh\nsleep 600 &\nwait\n")
    fake.chmod(0o755)
    process = await OciEngine(replace(direct.engine.choice, path=str(fake)), state_of(direct)).start(
        direct.spec("pass")
    )
    pids: list[int] = []
    with anyio.fail_after(60):
        while not pids:
            pids = [grandchild for child in children(process._supervisor.owner.pid) for grandchild in children(child)]
            await anyio.sleep(0.01)
        pidfds = [os.pidfd_open(pid) for pid in pids]
        monkeypatch.setattr(engine_module, "EXIT_SECONDS", 0.2)
        await process.aclose()
        for pidfd in pidfds:
            await anyio.wait_readable(pidfd)
            os.close(pidfd)
    assert files_of_containers(state_of(direct)) == []


async def test_what_a_runtime_that_was_killed_has_left_running_is_killed(direct: Runner, tmp_path: Path) -> None:
    fake = tmp_path / "runc"
    fake.write_text("#!/bin/sh\nsleep 600 >/dev/null 2>&1 &\necho $! >&2\nkill -KILL $$\n")
    fake.chmod(0o755)
    choice = replace(direct.engine.choice, path=str(fake), enforced=Enforced(memory=False, pids=False, cpus=False))
    process = await OciEngine(choice, state_of(direct)).start(direct.spec("pass"))
    with anyio.fail_after(60):
        with pytest.raises(BridgeError):
            await process.wait()
        for left in children(process._supervisor.owner.pid):
            with contextlib.suppress(ProcessLookupError):
                pidfd = os.pidfd_open(left)
                await anyio.wait_readable(pidfd)
                os.close(pidfd)
    await process.aclose()


async def test_the_runtime_inherits_the_sandboxs_streams_and_nothing_else(direct: Runner, tmp_path: Path) -> None:
    fake = tmp_path / "runc"
    # The shell reads it itself: while it begins a command, it blocks all signals.
    fake.write_text(
        "#!/bin/sh\nls -l /proc/$$/fd >&2\n"
        'while read -r line; do case "$line" in Sig*) echo "$line" >&2; esac; done </proc/$$/status\nexit 3\n'
    )
    fake.chmod(0o755)
    engine = OciEngine(replace(direct.engine.choice, path=str(fake)), state_of(direct))
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    process = await engine.start(direct.spec("pass"))
    said = ""
    try:
        with anyio.fail_after(60):
            async for chunk in process.stderr:
                said += chunk.decode()
    finally:
        signal.signal(signal.SIGHUP, previous)
        await process.aclose()
    assert "pipe:" in said
    assert "socket:" not in said
    words = dict(line.split() for line in said.splitlines() if line.startswith("Sig"))
    assert int(words["SigIgn:"], 16) & 0xFFFFFF == 0
    assert int(words["SigBlk:"], 16) & 0xFFFFFF == 0


async def test_the_runtime_is_on_a_read_only_mount_and_makes_none_of_its_own_in_the_hosts_tmp(
    direct: Runner, tmp_path: Path
) -> None:
    fake = tmp_path / "runc"
    fake.write_text(
        '#!/bin/sh\ngrep " $0 " /proc/self/mountinfo >&2\n'
        'echo "told $_LIBCONTAINER_CLONED_BINARY" >&2\n(echo >>"$0") 2>/dev/null && echo written >&2\nexit 3\n'
    )
    fake.chmod(0o755)
    process = await OciEngine(replace(direct.engine.choice, path=str(fake)), state_of(direct)).start(
        direct.spec("pass")
    )
    said = b""
    try:
        with anyio.fail_after(60):
            async for chunk in process.stderr:
                said += chunk
    finally:
        await process.aclose()
    mounted, told = said.decode().splitlines()
    point, options = mounted.split()[4:6]
    assert point == f"{host_resources.MOUNTS}/runc"
    assert {"ro", "nosuid", "nodev"} <= set(options.split(","))
    # crun would otherwise mount itself, on a file in /tmp that stays if it is killed meanwhile.
    assert told == "told 1"


async def test_a_sandbox_that_gets_no_streams_leaves_no_descriptor(
    direct: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await direct.run("pass")).status.code == 0
    before = len(list(Path("/proc/self/fd").iterdir()))

    def none_left(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(engine_module, "pipe_pairs", none_left)
    with pytest.raises(BridgeError):
        await direct.start("pass")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


async def test_the_end_of_its_supervisor_is_known_before_anything_is_read(direct: Runner) -> None:
    process = await direct.start(FOREVER)
    try:
        with anyio.fail_after(60):
            assert await process.stdout.receive() == b"up\n"
            assert not process.has_ended()
            process._supervisor.kill()
            await anyio.wait_readable(process._supervisor._pidfd)
            assert process.has_ended()
    finally:
        await process.aclose()


def test_an_id_of_a_process_that_was_reaped_long_ago_is_not_taken_for_the_sandboxs(tmp_path: Path) -> None:
    plan = supervisor.Plan(json.dumps({"cgroups": [], "state": str(tmp_path)}))
    control, other = socket.socketpair()
    events, told = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with control, other, told, subprocess.Popen(["sleep", "600"]) as first:
        try:
            serving = supervisor.Supervisor(plan, control)
            sandbox = supervisor.Sandbox("x", str(tmp_path / "x"), events)
            (tmp_path / "x").mkdir()
            (tmp_path / "x/pid").write_text(str(first.pid))
            serving.orphans[first.pid] = 0
            serving.runtime_left(sandbox, 0)
            assert sandbox.first == first.pid
            assert json.loads(told.recv(4096)) == {"started": True}
            assert (tmp_path / "x").is_dir()
        finally:
            first.kill()
            events.close()


def test_a_control_group_that_cannot_be_removed_yet_keeps_the_folder_by_which_it_is_found(tmp_path: Path) -> None:
    plan = supervisor.Plan(json.dumps({"cgroups": [str(tmp_path / "groups")], "state": str(tmp_path / "state")}))
    control, other = socket.socketpair()
    with control, other:
        serving = supervisor.Supervisor(plan, control)
        for name in "ab":
            (tmp_path / name).mkdir()
            (tmp_path / f"groups/mcp-bridge-{name}").mkdir(parents=True)
        busy = tmp_path / "groups/mcp-bridge-a/cgroup.procs"
        busy.write_text("")
        serving.remove(supervisor.Sandbox("a", str(tmp_path / "a"), socket.socket(socket.AF_UNIX)))
        assert (tmp_path / "a").is_dir()
        busy.unlink()
        serving.remove(supervisor.Sandbox("b", str(tmp_path / "b"), socket.socket(socket.AF_UNIX)))
        assert sorted(path.name for path in tmp_path.rglob("*")) == ["groups"]
        assert serving.busy == []


MEMORY_COUNTERS = {
    "version 2": ({"events": "oom 1\noom_kill 3\n"}, 3),
    "version 2, without memory on the machine": ({"events": "oom 0\noom_kill 3\n"}, 0),
    "version 1": (
        {"oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", "max_usage_in_bytes": "64000000\n"},
        2,
    ),
    "version 1, without memory on the machine": (
        {"oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", "max_usage_in_bytes": "32000000\n"},
        0,
    ),
    "none": ({}, 0),
}


@pytest.mark.parametrize("case", MEMORY_COUNTERS)
def test_what_the_kernel_killed_for_want_of_memory_of_the_machine_is_not_put_down_to_the_sandbox(
    tmp_path: Path, case: str
) -> None:
    files, kills = MEMORY_COUNTERS[case]
    folder = tmp_path / "mcp-bridge-x"
    folder.mkdir()
    for name, text in {"limit_in_bytes": "64000000\n", **files}.items():
        (folder / f"memory.{name}").write_text(text)
    plan = supervisor.Plan(json.dumps({"cgroups": [str(tmp_path / "none"), str(tmp_path)], "state": str(tmp_path)}))
    control, other = socket.socketpair()
    with control, other, socket.socket(socket.AF_UNIX) as events:
        assert supervisor.Supervisor(plan, control).oom_kills(supervisor.Sandbox("x", "", events)) == kills


async def test_what_the_runtime_says_when_it_fails_is_told(direct: Runner, tmp_path: Path) -> None:
    fake = tmp_path / "runc"
    fake.write_text("#!/bin/sh\necho 'the moon is in the wrong quarter' >&2\nexit 3\n")
    fake.chmod(0o755)
    process = await OciEngine(replace(direct.engine.choice, path=str(fake)), state_of(direct)).start(
        direct.spec("pass")
    )
    try:
        with anyio.fail_after(60), pytest.raises(BridgeError, match="wrong quarter") as caught:
            await process.wait()
    finally:
        await process.aclose()
    assert caught.value.code == "sandbox_start_failed"


# ---- bridges that are killed ------------------------------------------------------------------------------------

BRIDGE = """
import sys
from pathlib import Path
import anyio
from mcp_bridge.sandbox.engine import OWNER_LABEL, SandboxSpec
from mcp_bridge.sandbox.oci.engine import OciEngine
from mcp_bridge.sandbox.ownership import owner_label
from mcp_bridge.sandbox.engine_choice import probe

async def main():
    state, image, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    report = await probe(runtime="oci", state_dir=state, ensure=None, image=None)
    engine = OciEngine(report.choice, state)
    for number in range(count):
        process = await engine.start(SandboxSpec(
            image, f"killed-{number}", ["python3", "-S", "-c", "import time; time.sleep(600)"],
            labels={OWNER_LABEL: owner_label()}, environment={"PATH": "/usr/local/bin"},
        ))
        held.append(process)
        print(process._supervisor.owner.pid, flush=True)
    await anyio.sleep(600)

held = []
anyio.run(main)
"""


def killed_bridge(runner: Runner) -> tuple[subprocess.Popen[str], int, list[str]]:
    """A bridge that has begun to start three sandboxes, its supervisor, and the sandboxes' ids."""
    argv = [sys.executable, "-c", BRIDGE, str(state_of(runner)), runner.image, "3"]
    bridge = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert bridge.stdout is not None
    supervisors = {int(bridge.stdout.readline()) for _ in range(3)}
    (supervisor,) = supervisors
    return bridge, supervisor, [path.name for path in runner.engine._containers.iterdir()]


async def test_a_bridge_that_is_killed_leaves_no_sandbox_however_far_it_had_come(direct: Runner) -> None:
    for seconds in (0.0, 0.02, 0.3):
        bridge, supervisor, identities = await anyio.to_thread.run_sync(killed_bridge, direct)
        pidfd = os.pidfd_open(supervisor)
        await anyio.sleep(seconds)
        bridge.kill()
        bridge.communicate()
        with anyio.fail_after(30):
            await anyio.wait_readable(pidfd)
        os.close(pidfd)
        assert files_of_containers(state_of(direct)) == []
        assert groups(identities) == []


async def test_what_a_bridge_and_its_supervisor_leave_when_both_are_killed_is_swept(direct: Runner) -> None:
    for seconds in (0.0, 0.02, 0.3):
        bridge, supervisor, identities = await anyio.to_thread.run_sync(killed_bridge, direct)
        pidfd = os.pidfd_open(supervisor)
        await anyio.sleep(seconds)
        bridge.send_signal(signal.SIGSTOP)
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        bridge.kill()
        bridge.communicate()
        with anyio.fail_after(30):
            await anyio.wait_readable(pidfd)
            os.close(pidfd)
            found = {container.name for container in await direct.engine.list(OWNER_LABEL)}
            assert found == {"killed-0", "killed-1", "killed-2"}
            assert len(await sweep(direct.engine)) == 3
        assert files_of_containers(state_of(direct)) == []
        assert groups(identities) == []


async def test_a_supervisor_that_hangs_when_its_bridge_is_killed_is_killed_by_the_sweep(direct: Runner) -> None:
    bridge, supervisor, identities = await anyio.to_thread.run_sync(killed_bridge, direct)
    pidfd = os.pidfd_open(supervisor)
    signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
    bridge.kill()
    bridge.communicate()
    with anyio.fail_after(60):
        assert len(await sweep(direct.engine)) == 3
        await anyio.wait_readable(pidfd)
    os.close(pidfd)
    assert files_of_containers(state_of(direct)) == []
    assert groups(identities) == []


async def test_a_sandbox_of_a_bridge_that_runs_is_nobody_elses_to_remove(direct: Runner) -> None:
    bridge, supervisor, _ = await anyio.to_thread.run_sync(killed_bridge, direct)
    pidfd = os.pidfd_open(supervisor)
    try:
        assert await sweep(direct.engine) == []
        for container in await direct.engine.list(OWNER_LABEL):
            with pytest.raises(BridgeError) as caught:
                await direct.engine.remove(container.id)
            assert caught.value.code == "engine_failed"
        assert len(await direct.engine.list(OWNER_LABEL)) == 3
    finally:
        bridge.kill()
        bridge.communicate()
        with anyio.fail_after(30):
            await anyio.wait_readable(pidfd)
        os.close(pidfd)
    assert files_of_containers(state_of(direct)) == []


def test_a_folder_that_was_never_described_is_removed_in_time(direct: Runner, tmp_path: Path) -> None:
    containers = tmp_path / "oci/containers"
    for name, text in (("empty", None), ("half", "{"), ("new", None)):
        (containers / name).mkdir(parents=True)
        if text is not None:
            (containers / name / "config.json").write_text(text)
    for name in ("empty", "half"):
        os.utime(containers / name, (0, 0))
    OciEngine(direct.engine.choice, tmp_path)
    assert [path.name for path in containers.iterdir()] == ["new"]


def groups(identities: list[str]) -> list[Path]:
    """What is left of these sandboxes' control groups, in any hierarchy."""
    return [path for identity in identities for path in Path("/sys/fs/cgroup").glob(f"*/mcp-bridge-{identity}")]


# ---- images ------------------------------------------------------------------------------------------------------


@pytest.fixture
async def own(direct: Runner, tmp_path: Path) -> tuple[BundleImages, Path, str]:
    """A small image of its own, the folder of it, and its name."""
    root = tmp_path / "root"
    (root / "bin").mkdir(parents=True)
    (root / "bin/tool").write_text("one")
    (root / "bin/link").symlink_to("tool")
    return await added(tmp_path, root, "localhost/own:1")


async def added(tmp_path: Path, root: Path, reference: str, recipe: str = "r") -> tuple[BundleImages, Path, str]:
    tar = tmp_path / "root.tar"
    await anyio.run_process(["tar", "-C", str(root), "-cf", str(tar), "bin"])
    store = BundleImages(tmp_path / "oci")
    await store.add(tar, reference, {LABEL_RECIPE: recipe})
    (image,) = await store.inspect([reference])
    return store, tmp_path / "oci/images" / image.id, reference


async def test_an_image_is_unpacked_once_and_found_by_name_and_by_hash(own, tmp_path: Path) -> None:
    store, folder, reference = own
    assert (folder / "rootfs/bin/link").read_text() == "one"
    before = (folder / "rootfs/bin/tool").stat().st_ino
    await store.add(tmp_path / "root.tar", reference, {LABEL_RECIPE: "r"})
    assert (folder / "rootfs/bin/tool").stat().st_ino == before
    assert [image.id for image in await store.inspect([folder.name])] == [folder.name]
    assert await store.inspect(["localhost/own:2"]) == []


@pytest.mark.parametrize("how", ["content", "mode", "new", "gone", "link"])
async def test_an_image_that_was_changed_is_not_used_and_made_anew(own, tmp_path: Path, how, monkeypatch) -> None:
    store, folder, reference = own
    monkeypatch.setattr(images, "_intact", set())
    tool = folder / "rootfs/bin/tool"
    times = tool.stat()
    match how:
        case "content":
            tool.write_text("two")
            os.utime(tool, ns=(times.st_atime_ns, times.st_mtime_ns))
        case "mode":
            tool.chmod(0o4755)
        case "new":
            (folder / "rootfs/bin/more").touch()
        case "gone":
            tool.unlink()
        case "link":
            (folder / "rootfs/bin/link").unlink()
            (folder / "rootfs/bin/link").symlink_to("/etc/passwd")
    assert await BundleImages(tmp_path / "oci").open(reference) is None
    assert await store.inspect([reference]) == []
    await store.add(tmp_path / "root.tar", reference, {LABEL_RECIPE: "r"})
    assert (folder / "rootfs/bin/tool").read_text() == "one"
    assert await BundleImages(tmp_path / "oci").open(reference) is not None


async def test_an_image_that_was_copied_has_the_same_content_and_is_used(own, tmp_path: Path, monkeypatch) -> None:
    _, folder, reference = own
    monkeypatch.setattr(images, "_intact", set())
    moved = tmp_path / "moved"
    for command in (["cp", "-a", folder, moved], ["rm", "-r", folder], ["cp", "-a", moved, folder]):
        await anyio.run_process([str(word) for word in command])
    assert await BundleImages(tmp_path / "oci").open(reference) is not None


async def test_a_copied_image_is_used_where_nothing_can_be_written(own, tmp_path: Path, monkeypatch, caplog) -> None:
    _, folder, reference = own
    monkeypatch.setattr(images, "_intact", set())
    (folder / "rootfs/bin/tool").touch()
    os.utime(folder / "rootfs/bin/tool")

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(images, "write_private", refused)
    assert await BundleImages(tmp_path / "oci").open(reference) is not None
    assert not caplog.records


async def test_an_image_that_cannot_be_removed_is_named_with_what_to_do(own, monkeypatch) -> None:
    store, folder, reference = own

    def refused(*_: object) -> bool:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(folder / "in-use"))

    monkeypatch.setattr(images, "try_lock", refused)
    with pytest.raises(BridgeError) as caught:
        await store.remove(reference)
    assert (caught.value.code, str(folder / "in-use") in caught.value.message) == ("state_unwritable", True)
    assert "Mount it writable" in str(caught.value)
    # A build that only tidies up after itself goes on.
    monkeypatch.setattr(images, "_read", lambda _: images._Description("", {LABEL_RECIPE: "r"}, 1, "", "", ""))
    await store.remove_replaced("r")


async def test_an_image_in_use_is_kept_until_its_user_is_gone(own, tmp_path: Path) -> None:
    store, folder, reference = own
    user = BundleImages(tmp_path / "oci")
    assert await user.open(reference) is not None
    with pytest.raises(BridgeError) as caught:
        await store.remove(reference)
    assert caught.value.code == "engine_failed"
    assert (folder / "rootfs/bin/tool").exists()
    del user
    await store.remove(reference)
    assert not folder.exists()
    await store.remove(reference)


async def test_an_image_that_has_lost_its_name_is_removed(own, tmp_path: Path) -> None:
    store, folder, reference = own
    (tmp_path / "root/bin/tool").write_text("two")
    _, other, _ = await added(tmp_path, tmp_path / "root", reference)
    assert other != folder
    assert {image.id: image.reference for image in await store.images()} == {
        folder.name: folder.name,
        other.name: reference,
    }
    await store.remove_replaced("r")
    assert [image.id for image in await store.images()] == [other.name]


async def test_what_a_killed_build_had_unpacked_is_removed_by_the_next(own, tmp_path: Path) -> None:
    store, folder, reference = own
    partial = folder.with_name(".partial-1")
    (partial / "rootfs").mkdir(parents=True)
    assert [image.id for image in await store.images()] == [folder.name]
    await store.add(tmp_path / "root.tar", reference, {LABEL_RECIPE: "r"})
    assert not partial.exists()


# ---- what is made of this host -----------------------------------------------------------------------------------


def test_a_rootless_bridge_maps_itself_and_its_subordinate_ids(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(host_resources.subordinate_ids, "ranges", lambda: ((100_000, 65_536), (200_000, 1000)))
    plan = host_resources.plan(
        replace(CHOICE, rootless=True, enforced=Enforced(memory=False, pids=False, cpus=False)), tmp_path
    )
    assert plan["users"] == ["0", str(os.getuid()), "1", "1", "100000", "65536"]
    assert plan["groups"] == ["0", str(os.getgid()), "1", "1", "200000", "1000"]
    assert plan["runtime"] == ["/usr/bin/crun", "--cgroup-manager=disabled"]
    assert plan["cgroups"] == []
    assert host_resources.user_range(rootless=True) == (1, 2, 1001)
