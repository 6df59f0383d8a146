"""Runs inside a sandbox and tries its walls; prints one JSON object. Standard library only."""

# The plain calls are what is being tried.
# ruff: noqa: PTH101, PTH108, PTH109, PTH110, PTH114, PTH115, PTH118, PTH123, PTH208
# ruff: noqa: S103, S606

import ctypes
import errno
import json
import mmap
import os
import platform
import resource
import shutil
import signal
import socket
import sys

LIBC = ctypes.CDLL(None, use_errno=True)

# Numbers on x86_64 and on aarch64.
SYSCALLS = {
    "acct": (163, 89), "add_key": (248, 217), "adjtimex": (159, 171), "bpf": (321, 280), "clock_settime": (227, 112),
    "delete_module": (176, 106), "execveat": (322, 281), "fanotify_init": (300, 262), "fsopen": (430, 430),
    "inotify_add_watch": (254, 27), "inotify_init1": (294, 26),
    "init_module": (175, 105), "io_setup": (206, 0), "io_uring_setup": (425, 425), "kcmp": (312, 272),
    "kexec_load": (246, 104), "keyctl": (250, 219), "landlock_create_ruleset": (444, 444), "mbind": (237, 235),
    "memfd_create": (319, 279), "mount": (165, 40), "move_mount": (429, 429), "mq_open": (240, 180),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "open_tree": (428, 428),
    "perf_event_open": (298, 241), "personality": (135, 92), "pidfd_getfd": (438, 438), "pivot_root": (155, 41),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "ptrace": (101, 117), "quotactl": (179, 60),
    "reboot": (169, 142), "request_key": (249, 218), "seccomp": (317, 277), "semget": (64, 190), "setns": (308, 268),
    "shmget": (29, 194), "swapon": (167, 224), "sync": (162, 81), "syslog": (103, 116), "umount2": (166, 39),
    "unshare": (272, 97), "userfaultfd": (323, 282), "vmsplice": (278, 75),
}  # fmt: skip
ARCHITECTURE = ("x86_64", "aarch64").index(platform.machine())
FCNTL = (72, 25)[ARCHITECTURE]
F_GETFD, F_NOTIFY = 1, 1026
CLONE, CLONE3 = ((56, 435), (220, 435))[ARCHITECTURE]
NAMESPACES = {
    "time": 0x80, "mount": 0x20000, "cgroup": 0x2000000, "uts": 0x4000000, "ipc": 0x8000000, "user": 0x10000000,
    "pid": 0x20000000, "net": 0x40000000,
}  # fmt: skip
FAMILIES = ("AF_INET", "AF_INET6", "AF_NETLINK", "AF_PACKET", "AF_VSOCK", "AF_ALG", "AF_BLUETOOTH", "AF_CAN")


def error_name(call):
    try:
        call()
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))
    return "allowed"


def syscall(number, *arguments):
    ctypes.set_errno(0)
    if LIBC.syscall(number, *arguments) == -1:
        return errno.errorcode.get(ctypes.get_errno(), "?")
    return "allowed"


def in_child(call):
    """The name of what a child process that makes the call ends with: its answer, or its signal."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, call().encode())
        finally:
            os._exit(0)
    os.close(writer)
    said = os.read(reader, 100).decode()
    os.close(reader)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return said or signal.Signals(-code).name


def read(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError as error:
        return errno.errorcode[error.errno]


def writable_directories():
    found = []
    for path, directories, _ in os.walk("/"):
        # The kernel's own view; what can be written there is tried apart.
        if path == "/":
            directories.remove("proc")
        probe = os.path.join(path, "mcp-bridge-probe")
        try:
            os.close(os.open(probe, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o755))
        except OSError:
            continue
        os.unlink(probe)
        found.append(path)
    return sorted(found)


def writable_kernel_files():
    """Files of /proc and /sys that can be opened for writing, but for those of this process."""
    found = []
    for top in ("/proc", "/sys"):
        for path, directories, files in os.walk(top):
            if path == "/proc":
                directories[:] = [name for name in directories if not name.isdigit() and "self" not in name]
            for name in files:
                full = os.path.join(path, name)
                if os.path.islink(full):
                    continue
                try:
                    os.close(os.open(full, os.O_WRONLY | os.O_NONBLOCK))
                except OSError:
                    continue
                found.append(full)
    return found


def execute_from(directory):
    program = os.path.join(directory, "program")
    try:
        shutil.copyfile(os.path.realpath(sys.executable), program)
    except OSError:
        with open(program, "wb") as file:
            file.write(b"#!/usr/local/bin/python3\n")
    os.chmod(program, 0o755)

    def run():
        os.execv(program, [program, "-c", ""])

    def map_it():
        with open(program, "rb") as file:
            mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_EXEC, flags=mmap.MAP_PRIVATE)

    answer = [in_child(lambda: error_name(run)), error_name(map_it)]
    os.unlink(program)
    return answer


def fill(path):
    size = 0
    try:
        with open(path, "wb", buffering=0) as file:
            while True:
                size += file.write(bytes(65536))
    except OSError as error:
        return [errno.errorcode[error.errno], size]
    finally:
        os.unlink(path)


def machine_code(code):
    memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return str(ctypes.CFUNCTYPE(ctypes.c_int)(address)())


def abstract_socket(name):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("\0" + name)


status = dict(line.split(":", 1) for line in read("/proc/self/status").splitlines() if ":" in line)
report = {
    "status": {name: value.strip() for name, value in status.items()},
    "mounts": [line.split()[1:4] for line in read("/proc/self/mounts").splitlines()],
    "environment": dict(os.environ),
    "hostname": socket.gethostname(),
    "files": {
        path: read(path)
        for path in (
            "/proc/cmdline",
            "/proc/version",
            "/proc/keys",
            "/proc/kcore",
            "/etc/hosts",
            "/etc/resolv.conf",
            "/etc/hostname",
            "/proc/self/uid_map",
            "/proc/self/gid_map",
            "/proc/sys/kernel/core_pattern",
        )
    },
    "processes": sorted(int(name) for name in os.listdir("/proc") if name.isdigit()),
    "devices": sorted(os.listdir("/dev")),
    "interfaces": sorted(os.listdir("/sys/class/net")),
    "descriptors": [os.readlink(f"/proc/self/fd/{name}").split(":")[0] for name in ("0", "1", "2")],
    "limits": {
        name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))
        for name in ("CORE", "NOFILE", "NPROC", "MSGQUEUE", "DATA")
    },
    "working_directory": os.getcwd(),
    "families": {
        name: error_name(lambda name=name: socket.socket(getattr(socket, name, 0), socket.SOCK_RAW))
        for name in FAMILIES
    },
    "family_numbers": {
        str(number): error_name(lambda number=number: socket.socket(number, socket.SOCK_DGRAM))
        for number in range(64)
        if number != socket.AF_UNIX
    },
    "socketpair": error_name(lambda: socket.socketpair(socket.AF_INET, socket.SOCK_STREAM)),
    "syscalls": {
        name: in_child(lambda n=n: syscall(n[ARCHITECTURE], 0, 0, 0, 0, 0, 0)) for name, n in SYSCALLS.items()
    },
    "clone": {
        name: in_child(lambda flag=flag: syscall(CLONE, flag | signal.SIGCHLD, 0, 0, 0, 0))
        for name, flag in NAMESPACES.items()
    },
    # The kernel looks at the lower half of the number only.
    "fcntl": {
        name: syscall(FCNTL, 0, number, 0)
        for name, number in (("get", F_GETFD), ("notify", F_NOTIFY), ("notify, long", F_NOTIFY | 1 << 32))
    },
    "clone3": in_child(lambda: syscall(CLONE3, 0, 0)),
    "prctl_dumpable": LIBC.prctl(4, 0, 0, 0, 0),
    "prctl_ambient": in_child(lambda: "allowed" if LIBC.prctl(47, 2, 0, 0, 0) == 0 else "refused"),
    "mknod": in_child(lambda: error_name(lambda: os.mknod("/tmp/null", 0o020666, os.makedev(1, 3)))),
    "writable": writable_directories(),
    "writable_kernel_files": writable_kernel_files(),
    "execute": {path: execute_from(path) for path in ("/tmp", "/workspace", "/dev/shm")},
    "full": {path: fill(path + "/full") for path in ("/tmp", "/workspace", "/dev/shm")},
    "abstract": error_name(lambda: abstract_socket(sys.argv[1])) if len(sys.argv) > 1 else None,
    "outside": {path: os.path.exists(path) for path in sys.argv[2:]},
}
if ARCHITECTURE == 0:
    # mov eax, 20 (getpid of i386); int 0x80; ret
    report["i386"] = in_child(lambda: machine_code(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3"))
    # mov eax, 0x40000027 (getpid of x32); syscall; ret
    report["x32"] = in_child(lambda: machine_code(b"\xb8\x27\x00\x00\x40\x0f\x05\xc3"))
    # mov eax, 39 (getpid of x86_64); syscall; ret: that machine code runs at all
    report["native"] = in_child(lambda: machine_code(b"\xb8\x27\x00\x00\x00\x0f\x05\xc3"))
print(json.dumps(report))
