"""The seccomp profile: deny by default, one table, one JSON file that Podman and Docker both load.

The tables below are the source. `seccomp.json` beside this file is their rendering in the format of both engines
(Moby's profile format), committed so that an operator can read it and pass it to an engine without running this
package. `python -m mcp_bridge.sandbox.seccomp_profile` regenerates it, and a test compares the two.

Allowed are the system calls that CPython with its standard library (threads, subprocess, multiprocessing, asyncio,
sqlite) and the packages of the data profile were observed to need, and close relatives of these that reach no further
kernel code. Deliberately absent:

- all ways to a new namespace, mount, key, module, clock or trace;
- `seccomp` itself: a filter installed by the guest could only tighten ours, but the call also opens the user
  notification listener, and nothing here needs either;
- `memfd_create` and `execveat`: together they run a program from memory that no noexec mount can stop;
- System V and POSIX message queues and shared memory (`multiprocessing.shared_memory` is a file on /dev/shm);
- `inotify` and `fcntl(F_NOTIFY)`: sandboxes share the files of their image and the host's device nodes, so a watch
  would tell one which of them the others open;
- `sync` and `syncfs`: they flush the host's file systems, and not the sandbox's;
- 32-bit and x32 calls: only the native architecture's table is filtered, so only that one is allowed.

A call that is not listed fails with EPERM. Calls that glibc tries first, with an older call as fallback, fail with
ENOSYS, which triggers the fallback.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PROFILE = Path(__file__).with_name("seccomp.json")
"""The rendered profile, as given to `--security-opt seccomp=`."""

_FILES = """
    access chdir chmod chown close close_range copy_file_range creat dup dup2 dup3 faccessat faccessat2 fadvise64
    fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fdatasync fgetxattr flistxattr flock fremovexattr
    fsetxattr fstat fstatfs fsync ftruncate futimesat getcwd getdents getdents64 getxattr ioctl lchown lgetxattr
    link linkat listxattr llistxattr lremovexattr lseek lsetxattr lstat mkdir mkdirat newfstatat open openat
    openat2 pipe pipe2 pread64 preadv preadv2 pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv
    removexattr rename renameat renameat2 rmdir sendfile setxattr stat statfs statx symlink symlinkat
    sync_file_range truncate umask unlink unlinkat utime utimensat utimes write writev
"""

_MEMORY = "brk madvise membarrier mincore mlock mmap mprotect mremap msync munlock munmap"

_PROCESSES = """
    arch_prctl capget execve exit exit_group fork getegid geteuid getgid getgroups getpgid getpgrp getpid getppid
    getpriority getrandom getresgid getresuid getrlimit getrusage getsid gettid getuid kill pidfd_open pidfd_send_signal
    prlimit64 rseq set_robust_list get_robust_list set_tid_address setpgid setpriority setrlimit setsid sysinfo
    tgkill times tkill uname vfork wait4 waitid
"""

_SCHEDULING = """
    getcpu sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam
    sched_getscheduler sched_rr_get_interval sched_setaffinity sched_yield
"""

_SIGNALS_AND_WAITING = """
    alarm epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 futex
    futex_waitv pause poll ppoll pselect6 restart_syscall rt_sigaction rt_sigpending rt_sigprocmask
    rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo select sigaltstack signalfd
    signalfd4
"""

_TIME = """
    clock_getres clock_gettime clock_nanosleep getitimer gettimeofday nanosleep setitimer time timer_create
    timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime timerfd_settime
"""

_SOCKETS = """
    accept accept4 bind connect getpeername getsockname getsockopt listen recvfrom recvmmsg recvmsg
    sendmmsg sendmsg sendto setsockopt shutdown
"""

_NOT_IMPLEMENTED = """
    cachestat clone3 futex_requeue futex_wait futex_wake io_pgetevents io_setup map_shadow_stack memfd_create
    memfd_secret mseal
"""
"""glibc and libraries that probe for these calls fall back on ENOSYS, and some treat EPERM as final."""

_NAMESPACE_FLAGS = 0x7E02_0080
"""CLONE_NEWTIME, NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET (linux/sched.h)."""

_PRCTL = {
    "PR_SET_PDEATHSIG": 1,
    "PR_GET_PDEATHSIG": 2,
    "PR_GET_DUMPABLE": 3,
    "PR_SET_DUMPABLE": 4,
    "PR_SET_NAME": 15,
    "PR_GET_NAME": 16,
    "PR_GET_SECCOMP": 21,
    "PR_CAPBSET_READ": 23,
    "PR_SET_TIMERSLACK": 29,
    "PR_GET_TIMERSLACK": 30,
    "PR_SET_CHILD_SUBREAPER": 36,
    "PR_GET_CHILD_SUBREAPER": 37,
    "PR_SET_NO_NEW_PRIVS": 38,
    "PR_GET_NO_NEW_PRIVS": 39,
    "PR_SET_VMA": 0x53564D41,
}
"""linux/prctl.h. Absent: PR_SET_SECCOMP, PR_SET_PTRACER, PR_CAP_AMBIENT, PR_SET_MM and the speculation controls."""

_FCNTL_MASK, _FCNTL_FIRST_MASK = 0xFFFF_FFFF, 0xFFFF_FFC0
"""All bits of a command, and those that are clear in the commands 0 to 63: descriptors, flags, locks, signals."""

_FCNTL = {
    "F_DUPFD_QUERY": 1027,
    "F_DUPFD_CLOEXEC": 1030,
    "F_SETPIPE_SZ": 1031,
    "F_GETPIPE_SZ": 1032,
    "F_ADD_SEALS": 1033,
    "F_GET_SEALS": 1034,
}
"""linux/fcntl.h. Absent: F_NOTIFY and the leases."""

_FILE_TYPE_MASK, _FIFO = 0o170000, 0o010000
_AF_UNIX = 1

_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97
"""Linux's numbers, since the profile may be rendered on another system."""


def _rule(names: str | list[str], action: str, **extra: Any) -> dict[str, Any]:
    return {"names": sorted(names.split() if isinstance(names, str) else names), "action": action, **extra}


def _argument(index: int, value: int, op: str = "SCMP_CMP_EQ", value_two: int = 0) -> list[dict[str, Any]]:
    return [{"index": index, "value": value, "valueTwo": value_two, "op": op}]


def profile() -> dict[str, Any]:
    """The profile as a JSON object in the format of Moby's and containers/common's seccomp profiles."""
    allow, refuse = "SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO"
    return {
        "defaultAction": refuse,
        "defaultErrnoRet": _EPERM,
        "archMap": [
            {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": []},
            {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": []},
        ],
        "syscalls": [
            *(
                _rule(names, allow)
                for names in (
                    _FILES,
                    _MEMORY,
                    _PROCESSES,
                    _SCHEDULING,
                    _SIGNALS_AND_WAITING,
                    _TIME,
                    _SOCKETS,
                )
            ),
            _rule("clone", allow, args=_argument(0, _NAMESPACE_FLAGS, "SCMP_CMP_MASKED_EQ")),
            _rule("socket socketpair", allow, args=_argument(0, _AF_UNIX)),
            # The errno of a kernel without the address family: libraries treat it as "no network", and not as a fault.
            _rule("socket socketpair", refuse, args=_argument(0, _AF_UNIX, "SCMP_CMP_NE"), errnoRet=_EAFNOSUPPORT),
            _rule("fcntl", allow, args=_argument(1, _FCNTL_FIRST_MASK, "SCMP_CMP_MASKED_EQ")),
            *(
                _rule("fcntl", allow, args=_argument(1, _FCNTL_MASK, "SCMP_CMP_MASKED_EQ", command))
                for command in _FCNTL.values()
            ),
            _rule("mknod", allow, args=_argument(1, _FILE_TYPE_MASK, "SCMP_CMP_MASKED_EQ", _FIFO)),
            _rule("mknodat", allow, args=_argument(2, _FILE_TYPE_MASK, "SCMP_CMP_MASKED_EQ", _FIFO)),
            *(_rule("prctl", allow, args=_argument(0, option)) for option in _PRCTL.values()),
            _rule(_NOT_IMPLEMENTED, refuse, errnoRet=_ENOSYS),
        ],
    }


def render() -> str:
    """The text of `seccomp.json`."""
    return json.dumps(profile(), indent=1) + "\n"


if __name__ == "__main__":
    PROFILE.write_text(render())
