"""The engine drivers: argument vectors, and the life and death of real containers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest
from sandbox_fixtures import files_of_containers

from mcp_bridge.errors import BridgeError
from mcp_bridge.sandbox import cli_engine, container_monitors
from mcp_bridge.sandbox.cli_engine import CliEngine, CliProcess
from mcp_bridge.sandbox.engine import EXECUTION_LABEL, OWNER_LABEL, ExitStatus, Limits, SandboxSpec
from mcp_bridge.sandbox.engine_errors import start_failure
from mcp_bridge.sandbox.isolation_flags import Enforced, RuntimeChoice, run_argv
from mcp_bridge.sandbox.oci.engine import OciEngine, OciProcess
from mcp_bridge.sandbox.orphans import sweep
from mcp_bridge.sandbox.ownership import Owner, host_id, owner_label

if TYPE_CHECKING:
    from sandbox_fixtures import Runner

PODMAN = RuntimeChoice("podman", "/usr/bin/podman", "4.3.1", rootless=False, global_args=("--runtime=runc",))
DOCKER = RuntimeChoice("docker", "/usr/bin/docker", "20.10.24", rootless=False)
SPEC = SandboxSpec(
    image="localhost/image:1",
    name="sandbox-1",
    argv=["python3", "-c", "pass"],
    labels={OWNER_LABEL: "h:1:2"},
    environment={"HOME": "/workspace"},
)
FOREVER = "import time\nprint('up', flush=True)\ntime.sleep(600)"
ECHO = "import sys\nfor line in sys.stdin.buffer:\n    sys.stdout.buffer.write(line)\n    sys.stdout.buffer.flush()"


def argv(choice: RuntimeChoice, spec: SandboxSpec = SPEC, **options) -> list[str]:
    return run_argv(choice, spec, cidfile=Path("/state/run/a.cid"), profile=Path("/pkg/seccomp.json"), **options)


async def names(engine: CliEngine | OciEngine, label: str = OWNER_LABEL) -> set[str]:
    return {container.name for container in await engine.list(label)}


# ---- the command line, without an engine -------------------------------------------------------------------------


@pytest.mark.parametrize("choice", [PODMAN, DOCKER], ids=lambda choice: choice.engine)
def test_both_engines_get_every_common_wall(choice: RuntimeChoice) -> None:
    found = argv(choice)
    for flag in (
        "--rm", "--interactive", "--pull=never", "--network=none", "--read-only", "--cap-drop=ALL", "--ipc=private",
        "--security-opt=no-new-privileges", "--security-opt=seccomp=/pkg/seccomp.json", "--cgroupns=private",
        "--hostname=sandbox", "--log-driver=none", "--ulimit=core=0:0", "--user=65534:65534", "--pids-limit=128",
        "--memory=536870912", "--memory-swap=536870912", "--cpus=1", "--cidfile=/state/run/a.cid", "--name=sandbox-1",
        f"--label={OWNER_LABEL}=h:1:2", "--env=HOME=/workspace",
        "--tmpfs=/tmp:rw,noexec,nosuid,nodev,size=67108864,mode=1777",
        "--tmpfs=/workspace:rw,noexec,nosuid,nodev,size=134217728,mode=1777",
    ):  # fmt: skip
        assert flag in found
    assert found[-4:] == ["localhost/image:1", "python3", "-c", "pass"]
    assert not any(flag.startswith(("--volume", "--mount", "--privileged", "--device", "--init")) for flag in found)


def test_podman_alone_gets_what_only_podman_has() -> None:
    found = argv(PODMAN)
    assert found[:3] == ["/usr/bin/podman", "--runtime=runc", "run"]
    for flag in ("--read-only-tmpfs=false", "--no-hosts", "--http-proxy=false", "--systemd=false", "--unsetenv-all"):
        assert flag in found
        assert flag not in argv(DOCKER)
    assert any(flag.startswith("--security-opt=mask=/proc/cmdline") for flag in found)


def test_an_old_podman_is_not_given_flags_it_does_not_know() -> None:
    assert "--unsetenv-all" not in argv(replace(PODMAN, version="3.4.4"))


def test_docker_is_told_the_image_variables_to_drop_and_keeps_those_of_the_specification() -> None:
    found = argv(DOCKER, unset=["GPG_KEY", "HOME"])
    assert "--env=GPG_KEY" in found
    assert "--env=HOME" not in found
    assert "--env=GPG_KEY" not in argv(PODMAN, unset=["GPG_KEY"])


def test_docker_takes_its_oci_runtime_after_run() -> None:
    found = argv(replace(DOCKER, oci_runtime="crun"))
    assert found.index("--runtime=crun") > found.index("run")


def test_a_user_mapping_is_given_for_users_and_groups() -> None:
    found = argv(replace(PODMAN, userns="0:7:65536"))
    assert "--uidmap=0:7:65536" in found
    assert "--gidmap=0:7:65536" in found


def test_limits_that_the_control_groups_do_not_hold_become_rlimits() -> None:
    choice = replace(PODMAN, enforced=Enforced(memory=False, pids=False, cpus=False))
    found = argv(choice, user="20001:20001")
    assert not any(flag.startswith(("--memory", "--pids-limit", "--cpus")) for flag in found)
    assert "--ulimit=nproc=4096:4096" in found  # not 128: the OCI runtime still counts as the engine's user
    assert "--ulimit=data=536870912:536870912" in found
    assert "--user=20001:20001" in found


def test_no_rlimit_exceeds_what_the_probe_found_possible() -> None:
    found = argv(replace(PODMAN, nofile_max=500, nproc_max=700))
    assert "--ulimit=nofile=500:500" in found
    assert "--ulimit=nproc=700:700" in found


def test_a_container_name_that_looks_like_a_flag_stays_an_argument() -> None:
    assert "--name=--privileged" in argv(PODMAN, replace(SPEC, name="--privileged"))


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("Error: localhost/x:1: image not known", "image_missing"),
        (
            "docker: Error response from daemon: No such image: x:latest\n\nRun 'docker run --help' for more",
            "image_missing",
        ),
        ("Error: creating layer: write /var/x: no space left on device", "disk_full"),
        ("docker: Error response from daemon: Unknown runtime specified foo", "no_runtime"),
        ('Error: default OCI runtime "foo" not found: invalid argument', "no_runtime"),
        ("docker: Cannot connect to the Docker daemon at unix:///var/run/docker.sock.", "no_runtime"),
        ("Error: something new", "sandbox_start_failed"),
        ("", "sandbox_start_failed"),
    ],
)
def test_an_engines_complaint_becomes_a_code(said: str, code: str) -> None:
    error = start_failure("podman", said)
    assert error.code == code
    assert error.hint


# ---- real containers --------------------------------------------------------------------------------------------


async def test_lines_come_back_and_the_exit_status_is_the_commands(runner: Runner) -> None:
    process = await runner.start(ECHO + "\nsys.exit(3)")
    try:
        with anyio.fail_after(30):
            await process.stdin.send(b"one\n")
            assert await process.stdout.receive() == b"one\n"
            await process.stdin.aclose()
            assert (await process.wait()).code == 3
    finally:
        await process.aclose()


async def test_a_message_of_eight_megabytes_arrives_whole_and_in_order(runner: Runner) -> None:
    sent = bytes(range(65, 91)) * 322_638 + b"\n"
    process = await runner.start(ECHO)
    received = bytearray()
    try:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(process.stdin.send, sent)
                while len(received) < len(sent):
                    received += await process.stdout.receive(1 << 20)
    finally:
        await process.aclose()
    assert received == sent


async def test_bytes_of_every_value_pass_unchanged(runner: Runner) -> None:
    # Podman would take ctrl-p ctrl-q, each read by itself, for the wish to detach.
    process = await runner.start("import sys\nwhile b := sys.stdin.buffer.read1(1): sys.stdout.buffer.raw.write(b)")
    sent = b"\x10\x11\x10\x11" + bytes(range(256))
    received = bytearray()
    try:
        with anyio.fail_after(60):
            for value in sent[:4]:
                await process.stdin.send(bytes([value]))
                received += await process.stdout.receive(1)
            await process.stdin.send(sent[4:])
            while len(received) < len(sent):
                received += await process.stdout.receive()
    finally:
        await process.aclose()
    assert bytes(received) == sent


async def test_a_line_there_and_back_costs_little_more_than_the_engines_own_relay(runner: Runner) -> None:
    process = await runner.start(ECHO)
    times = []
    try:
        with anyio.fail_after(60):
            for _ in range(500):
                begin = time.perf_counter()
                await process.stdin.send(b'{"jsonrpc":"2.0","id":1,"method":"tool.call","params":{}}\n')
                await process.stdout.receive()
                times.append(time.perf_counter() - begin)
    finally:
        await process.aclose()
    # About 0.1 ms on an idle machine; the bound only catches a wait that does not belong there.
    assert sorted(times)[len(times) // 2] < 0.005


async def test_killing_by_id_ends_the_container_and_is_not_taken_for_want_of_memory(runner: Runner) -> None:
    process = await runner.start(FOREVER)
    try:
        with anyio.fail_after(60):
            await process.stdout.receive()
            await runner.engine.kill(await process.container_id())
            status = await process.wait()
        assert status.code == 137
        assert not status.oom_killed
    finally:
        await process.aclose()


async def test_killing_and_removing_what_is_gone_is_no_error(engine: CliEngine | OciEngine) -> None:
    await engine.kill("mcp-bridge-never-was")
    await engine.remove("mcp-bridge-never-was")
    await engine.kill("0" * 64)
    await engine.remove("0" * 64)


async def test_a_container_is_listed_with_its_labels_while_it_runs_and_not_afterwards(runner: Runner) -> None:
    process = await runner.start(FOREVER, labels={EXECUTION_LABEL: "e,1=x"})
    try:
        with anyio.fail_after(60):
            await process.stdout.receive()
            (found,) = await runner.engine.list(f"{EXECUTION_LABEL}=e,1=x")
            assert found.id == await process.container_id()
            assert found.labels[OWNER_LABEL] == owner_label()
            assert found.labels[EXECUTION_LABEL] == "e,1=x"
            while not found.running:  # the engine's list may come to it after PID 1 has printed
                await anyio.sleep(0.05)
                (found,) = await runner.engine.list(f"{EXECUTION_LABEL}=e,1=x")
    finally:
        await process.aclose()
    assert await runner.engine.list(f"{EXECUTION_LABEL}=e,1=x") == []


async def test_closing_is_idempotent_and_leaves_no_id_file(runner: Runner, sandbox_state_dir: Path) -> None:
    process = await runner.start(FOREVER)
    await process.container_id()
    for _ in range(3):
        await process.aclose()
    assert files_of_containers(sandbox_state_dir) == []
    with pytest.raises(anyio.ClosedResourceError):
        await process.stdout.receive()


@pytest.mark.parametrize("seconds", [0, 0.03, 0.06, 0.1, 0.15, 0.25])
async def test_closing_in_the_midst_of_creation_leaves_nothing(runner: Runner, seconds: float) -> None:
    spec = runner.spec(FOREVER)
    process = await runner.engine.start(spec)
    await anyio.sleep(seconds)
    await process.aclose()
    assert has_ended(process)
    assert spec.name not in await names(runner.engine)


async def test_closing_ends_a_container_whose_output_nobody_reads(runner: Runner) -> None:
    process = await runner.start("import os\nwhile True: os.write(1, bytes(65536))")
    await process.stdout.receive()
    await anyio.sleep(0.3)
    with anyio.fail_after(30):
        await process.aclose()


async def test_a_cancelled_caller_leaves_nothing(runner: Runner) -> None:
    spec = runner.spec(FOREVER)
    ended = []
    running = anyio.Event()

    async def use() -> None:
        process = await runner.engine.start(spec)
        try:
            await process.stdout.receive()
            running.set()
            await process.wait()
        finally:
            await process.aclose()
            ended.append(has_ended(process))

    # On its way, however far it is by then.
    with anyio.move_on_after(0.05):
        await use()
    assert spec.name not in await names(runner.engine)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(use)
        await running.wait()
        tasks.cancel_scope.cancel()
    assert spec.name not in await names(runner.engine)
    assert ended
    assert all(ended)


def has_ended(process: CliProcess | OciProcess) -> bool:
    """Whether nothing of ours waits for the container any more, because there is none."""
    return process._is_removed if isinstance(process, OciProcess) else process._child.returncode is not None


def kill_its_parent(process: CliProcess | OciProcess) -> None:
    """Kill the engine's client, or the supervisor."""
    pid = process._supervisor.owner.pid if isinstance(process, OciProcess) else process._child._process.pid
    os.kill(pid, signal.SIGKILL)


async def test_a_container_whose_client_was_killed_is_removed_all_the_same(runner: Runner) -> None:
    spec = runner.spec(FOREVER)
    process = await runner.engine.start(spec)
    try:
        with anyio.fail_after(60):
            await process.stdout.receive()
            kill_its_parent(process)
            assert (await process.wait()).code is None
    finally:
        await process.aclose()
    assert spec.name not in await names(runner.engine)


async def test_a_client_that_hangs_in_creation_is_ended_and_its_container_removed_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_engine, "CREATION_SECONDS", 0.3)
    fake = tmp_path / "podman"
    fake.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/calls\n[ "$1" = run ] && exec sleep 600\nexit 0\n')
    fake.chmod(0o755)
    engine = CliEngine(replace(PODMAN, path=str(fake), global_args=()), tmp_path / "state")
    process = await engine.start(SPEC)
    await process.aclose()
    assert process._child.returncode == -signal.SIGKILL
    assert (tmp_path / "calls").read_text().splitlines()[-1] == f"rm --force --time=0 {SPEC.name}"


@pytest.mark.parametrize("failures", [2, 3])
async def test_a_removal_that_fails_is_tried_again_and_a_container_that_stays_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failures: int
) -> None:
    monkeypatch.setattr(cli_engine, "CREATION_SECONDS", 0.3)
    monkeypatch.setattr(cli_engine, "RETRY_SECONDS", 0.01)
    fake, calls = tmp_path / "podman", tmp_path / "calls"
    fake.write_text(
        f'#!/bin/sh\n[ "$1" = run ] && exec sleep 600\necho "$*" >> {calls}\n'
        f'[ "$(wc -l < {calls})" -gt {failures} ] || {{ echo "Error: database is locked" >&2; exit 125; }}\n'
    )
    fake.chmod(0o755)
    engine = CliEngine(replace(PODMAN, path=str(fake), global_args=()), tmp_path / "state")
    process = await engine.start(SPEC)
    await process.aclose()
    assert calls.read_text().splitlines() == [f"rm --force --time=0 {SPEC.name}"] * 3
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [SPEC.name in line and "database is locked" in line for line in said] == [True] * (failures - 2)


SLOW = """#!/bin/sh
[ "$1" = run ] || exit 0
sleep 0.3 &
touch oom
echo $! > monitor.pid
wait
while [ ! -e {leaves} ]; do sleep 0.05; done
exit 137
"""


async def slow_to_leave(tmp_path: Path) -> cli_engine.CliProcess:
    """A client whose container's monitor has ended, and that leaves when there is a file `leaves`."""
    fake = tmp_path / "podman"
    fake.write_text(SLOW.format(leaves=tmp_path / "leaves"))
    fake.chmod(0o755)
    return await CliEngine(replace(PODMAN, path=str(fake), global_args=()), tmp_path / "state").start(SPEC)


async def test_a_client_that_is_slow_to_leave_is_waited_for_and_tells_how_its_container_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_engine, "EXIT_SECONDS", 100.0)
    process = await slow_to_leave(tmp_path)
    found = []

    async def wait() -> None:
        found.append(await process.wait())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        while process._monitor_ended_at is None:  # noqa: ASYNC110  (of that there is no event)
            await anyio.sleep(0.05)
        await anyio.sleep(2.5)
        # As late as it may be: the memory was wanting when the container ended, and not when its client left.
        late = time.time() + cli_engine.OOM_SECONDS + 5
        monkeypatch.setattr(cli_engine.time, "time", lambda: late)
        (tmp_path / "leaves").touch()
    await process.aclose()
    assert found == [ExitStatus(137, oom_killed=True)]


async def test_a_client_that_does_not_leave_is_given_up_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_engine, "EXIT_SECONDS", 0.1)
    process = await slow_to_leave(tmp_path)
    assert await process.wait() == ExitStatus(None)
    monkeypatch.setattr(cli_engine, "EXIT_SECONDS", 100.0)
    with anyio.fail_after(30):
        assert await process.wait() == ExitStatus(None)
    await process.aclose()


async def test_the_client_runs_in_a_session_of_its_own_so_that_ctrl_c_does_not_reach_it(runner: Runner) -> None:
    process = await runner.start(FOREVER)
    try:
        await process.container_id()
        parent = process._supervisor.owner.pid if isinstance(process, OciProcess) else process._child._process.pid
        assert os.getsid(parent) != os.getsid(0)
    finally:
        await process.aclose()


async def test_the_client_gets_nothing_secret_from_our_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    fake = tmp_path / "podman"
    fake.write_text("#!/bin/sh\nenv\nexit 0\n")
    fake.chmod(0o755)
    engine = CliEngine(replace(PODMAN, path=str(fake), global_args=()), tmp_path / "state")
    process = await engine.start(SPEC)
    found = b""
    async for chunk in process.stdout:
        found += chunk
    await process.aclose()
    assert b"PATH=" in found
    assert b"sk-secret" not in found


async def test_a_missing_image_says_so_with_the_engines_own_words(runner: Runner) -> None:
    process = await runner.engine.start(replace(runner.spec("pass"), image="localhost/mcp-bridge-no-such:image"))
    try:
        with anyio.fail_after(60), pytest.raises(BridgeError) as caught:
            await process.wait()
    finally:
        await process.aclose()
    assert caught.value.code == "image_missing"
    assert "mcp-bridge-no-such" in caught.value.details["output"]


async def test_a_start_without_a_container_fails_the_wait_for_its_id(runner: Runner) -> None:
    process = await runner.engine.start(replace(runner.spec("pass"), image="localhost/mcp-bridge-no-such:image"))
    try:
        with anyio.fail_after(60), pytest.raises(BridgeError, match="image"):
            await process.container_id()
    finally:
        await process.aclose()


async def test_a_command_that_is_not_in_the_image_is_a_failed_start(runner: Runner) -> None:
    process = await runner.engine.start(replace(runner.spec("pass"), argv=["no-such-command"]))
    try:
        with anyio.fail_after(60), pytest.raises(BridgeError) as caught:
            await process.wait()
    finally:
        await process.aclose()
    assert caught.value.code == "image_without_python"
    assert "no-such-command" in caught.value.details["output"]


async def test_what_a_client_that_was_killed_had_begun_to_start_is_ended(runner: Runner) -> None:
    if isinstance(runner.engine, OciEngine) or not runner.engine.has_monitors:
        pytest.skip("this engine's client starts nothing itself")
    spec = runner.spec(FOREVER)
    process = await runner.engine.start(spec)
    while not container_monitors.text_of(process._folder / container_monitors.MONITOR_NAME):  # noqa: ASYNC110  (of a file there is no event)
        await anyio.sleep(0.001)
    process._child._process.kill()
    await process._child.wait()
    await process.aclose()
    assert spec.name not in await names(runner.engine)
    # The monitor has it among its arguments; what it watches is its child.
    assert (await anyio.run_process(["pgrep", "--full", spec.name], check=False)).returncode == 1


async def test_an_unknown_oci_runtime_is_no_runtime(runner: Runner, sandbox_state_dir: Path) -> None:
    choice = runner.engine.choice
    name = "mcp-bridge-no-such-runtime"
    if isinstance(runner.engine, OciEngine):
        with pytest.raises(BridgeError) as caught:
            await OciEngine(replace(choice, path=f"/{name}"), sandbox_state_dir).start(runner.spec("pass"))
        assert caught.value.code == "no_runtime"
        return
    arguments = tuple(part for part in choice.global_args if not part.startswith("--runtime="))
    if choice.engine == "podman":
        arguments = (*arguments, f"--runtime={name}")
    broken = CliEngine(replace(choice, global_args=arguments, oci_runtime=name), sandbox_state_dir)
    process = await broken.start(runner.spec("pass"))
    try:
        with anyio.fail_after(60), pytest.raises(BridgeError) as caught:
            await process.wait()
    finally:
        await process.aclose()
    assert caught.value.code == "no_runtime"


async def test_an_engine_that_is_gone_is_no_runtime(tmp_path: Path) -> None:
    engine = CliEngine(replace(PODMAN, path=str(tmp_path / "podman")), tmp_path)
    with pytest.raises(BridgeError) as caught:
        await engine.start(SPEC)
    assert caught.value.code == "no_runtime"


async def test_statuses_of_the_engines_own_are_the_commands_when_it_has_spoken(runner: Runner) -> None:
    ended = await runner.run("print('words')\nraise SystemExit(125)")
    assert ended.status.code == 125


async def monitor_version() -> tuple[int, ...]:
    """Podman's monitor's: later ones than Debian 12's 2.1.6 write that it was out of memory where `--rm` removes it."""
    said = await anyio.run_process(["conmon", "--version"])
    return tuple(map(int, said.stdout.split()[2].split(b".")))


async def test_taking_more_memory_than_allowed_ends_in_the_way_the_host_can_enforce(runner: Runner) -> None:
    source = "b = bytearray(400 * 1024 * 1024)\nfor i in range(0, len(b), 4096): b[i] = 1"
    ended = await runner.run(source, limits=Limits(memory=48 * 1024 * 1024))
    if runner.engine.choice.enforced.memory:
        assert ended.status.code == 137
        if runner.engine.name == "docker" and not ended.status.oom_killed:
            # Of about one in fifty, on a busy machine, Docker's daemon hears the end before the memory, and drops what
            # it hears of a container that is removed.
            ended = await runner.run(source, limits=Limits(memory=48 * 1024 * 1024))
        assert ended.status.oom_killed or (runner.engine.name == "podman" and await monitor_version() > (2, 1, 6))
    else:
        assert ended.status.code == 1
        assert "MemoryError" in ended.stderr
        assert not ended.status.oom_killed


# ---- owners and sweeps ------------------------------------------------------------------------------------------


def dead_owner() -> Owner:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    return Owner(host_id(), gone.pid, "long-ago")


def test_this_process_is_no_orphan() -> None:
    owner = Owner.parse(owner_label())
    assert owner is not None
    assert owner.pid == os.getpid()
    assert not owner.is_orphaned()


def test_a_dead_process_and_one_whose_number_went_to_another_are_orphans() -> None:
    assert dead_owner().is_orphaned()
    assert Owner(host_id(), os.getpid(), "long-ago").is_orphaned()


def test_a_zombie_is_dead() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert Owner(host_id(), pid, "x").is_orphaned()
    finally:
        os.waitpid(pid, 0)


@pytest.mark.parametrize("label", ["", "x", "a:b", "a:b:c", "a:1:", ":1:c", "a:-1:c", "a:1:c:d", "a:\u0661:c"])
def test_a_label_that_is_none_of_ours_names_no_owner(label: str) -> None:
    assert Owner.parse(label) is None


async def test_a_sweep_removes_the_containers_of_dead_owners_and_no_others(runner: Runner) -> None:
    dead = dead_owner()
    labels = {
        "dead": str(dead),
        "alive": owner_label(),
        "elsewhere": str(replace(dead, host="0123456789abcdef")),
        "malformed": "of another kind",
    }
    processes = {}
    specs = {name: runner.spec(FOREVER, labels={OWNER_LABEL: label}) for name, label in labels.items()}
    try:
        with anyio.fail_after(120):
            for name, spec in specs.items():
                processes[name] = await runner.engine.start(spec)
            for process in processes.values():
                assert await process.stdout.receive() == b"up\n"
            async with anyio.create_task_group() as group:
                for _ in range(3):
                    group.start_soon(sweep, runner.engine)
            left = await names(runner.engine)
            assert {name for name, spec in specs.items() if spec.name in left} == {"alive", "elsewhere", "malformed"}
            await processes["dead"].wait()
    finally:
        for process in processes.values():
            await process.aclose()


async def test_what_a_client_that_was_killed_with_its_bridge_had_begun_to_start_is_swept(runner: Runner) -> None:
    if isinstance(runner.engine, OciEngine) or not runner.engine.has_monitors:
        pytest.skip("this engine's client starts nothing itself")
    for _ in range(3):
        spec = runner.spec(FOREVER, labels={OWNER_LABEL: str(dead_owner())})
        process = await runner.engine.start(spec)
        try:
            while not container_monitors.text_of(process._folder / container_monitors.MONITOR_NAME):  # noqa: ASYNC110  (of a file there is no event)
                await anyio.sleep(0.001)
            process._child._process.kill()
            await process._child.wait()
            await sweep(runner.engine)
            assert spec.name not in await names(runner.engine)
            # The monitor has it among its arguments; what it watches is its child.
            assert (await anyio.run_process(["pgrep", "--full", spec.name], check=False)).returncode == 1
            assert not list(process._folder.parent.glob(f"{process._folder.name}*"))
        finally:
            await process.aclose()


def test_the_id_files_of_killed_bridges_are_removed_in_time(tmp_path: Path, runner: Runner) -> None:
    run = tmp_path / "run"
    run.mkdir()
    old, new = run / "old.cid", run / "new.cid"
    for path in (old, new):
        path.write_text("0" * 64)
    two_days_ago = time.time() - 48 * 3600
    os.utime(old, (two_days_ago, two_days_ago))
    CliEngine(PODMAN, tmp_path)
    assert [path.name for path in run.iterdir()] == ["new.cid"]
