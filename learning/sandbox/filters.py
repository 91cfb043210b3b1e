"""The filter of system calls of a sandboxed program, as bytes for seccomp(2).

It is an allow list; other calls fail with EPERM, so that the program sees a PermissionError. Not allowed are, among
others: sockets, new processes and threads, other programs, sending signals, creating folders, changing owners and modes
of files, mounts, namespaces, tracing, io_uring, keys, bpf, and calls that reveal whether another process exists.
The numbers are those of the kernel's headers.
"""

import platform
import struct

PLAIN = {
    "x86_64": {
        "memory": (10, 11, 12, 25, 28),  # mprotect munmap brk mremap madvise
        "bytes": (0, 1, 3, 8, 17, 18, 19, 20, 40, 326),  # read write close lseek p* *v sendfile copy_file_range
        "names": (4, 6, 21, 79, 80, 81, 82, 87, 89, 217, 262, 263, 264, 267, 269, 316, 332, 439),
        "files": (5, 32, 33, 73, 74, 75, 77, 95, 137, 138, 292),
        "pipes": (7, 22, 23, 270, 271, 293),  # poll pipe select pselect6 ppoll pipe2
        "signals": (13, 14, 15, 131),  # handlers and masks of its own, none is sent
        "time": (35, 36, 38, 96, 100, 201, 228, 229, 230),
        "self": (24, 39, 60, 63, 98, 99, 102, 104, 107, 108, 110, 111, 186, 202, 219, 231, 273, 309, 318, 334),
    },
    "aarch64": {
        "memory": (214, 215, 216, 226, 233),
        "bytes": (57, 62, 63, 64, 65, 66, 67, 68, 71, 285),
        "names": (17, 35, 38, 48, 49, 50, 61, 78, 79, 276, 291, 439),
        "files": (23, 24, 32, 43, 44, 46, 80, 82, 83, 166),
        "pipes": (59, 72, 73),
        "signals": (132, 134, 135, 139),
        "time": (101, 102, 103, 113, 114, 115, 153, 169),
        "self": (93, 94, 98, 99, 124, 128, 160, 165, 168, 172, 173, 174, 175, 176, 177, 178, 179, 278, 293),
    },
}
ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
OPENAT = {"x86_64": 257, "aarch64": 56}
MMAP = {"x86_64": 9, "aarch64": 222}
FCNTL = {"x86_64": (72, (0, 1, 2, 3, 4, 5, 6, 7, 1030)), "aarch64": (25, (0, 1, 2, 3, 4, 5, 6, 7, 1030))}
"""Descriptors, flags and locks; not F_SETOWN, which can send a signal."""
IOCTL = {"x86_64": (16, (0x5401, 0x5421, 0x5450, 0x5451)), "aarch64": (29, (0x5401, 0x5421, 0x5450, 0x5451))}
"""Terminal test, non-blocking mode, and close-on-exec."""
MODE, CREATES, EMPTIES = 0x3, 0x40, 0x200  # O_ACCMODE, O_CREAT, O_TRUNC
OPENS = 0x1FDFC3
"""Allowed flags of openat; not O_PATH and O_TMPFILE, which Landlock does not check, nor O_ASYNC."""
ANONYMOUS, KIND, PRIVATE = 0x20, 0xF, 0x2  # MAP_ANONYMOUS, MAP_TYPE, MAP_PRIVATE

LOAD, EQUAL, RETURN, AND = 0x20, 0x15, 0x06, 0x54
NUMBER, MACHINE, FIRST, SECOND, THIRD, FOURTH = (
    0,
    4,
    16,
    24,
    32,
    40,
)  # offsets in struct seccomp_data, low words
ALLOW, REFUSE, KILL, ASK = 0x7FFF0000, 0x00050001, 0x80000000, 0x7FC00000
Lines = list[tuple[int, int, int, int]]


def machine() -> str | None:
    """Return the machine's architecture; None if its system call numbers are not known."""
    name = platform.machine()
    return name if name in PLAIN else None


def compiled(name: str) -> bytes:
    """Return the filter for an architecture: instructions of eight bytes each."""
    lines = [(LOAD, 0, 0, MACHINE), (EQUAL, 1, 0, ARCHITECTURE[name]), (RETURN, 0, 0, KILL), (LOAD, 0, 0, NUMBER)]
    for number in sorted(number for part in PLAIN[name].values() for number in part):
        lines += [(EQUAL, 0, 1, number), (RETURN, 0, 0, ALLOW)]
    for number, commands in (FCNTL[name], IOCTL[name]):
        lines += _only(number, [(LOAD, 0, 0, SECOND), *(line for c in commands for line in _answered(c, ALLOW))])
    lines += _only(MMAP[name], _mapping())
    lines += _only(OPENAT[name], _opening())
    return _packed([*lines, (RETURN, 0, 0, REFUSE)])


def watched(name: str) -> bytes:
    """Return a second filter: an openat that may write waits for the parent's answer (`learning.sandbox.storage`)."""
    writes = [(LOAD, 0, 0, THIRD), (AND, 0, 0, MODE | CREATES), *_answered(0, ALLOW), (RETURN, 0, 0, ASK)]
    lines = [(LOAD, 0, 0, NUMBER), (EQUAL, 0, len(writes), OPENAT[name]), *writes, (RETURN, 0, 0, ALLOW)]
    return _packed(lines)


def _only(number: int, block: Lines) -> Lines:
    """Return the lines for one call, which refuse what `block` does not answer."""
    return [(EQUAL, 0, len(block) + 1, number), *block, (RETURN, 0, 0, REFUSE)]


def _answered(value: int, answer: int) -> Lines:
    """Return lines that give an answer if the loaded word equals a value."""
    return [(EQUAL, 0, 1, value), (RETURN, 0, 0, answer)]


def _mapping() -> Lines:
    """Return lines that allow anonymous memory and private file mappings: shared ones could evade the storage limit."""
    anonymous = [(LOAD, 0, 0, FOURTH), (AND, 0, 0, ANONYMOUS), *_answered(ANONYMOUS, ALLOW)]
    return [*anonymous, (LOAD, 0, 0, FOURTH), (AND, 0, 0, KIND), *_answered(PRIVATE, ALLOW)]


def _opening() -> Lines:
    """Return lines that allow opening for reading or writing.

    Mode 3 requests neither, so that Landlock would allow it on any device. Before Linux 6.2, Landlock does not check
    O_TRUNC, which empties a file even if it is opened for reading.
    """
    rules = [(LOAD, 0, 0, THIRD), (AND, 0, 0, ~OPENS & 0xFFFFFFFF), (EQUAL, 1, 0, 0), (RETURN, 0, 0, REFUSE)]
    mode = [(LOAD, 0, 0, THIRD), (AND, 0, 0, MODE), *_answered(MODE, REFUSE)]
    reading = [(LOAD, 0, 0, THIRD), (AND, 0, 0, MODE | EMPTIES), *_answered(EMPTIES, REFUSE)]
    return [*rules, *mode, *reading, (RETURN, 0, 0, ALLOW)]


def _packed(lines: Lines) -> bytes:
    return b"".join(struct.pack("<HBBI", *line) for line in lines)
