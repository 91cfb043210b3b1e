"""The filter of system calls: what a program in the sandbox may ask of the kernel, as bytes for seccomp(2).

A list of what is allowed; all else is answered with EPERM, so that the program sees a PermissionError. What is not
in it, among others: sockets, new processes and threads, other programs, signals to anybody, folders, owners and
modes of files, mounts, namespaces, tracing, io_uring, keys, bpf. Numbers: the kernel's headers.
"""

import platform
import struct

PLAIN = {
    "x86_64": {
        "memory": (9, 10, 11, 12, 25, 28),  # mmap mprotect munmap brk mremap madvise
        "bytes": (0, 1, 3, 8, 17, 18, 19, 20, 40, 326),  # read write close lseek p* *v sendfile copy_file_range
        "names": (4, 6, 21, 79, 80, 81, 82, 87, 89, 217, 262, 263, 264, 267, 269, 316, 332, 439),
        "files": (5, 32, 33, 73, 74, 75, 77, 95, 137, 138, 292),
        "pipes": (7, 22, 23, 270, 271, 293),  # poll pipe select pselect6 ppoll pipe2
        "signals": (13, 14, 15, 131),  # handlers and masks of its own, none is sent
        "time": (35, 36, 38, 96, 100, 201, 228, 229, 230),
        "self": (24, 39, 60, 63, 98, 99, 102, 104, 107, 108, 110, 111, 186, 202, 204, 219, 231, 273, 309, 318, 334),
    },
    "aarch64": {
        "memory": (214, 215, 216, 222, 226, 233),
        "bytes": (57, 62, 63, 64, 65, 66, 67, 68, 71, 285),
        "names": (17, 35, 38, 48, 49, 50, 61, 78, 79, 276, 291, 439),
        "files": (23, 24, 32, 43, 44, 46, 80, 82, 83, 166),
        "pipes": (59, 72, 73),
        "signals": (132, 134, 135, 139),
        "time": (101, 102, 103, 113, 114, 115, 153, 169),
        "self": (93, 94, 98, 99, 123, 124, 128, 160, 165, 168, 172, 173, 174, 175, 176, 177, 178, 179, 278, 293),
    },
}
ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
OPENAT = {"x86_64": 257, "aarch64": 56}
FCNTL = {"x86_64": (72, (0, 1, 2, 3, 4, 5, 6, 7, 1030)), "aarch64": (25, (0, 1, 2, 3, 4, 5, 6, 7, 1030))}
"""Descriptors, flags and locks; no F_SETOWN, with which a signal can be sent."""
IOCTL = {"x86_64": (16, (0x5401, 0x5421, 0x5450, 0x5451)), "aarch64": (29, (0x5401, 0x5421, 0x5450, 0x5451))}
"""Is it a terminal, blocking, and whether a descriptor goes on to another program."""
WHAT_OPEN_MEANS, ONLY_TRUNCATES = 0x203, 0x200  # O_ACCMODE | O_TRUNC; O_RDONLY | O_TRUNC empties what may be read

LOAD, EQUAL, RETURN, AND = 0x20, 0x15, 0x06, 0x54
NUMBER, MACHINE, SECOND, THIRD = 0, 4, 24, 32  # where they stand in struct seccomp_data, low words
ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050001, 0x80000000


def machine() -> str | None:
    """The architecture whose numbers are known, or None."""
    name = platform.machine()
    return name if name in PLAIN else None


def compiled(name: str) -> bytes:
    """The filter for an architecture: instructions of eight bytes each."""
    lines = [(LOAD, 0, 0, MACHINE), (EQUAL, 1, 0, ARCHITECTURE[name]), (RETURN, 0, 0, KILL), (LOAD, 0, 0, NUMBER)]
    for number in sorted(number for part in PLAIN[name].values() for number in part):
        lines += [(EQUAL, 0, 1, number), (RETURN, 0, 0, ALLOW)]
    for number, commands in (FCNTL[name], IOCTL[name]):
        inner = [line for c in commands for line in ((EQUAL, 0, 1, c), (RETURN, 0, 0, ALLOW))]
        block = [(LOAD, 0, 0, SECOND), *inner, (RETURN, 0, 0, REFUSE)]
        lines += [(EQUAL, 0, len(block), number), *block]
    kept = [(LOAD, 0, 0, THIRD), (AND, 0, 0, WHAT_OPEN_MEANS), (EQUAL, 1, 0, ONLY_TRUNCATES), (RETURN, 0, 0, ALLOW)]
    lines += [(EQUAL, 0, len(kept), OPENAT[name]), *kept, (RETURN, 0, 0, REFUSE)]
    return b"".join(struct.pack("<HBBI", *line) for line in lines)
