"""The script that runs in the sandboxed process: it installs irrevocable guards, then runs the program.

Started by `learning.sandbox.run` as a separate script, from which nothing of this checkout is importable:
`child.py <status> <parent> <memory> <cpu> <file> <files> <filter> <read> <watched> <channel>`: the two filters in
hexadecimal, `read` the readable folders, separated by colons, `channel` 1 if the program keeps the socket `status` as
its descriptor 3. The working folder is the current one. The script sends the parent the descriptor of the filter
`watched`, then "ready" if every guard is installed, else the error; the program runs only in the first case. See the
manual pages landlock(7), seccomp(2), seccomp_unotify(2), capabilities(7), prctl(2) and getrlimit(2).
"""

import _socket
import ctypes
import os
import resource
import signal
import sys
from types import TracebackType

SET_DEATH_SIGNAL, DROP_BOUND, SET_SECCOMP, NO_NEW_PRIVILEGES, AMBIENT = 1, 24, 22, 38, 47
SECCOMP = {"x86_64": 317, "aarch64": 277}
CHANNEL = 3
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
WRITE_FILE, READ_FILE, READ_DIR, REMOVE_FILE, MAKE_REG = 1 << 1, 1 << 2, 1 << 3, 1 << 5, 1 << 8
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
FIRST_RIGHTS = (1 << 13) - 1
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")

libc = ctypes.CDLL(None, use_errno=True)


class Ruleset(ctypes.Structure):
    """The accesses that Landlock refuses unless a rule allows them."""

    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class Beneath(ctypes.Structure):
    """The accesses that are allowed below an open folder."""

    _pack_ = 1
    _fields_ = (("rights", ctypes.c_uint64), ("folder", ctypes.c_int32))


class Program(ctypes.Structure):
    """A filter of system calls."""

    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def done(result: int, what: str) -> int:
    """Return the result of a system call; raise OSError if it failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def dies_with(parent: int) -> None:
    """Have the kernel kill this process when the thread that waits for it ends."""
    done(libc.prctl(SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0), "parent's death")
    if os.getppid() != parent:
        raise OSError("the process that asked is gone")


def limit(memory: int, cpu: int, file: int, files: int) -> None:
    """Set resource limits: bytes of memory, seconds of CPU time, bytes of a file, open files.

    The core dump limit is 1 byte because a limit of 0 has no effect on dumps that are piped to a program.
    """
    bounds = {
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_CPU: cpu,
        resource.RLIMIT_FSIZE: file,
        resource.RLIMIT_NOFILE: files,
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_CORE: 1,
    }
    for which, most in bounds.items():
        resource.setrlimit(which, (most, most))


def drop_capabilities() -> None:
    """Drop all capabilities for good, so that even root cannot raise its limits."""
    libc.prctl(AMBIENT, 4, 0, 0, 0)
    for capability in range(64):
        libc.prctl(DROP_BOUND, capability, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    done(libc.capset(header, (ctypes.c_uint32 * 6)()), "capabilities")


def fence(folders: list[str]) -> None:
    """Restrict file access with Landlock: read below `folders`, read and write below the current folder, else none."""
    version = done(libc.syscall(CREATE_RULESET, None, 0, 1), "Landlock")
    rights = FIRST_RIGHTS
    for since, right in ((2, REFER), (3, TRUNCATE), (5, IOCTL_DEV)):
        rights |= right if version >= since else 0
    rules = Ruleset(rights, 3, 3)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = done(libc.syscall(CREATE_RULESET, ctypes.byref(rules), size, 0), "Landlock")
    both = READ_FILE | READ_DIR
    own = both | WRITE_FILE | REMOVE_FILE | MAKE_REG | REFER | TRUNCATE
    allowed = [(folder, both) for folder in folders] + [(device, READ_FILE | WRITE_FILE) for device in DEVICES]
    for path, wanted_rights in [*allowed, (".", own)]:
        try:
            folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        rule = Beneath(wanted_rights & rights, folder)
        done(libc.syscall(ADD_RULE, ruleset, 1, ctypes.byref(rule), 0), f"Landlock for {path}")
        os.close(folder)
    done(libc.syscall(RESTRICT_SELF, ruleset, 0), "Landlock")
    os.close(ruleset)


def sift(code: bytes) -> None:
    """Install a seccomp filter: from here on, only the system calls that it allows."""
    program = Program(len(code) // 8, code)
    done(libc.prctl(SET_SECCOMP, 2, ctypes.byref(program), 0, 0), "seccomp")


def ask_parent(code: bytes, status: int) -> None:
    """Install a filter that waits for the parent's answers, and send the parent the descriptor to answer on."""
    done(libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0), "no new privileges")
    program = Program(len(code) // 8, code)
    call = SECCOMP[os.uname().machine]
    listener = done(libc.syscall(call, 1, 8, ctypes.byref(program)), "seccomp that asks the parent")
    ours = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, status)
    ours.sendmsg([b"watched"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, ctypes.c_int(listener))])
    ours.detach()
    os.close(listener)


def guard(parent: int, bounds: list[int], code: bytes, folders: list[str]) -> None:
    """Install all guards, in an order in which none prevents a later one."""
    dies_with(parent)
    done(libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0), "no new privileges")
    limit(*bounds)
    fence(folders)
    drop_capabilities()
    sift(code)


def shown(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
    """Print a traceback that begins in the program."""
    while trace and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    sys.__excepthook__(kind, value.with_traceback(trace), trace)


def start(status: int, arguments: list[str]) -> None:
    """Install the guards, report to the parent, and run the program."""
    parent, *bounds = map(int, arguments[:5])
    try:
        ask_parent(bytes.fromhex(arguments[7]), status)
        guard(parent, bounds, bytes.fromhex(arguments[5]), arguments[6].split(":"))
    except OSError as wrong:
        os.write(status, str(wrong).encode())
        os._exit(3)
    main = type(sys)("__main__")
    sys.modules["__main__"], sys.argv = main, ["program.py"]
    sys.path.insert(0, "")
    os.environ.clear()
    sys.excepthook = shown
    os.write(status, b"ready")
    if arguments[8] == "1" and status != CHANNEL:
        os.dup2(status, CHANNEL)
    if arguments[8] != "1" or status != CHANNEL:
        os.close(status)
    with open("program.py", "rb") as file:  # noqa: PTH123 - pathlib takes longer to import than all this
        text = file.read()
    exec(compile(text, "program.py", "exec"), main.__dict__)


if __name__ == "__main__":
    start(int(sys.argv[1]), sys.argv[2:])
