"""Hostile programs, as data in programs/: what each does is looked at from outside of it, and none gets anywhere."""

import os
import re
import resource
import signal
import socket
import tempfile
import threading
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
import yaml

from learning.sandbox import process
from learning.sandbox.filters import machine
from learning.sandbox.run import available, run
from learning.sandbox.storage import FILE_BYTES, INDEX, MAX_BYTES, Storage
from learning.sandbox.watchdog import MAX_OUTPUT

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
CATEGORIES = ("reading", "writing", "network", "processes", "memory", "time", "output", "environment", "calls")
VARIABLE = "SOME_TOKEN"
GENEROUS = 60
PRELUDE = """
import os, sys
def attempt(what):
    try:
        print("DONE", what())
    except BaseException as wrong:
        print(type(wrong).__name__)
def call(name, *arguments):
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(CALLS.get(name, name), *arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
def store(name, size):
    file = os.open(name, os.O_RDWR | os.O_CREAT)
    fill(file, size)
    return file
def fill(file, size):
    try:
        while size > 0:
            size -= os.write(file, bytes(min(size, 2**20)))
    except OSError:
        pass
"""
CALLS = {
    "bpf": (321, 280),
    "capset": (126, 91),
    "clone": (56, 220),
    "clone3": (435, 435),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsopen": (430, 430),
    "inotify_init1": (294, 26),
    "io_setup": (206, 0),
    "io_uring_setup": (425, 425),
    "kcmp": (312, 272),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "landlock_create_ruleset": (444, 444),
    "memfd_secret": (447, 447),
    "mlockall": (151, 230),
    "mount": (165, 40),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "openat2": (437, 437),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "reboot": (169, 142),
    "rt_sigqueueinfo": (129, 138),
    "sched_setscheduler": (144, 119),
    "seccomp": (317, 277),
    "setns": (308, 268),
    "shmget": (29, 194),
    "socket": (41, 198),
    "splice": (275, 76),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "tgkill": (234, 131),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vfork": (58, 220),
    "vmsplice": (278, 75),
}


def programs() -> list:
    """Every program with its category."""
    cases = []
    for category in CATEGORIES:
        for one in yaml.safe_load((PROGRAMS / f"{category}.yaml").read_text()):
            cases.append(pytest.param(one, id=f"{category}: {one['name']}"))
    return cases


def test_there_are_150_programs_and_each_says_what_must_come_of_it():
    cases = programs()
    assert len(cases) >= 150
    assert len({one.id for one in cases}) == len(cases)
    expectations = {"says", "told", "stored", "most_files", "timed_out", "dies", "bytes"}
    assert [one.id for one in cases if not expectations & one.values[0].keys()] == []


@dataclass
class Outside:
    """What a program must neither learn nor change."""

    folder: Path
    tcp: socket.socket
    udp: socket.socket
    local: socket.socket
    secret: str = field(default_factory=lambda: f"secret-{uuid.uuid4().hex}")
    token: str = field(default_factory=lambda: f"left-{uuid.uuid4().hex}")
    signals: list = field(default_factory=list)

    def __post_init__(self):
        self.canary = self.folder / "canary"
        self.canary.write_text(self.secret)
        self.children = set(psutil.Process().children(recursive=True))
        self.before = self.state()

    def state(self) -> tuple:
        """What can be seen of the canary and of this process, in so far as a program might change it."""
        kept = self.canary.stat()
        limits = [resource.getrlimit(which) for which in range(16)]
        own = (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0), os.umask(0o022), limits)
        times = (kept.st_mode, kept.st_uid, kept.st_mtime_ns, kept.st_ino, kept.st_nlink)
        return self.canary.read_text(), times, sorted(path.name for path in self.folder.iterdir()), own

    def filled(self, text: str) -> str:
        """A program with the places that it attacks."""
        places = {"CANARY": self.canary, "FOLDER": self.folder, "PARENT": os.getpid(), "TOKEN": self.token}
        places |= {"TCP": self.tcp.getsockname()[1], "UDP": self.udp.getsockname()[1], "ROOT": ROOT}
        places |= {"UNIX": self.local.getsockname(), "HOME": Path.home(), "VARIABLE": VARIABLE}
        return re.sub(r"\$([A-Z]+)\b", lambda match: str(places[match[1]]), text)

    def assert_untouched(self):
        assert self.state() == self.before
        assert self.signals == []
        assert set(psutil.Process().children(recursive=True)) <= self.children
        for place in ("/tmp", "/var/tmp", "/dev/shm", tempfile.gettempdir(), Path.home(), "/"):
            assert not (Path(place) / self.token).exists()
        assert list(Path(tempfile.gettempdir()).iterdir()) == []
        for listening in (self.tcp, self.local):
            with pytest.raises(BlockingIOError):
                listening.accept()
        with pytest.raises(BlockingIOError):
            self.udp.recv(1)


@pytest.fixture
def outside(tmp_path, monkeypatch):
    places = [tmp_path / name for name in ("victim", "temporary")]
    for place in places:
        place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(places[1]))
    local = tempfile.mkdtemp(dir="/tmp", prefix="ptl-")
    stream, datagram = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with socket.create_server(("127.0.0.1", 0)) as tcp, datagram as udp, stream:
        udp.bind(("127.0.0.1", 0))
        stream.bind(f"{local}/s")
        stream.listen()
        for one in (tcp, udp, stream):
            one.setblocking(False)
        guard = Outside(places[0], tcp, udp, stream)
        monkeypatch.setenv(VARIABLE, guard.secret)
        numbers = (signal.SIGUSR1, signal.SIGIO, signal.SIGURG, signal.SIGALRM)
        handlers = {number: signal.signal(number, lambda number, _: guard.signals.append(number)) for number in numbers}
        try:
            yield guard
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            Path(f"{local}/s").unlink()
            Path(local).rmdir()


@pytest.fixture
def stored(monkeypatch):
    """The most that a program held at any of its openings, and at how many files, as counted from outside."""
    most = {"bytes": 0, "files": 0}
    counted = Storage.stored

    def noting(self):
        counts, nameless = counted(self)
        most["bytes"] = max(most["bytes"], sum(size for size, _ in counts.values()) + nameless * (FILE_BYTES - INDEX))
        most["files"] = max(most["files"], len(counts) + nameless)
        return counts, nameless

    monkeypatch.setattr(Storage, "stored", noting)
    return most


@pytest.fixture
def resident(monkeypatch):
    """The largest resident size of a program in MB, read from outside every few milliseconds."""
    most, ended, threads = [0], threading.Event(), []
    really = process.begin

    def begin(*arguments):
        made = really(*arguments)
        threads.append(threading.Thread(target=look, args=(Path(f"/proc/{made.pid}"),)))
        threads[-1].start()
        return made

    def look(at: Path):
        while not ended.wait(0.003):
            try:
                match = re.search(r"VmHWM:\s+(\d+) kB", (at / "status").read_text())
                if match and b"child.py" in (at / "cmdline").read_bytes():
                    most[0] = max(most[0], int(match[1]) // 1024)
            except OSError:
                return

    monkeypatch.setattr(process, "begin", begin)
    yield most
    ended.set()
    for thread in threads:
        thread.join()


@pytest.mark.skipif(available() is not None, reason=str(available()))
@pytest.mark.parametrize("one", programs())
def test_a_hostile_program_is_contained(one, outside, stored, resident):
    if one.get("only", machine()) != machine():
        pytest.skip(f"for {one['only']}")
    code = outside.filled(one["code"] if "code" in one else f"attempt(lambda: {one['tries']})")
    numbers = {name: both[machine() == "aarch64"] for name, both in CALLS.items()}
    bounds = {"seconds": one.get("seconds", GENEROUS), "memory_mb": one.get("memory_mb", 256)}
    ran = run(f"CALLS = {numbers}\n{PRELUDE}\n{code}", stdin=one.get("stdin", ""), **bounds)
    outside.assert_untouched()
    assert outside.secret not in ran.stdout + ran.stderr + ran.reason
    assert max(map(len, (ran.stdout, ran.stderr))) <= MAX_OUTPUT
    assert ran.seconds < bounds["seconds"] + GENEROUS
    assert resident[0] <= bounds["memory_mb"]
    assert stored["bytes"] <= MAX_BYTES
    if not {"stored", "most_files"} & one.keys():
        assert ran.timed_out == one.get("timed_out", False), (ran.reason, ran.stderr[-300:])
    assert_as_said(one, ran, stored)


def assert_as_said(one, ran, stored):
    """What the program's own entry asks for."""
    if "says" in one:
        wanted = one["says"] if isinstance(one["says"], list) else [one["says"]]
        assert ran.stdout.strip() in [str(text) for text in wanted], ran.stderr[-300:]
    if "fails" in one:
        assert one["fails"] in ran.stderr
        assert ran.code == 1
    if "told" in one:
        assert (ran.reason, ran.code) == (one["told"], -signal.SIGKILL)
    if "stored" in one:
        assert one["stored"] * 2**20 * 0.9 < stored["bytes"]
    if "most_files" in one:
        assert stored["files"] == one["most_files"]
    if "most" in one:
        assert len(getattr(ran, one["most"])) == MAX_OUTPUT
    if "bytes" in one:
        assert len(ran.stdout) == one["bytes"]
    if "dies" in one:
        assert ran.code < 0
        assert "came back" not in ran.stdout
