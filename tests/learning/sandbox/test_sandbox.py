"""What a program in the sandbox cannot do, each tried by a program that tries, and counted from outside."""

import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from flows.processes.cleanup import clean_up
from learning.sandbox.filters import ASK, FCNTL, IOCTL, MMAP, OPENAT, PLAIN, compiled, machine, watched
from learning.sandbox.run import available, run
from learning.sandbox.storage import FILE_BYTES
from learning.sandbox.watchdog import MAX_OUTPUT
from lineage.layout import Layout
from schemas.errors import StepError

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(available() is not None, reason=str(available()))
GENEROUS = 120
REFUSED_OPENINGS = (0x200, 0x3, 0x203, 0x43, 0x200000, 0x200200, 0x410002, 0x2000, 0x800000, 0x40000000, 0x80000000)
"""O_TRUNC without writing, mode 3 by itself and with O_TRUNC or O_CREAT, O_PATH, O_TMPFILE, O_ASYNC, unknown flags."""


def tried(attempts: dict[str, str], **options) -> dict[str, str]:
    """What each expression came to in one program: its value, or the name of what it raised."""
    code = "import os, sys\n"
    for name, expression in attempts.items():
        code += textwrap.dedent(f"""
            try:
                print({name!r}, {expression}, sep="=")
            except BaseException as wrong:
                print({name!r}, type(wrong).__name__, sep="=")
        """)
    ran = run(code, seconds=GENEROUS, **options)
    assert (ran.code, ran.stderr, ran.reason) == (0, "", "")
    return dict(line.split("=", 1) for line in ran.stdout.splitlines())


def test_a_program_has_its_input_its_files_and_the_standard_library():
    code = """
        import csv, decimal, json, math, random, re, sqlite3, statistics
        rows = list(csv.reader(open("points.csv")))
        open("out.txt", "w").write(str(sum(float(y) for _, y in rows)))
        print(input(), open("out.txt").read(), open("raw.bin", "rb").read(), len({"a", "b"}), __name__)
    """
    ran = run(textwrap.dedent(code), stdin="four", files={"points.csv": "1,2.5\n2,4\n", "raw.bin": b"\xff"})
    assert (ran.stdout, ran.stderr, ran.code) == ("four 6.5 b'\\xff' 2 __main__\n", "", 0)
    assert not ran.timed_out
    assert ran.reason == ""


def test_a_traceback_begins_in_the_program_and_is_the_same_each_time():
    ran = run("def f():\n    return {'b', 'a'} & 1\n\nf()")
    assert ran.stderr.startswith(
        'Traceback (most recent call last):\n  File "program.py", line 4, in <module>\n    f()'
    )
    assert ran.stderr.endswith("TypeError: unsupported operand type(s) for &: 'set' and 'int'\n")
    assert str(ROOT) not in ran.stderr
    assert (ran.code, ran.stderr) == (1, run("def f():\n    return {'b', 'a'} & 1\n\nf()").stderr)
    assert len({run("print({'a', 'b', 'c', 'd', 'e'})").stdout for _ in range(4)}) == 1, "sets in one order"
    assert run("raise SystemExit(7)").code == 7
    assert run("def f(:").stderr.startswith('  File "program.py", line 1\n')


def test_a_fork_bomb_makes_no_process_and_no_thread():
    outcomes = tried(
        {
            "fork": "[os.fork() for _ in range(9)]",
            "spawn": "os.posix_spawn('/bin/sh', ['sh'], {})",
            "exec": "os.execv(sys.executable, ['python'])",
            "subprocess": "__import__('subprocess').run(['true'])",
            "shell": "os.system('true')",
            "thread": "__import__('_thread').start_new_thread(print, ())",
            "pool": "__import__('multiprocessing').Pool(2)",
        }
    )
    assert outcomes == {
        "fork": "PermissionError",
        "spawn": "PermissionError",
        "exec": "PermissionError",
        "subprocess": "PermissionError",
        "shell": "32512",
        "thread": "RuntimeError",
        "pool": "PermissionError",
    }


def test_memory_ends_at_its_bound_and_the_bound_cannot_be_raised():
    code = """
        import resource
        held = []
        try:
            resource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40))
        except (ValueError, OSError):
            print("bound")
        try:
            while True:
                held.append(bytearray(2**20))
        except MemoryError:
            print(len(held))
    """
    small, large = (run(textwrap.dedent(code), memory_mb=mb, seconds=GENEROUS).stdout.split() for mb in (128, 256))
    assert small[0] == large[0] == "bound"
    assert 60 < int(small[1]) < 128 < int(large[1]) < 256
    assert int(large[1]) - int(small[1]) == pytest.approx(128, abs=2)
    ended = run("x = [0]\nwhile True: x += x", seconds=GENEROUS)
    assert ended.code == 1
    assert ended.stderr.endswith("MemoryError\n")


def test_an_endless_loop_ends_at_its_time_limit_and_keeps_its_output():
    ran = run(
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('here')\nwhile True: pass", seconds=1
    )
    assert (ran.timed_out, ran.code, ran.stdout) == (True, -signal.SIGKILL, "here\n")
    assert ran.reason == "time: 1 seconds are over"
    sleeper = run("import time\ntime.sleep(1000)", seconds=0.2)
    assert (sleeper.timed_out, sleeper.code) == (True, -signal.SIGKILL)


def test_endless_output_ends_at_its_bound():
    ran = run("while True: print('y' * 99)", seconds=GENEROUS)
    assert (len(ran.stdout), ran.timed_out, ran.code) == (MAX_OUTPUT, False, -signal.SIGKILL)
    assert ran.reason == f"more than {MAX_OUTPUT} bytes of output"
    assert len(run("import sys\nwhile True: sys.stderr.write('y' * 99)", seconds=GENEROUS).stderr) == MAX_OUTPUT


def test_files_end_at_their_bounds():
    large = "f = open('a', 'wb')\ntry:\n    while True: f.write(bytes(2**20))\nexcept OSError as e: print(e.errno)\n"
    ran = run(large + "import os\nprint(os.stat('a').st_size)", seconds=GENEROUS)
    assert ran.stdout.split() == ["27", str(FILE_BYTES)]
    many = run("for i in range(10**9):\n  with open(f'f{i}', 'wb') as f: f.write(bytes(2**16))", seconds=GENEROUS)
    assert many.code == -signal.SIGKILL
    assert many.reason == "more than 256 files or 64 MiB of them"
    assert int(run("h = []\ntry:\n  while True: h.append(open('a', 'w'))\nexcept OSError: print(len(h))").stdout) < 64


def test_no_socket_opens():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        outcomes = tried(
            {
                "tcp": f"__import__('socket').create_connection(('127.0.0.1', {port}))",
                "udp": "__import__('socket').socket(2, 2)",
                "local": "__import__('socket').socket(1, 1)",
                "pair": "__import__('socket').socketpair()",
                "netlink": "__import__('socket').socket(16, 3, 0)",
            }
        )
        assert set(outcomes.values()) == {"PermissionError"}
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_nothing_of_the_machine_can_be_read(monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", "secret")
    places = ["/etc/passwd", ROOT / "pyproject.toml", ROOT / "learning/sandbox/child.py", Path.home() / ".bashrc"]
    places += [f"/proc/{os.getpid()}/environ", f"/proc/{os.getpid()}/mem", "/proc/self/environ", "/proc/meminfo"]
    there = [str(place) for place in places if Path(place).exists()]
    outcomes = tried({place: f"open({place!r}, 'rb').read(1)" for place in there})
    assert set(outcomes.values()) == {"PermissionError"}
    assert len(outcomes) >= 6
    folders = ["/", "/proc", "/tmp", str(ROOT), str(Path.home()), "/etc"]
    assert set(tried({f: f"os.listdir({f!r})" for f in folders}).values()) == {"PermissionError"}
    outcomes = tried({"environment": "dict(os.environ)", "paths": "[p for p in sys.path if 'site-packages' in p]"})
    assert outcomes == {"environment": "{}", "paths": "[]"}
    assert run("import numpy").stderr.endswith("ModuleNotFoundError: No module named 'numpy'\n")


def test_nothing_outside_its_folder_can_be_written_or_changed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("whole")
    victim.chmod(0o666)
    before = victim.stat()
    name = repr(str(victim))
    outcomes = tried(
        {
            "write": f"open({name}, 'w')",
            "append": f"open({name}, 'a')",
            "truncate": f"os.truncate({name}, 0)",
            "empty": f"os.open({name}, os.O_RDONLY | os.O_TRUNC)",
            "unlink": f"os.unlink({name})",
            "rename": f"os.rename('program.py', {str(tmp_path / 'moved')!r})",
            "link": f"os.link({name}, 'mine')",
            "symlink": f"os.symlink({name}, 'mine')",
            "mode": f"os.chmod({name}, 0)",
            "times": f"os.utime({name}, (0, 0))",
            "beside": "open('../beside', 'w')",
            "shared": "open('/dev/shm/posttrain', 'w')",
            "folder": "os.mkdir('deep')",
            "pipe": "os.mkfifo('pipe')",
            "own": "open('own', 'w').write('x')",
            "null": "open('/dev/null', 'w').write('x')",
        }
    )
    assert (outcomes.pop("own"), outcomes.pop("null")) == ("1", "1")
    assert set(outcomes.values()) == {"PermissionError"}
    after = victim.stat()
    assert (victim.read_text(), after.st_mode, after.st_mtime_ns) == ("whole", before.st_mode, before.st_mtime_ns)
    assert [path.name for path in tmp_path.iterdir()] == ["victim"]


def test_what_may_be_read_cannot_be_emptied_by_opening_it():
    outcomes = tried(
        {"empty": "os.open('given', os.O_RDONLY | os.O_TRUNC)", "left": "open('given').read()"}, files={"given": "all"}
    )
    assert outcomes == {"empty": "PermissionError", "left": "all"}


def test_no_signal_reaches_anybody():
    got = []
    for number in (signal.SIGUSR1, signal.SIGIO, signal.SIGURG):
        signal.signal(number, lambda number, _: got.append(number))
    parent = os.getpid()
    raw = "__import__('ctypes').CDLL(None, use_errno=True)"
    outcomes = tried(
        {
            "parent": f"os.kill({parent}, {signal.SIGUSR1})",
            "its": f"os.kill(os.getppid(), {signal.SIGUSR1})",
            "group": f"os.killpg({os.getpgid(0)}, {signal.SIGUSR1})",
            "all": f"os.kill(-1, {signal.SIGUSR1})",
            "thread": f"{raw}.tgkill({parent}, {parent}, {signal.SIGUSR1})",
            "pid": f"os.pidfd_open({parent})",
            "owner": f"__import__('fcntl').fcntl(1, 8, {parent})",
            "trace": f"{raw}.ptrace(16, {parent}, 0, 0)",
            "memory": f"{raw}.process_vm_readv({parent}, None, 0, None, 0, 0)",
            "priority": f"os.setpriority(os.PRIO_PROCESS, {parent}, 19)",
            "session": "os.setsid()",
        }
    )
    refused = {"parent", "its", "group", "all", "pid", "owner", "priority", "session"}
    assert {name for name, what in outcomes.items() if what == "PermissionError"} == refused
    assert {outcomes[name] for name in ("thread", "trace", "memory")} == {"-1"}
    assert got == []
    for number in (signal.SIGUSR1, signal.SIGIO, signal.SIGURG):
        signal.signal(number, signal.SIG_DFL)


def test_a_hundred_runs_leave_no_process_no_file_and_no_descriptor(tmp_path, monkeypatch):
    run("pass")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    me = psutil.Process()
    before = (me.num_fds(), [child.pid for child in me.children(recursive=True)])
    programs = [
        "print(1)",
        "1/0",
        "while True: print('y' * 999)",
        "open('left', 'w').write('x')",
        "import os\nos.abort()",
    ]
    with ThreadPoolExecutor(4) as pool:
        codes = list(pool.map(lambda i: run(programs[i % 5], seconds=GENEROUS).code, range(100)))
    assert [sorted(set(codes[i::5])) for i in range(4)] == [[0], [1], [-9], [0]]
    assert all(code < 0 for code in codes[4::5])
    assert (me.num_fds(), [child.pid for child in me.children(recursive=True)]) == before
    assert list(tmp_path.iterdir()) == []


def test_a_program_ends_with_the_process_that_asked_and_its_folder_is_swept(tmp_path, monkeypatch):
    requests = "from learning.sandbox.run import run\nrun('while True: pass', seconds=600)"
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", requests], env=environment, cwd=ROOT) as asker:
        try:
            program = until(lambda: busy(psutil.Process(asker.pid)))
        finally:
            asker.kill()
    until(lambda: not program.is_running() or program.status() == psutil.STATUS_ZOMBIE)
    folders = list(tmp_path.glob("posttrain-sandbox-*"))
    assert sum((folder / "work" / "program.py").exists() for folder in folders) == 1
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    clean_up(Layout(tmp_path))
    assert list(tmp_path.glob("posttrain-sandbox-*")) == []


def busy(asker):
    """The program of a process that asked, once it computes; those before it may go while they are looked at."""
    for child in asker.children():
        try:
            if "child.py" in " ".join(child.cmdline()) and child.cpu_times().user > 0.3:
                return child
        except psutil.Error:
            continue
    return None


def until(condition):
    """The first true value of a condition."""
    while not (value := condition()):
        time.sleep(0.02)
    return value


BLOCKED = """
import ctypes, struct
from schemas.errors import StepError
from learning.sandbox.run import run
libc = ctypes.CDLL(None)
lines = {lines}
code = b"".join(struct.pack("<HBBI", *line) for line in lines)
class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(Program(len(lines), code)), 0, 0) == 0
try:
    run("open('ran', 'w')")
except StepError as refused:
    print(refused)
"""


@pytest.mark.parametrize("guard", ["Landlock", "seccomp"])
def test_without_a_guard_a_program_does_not_run(guard):
    """A kernel without Landlock, or without filters, made with a filter that says so to this process's children."""
    prctl = {"x86_64": 157, "aarch64": 167}[machine()]
    none = [(0x20, 0, 0, 0), (0x15, 0, 1, 444), (0x06, 0, 0, 0x00050026), (0x06, 0, 0, 0x7FFF0000)]
    filters = [
        (0x20, 0, 0, 0),
        (0x15, 0, 3, prctl),
        (0x20, 0, 0, 16),
        (0x15, 0, 1, 22),
        (0x06, 0, 0, 0x00050016),
        (0x06, 0, 0, 0x7FFF0000),
    ]
    code = BLOCKED.format(lines=none if guard == "Landlock" else filters)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert guard in done.stdout
    assert "code that a model wrote does not run" in done.stdout
    assert "posttrain doctor" in done.stdout


def test_other_machines_are_refused_with_the_reason(monkeypatch):
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    available.cache_clear()
    assert "only on Linux" in available()
    with pytest.raises(StepError, match="only on Linux"):
        run("print(1)")
    monkeypatch.undo()
    available.cache_clear()
    assert available() is None


def test_files_that_are_asked_for_are_kept():
    ran = run(
        "open('b', 'wb').write(bytes(3))\nimport mine\nprint(mine.x)", files={"mine.py": "x = 5"}, keep=["b", "c"]
    )
    assert (ran.stdout, dict(ran.files)) == ("5\n", {"b": bytes(3)})


def test_a_text_that_is_no_program_is_an_error_of_the_program():
    for text in ("\ud800", "\0", "x = '\0'", "# coding: nonsense\nprint(1)", "(" * 500, "-" * 100_000 + "1"):
        ran = run(text)
        assert ran.code != 0, text[:9]
        assert (ran.stdout, ran.reason) == ("", "")


def test_a_file_must_lie_in_the_folder():
    for name in ("../x", "/etc/x", "a/../../x", ""):
        with pytest.raises(StepError, match="must lie in its folder"):
            run("", files={name: "x"})


def test_the_filter_lets_through_what_it_names_and_nothing_else():
    """The filter's own instructions, interpreted: for every number that a kernel could have, what comes out."""
    for name in PLAIN:
        named = {number for part in PLAIN[name].values() for number in part}
        assert {number for number in range(600) if verdict(compiled(name), name, number) == 0x7FFF0000} >= named
        extra = {n for n in range(600) if verdict(compiled(name), name, n) == 0x7FFF0000} - named
        assert extra == {OPENAT[name], FCNTL[name][0]}, "of the three that are judged by arguments, these let 0 pass"
        opened = {flags: verdict(compiled(name), name, OPENAT[name], third=flags) for flags in REFUSED_OPENINGS}
        assert set(opened.values()) == {0x00050001}, opened
        assert verdict(compiled(name), name, OPENAT[name], third=0x241) == 0x7FFF0000, "O_WRONLY | O_CREAT | O_TRUNC"
        mapped = [verdict(compiled(name), name, MMAP[name], fourth=flags) for flags in (0x2, 0x22, 0x21, 0x1, 0x3, 0)]
        assert mapped == [0x7FFF0000] * 3 + [0x00050001] * 3, "a file shared with its pages is refused"
        assert verdict(compiled(name), name, FCNTL[name][0], second=8) == 0x00050001, "F_SETOWN"
        assert verdict(compiled(name), name, IOCTL[name][0], second=0x5412) == 0x00050001, "TIOCSTI"
        assert verdict(compiled(name), name, 0x40000000 + min(named)) == 0x00050001
        assert verdict(compiled(name), "i386", 1) == 0x80000000


def test_the_filter_asks_for_openings_that_may_write_and_for_nothing_else():
    for name in PLAIN:
        asked = {n for n in range(600) for flags in (0, 0x41) if verdict(watched(name), name, n, third=flags) == ASK}
        assert asked == {OPENAT[name]}
        modes = {f: verdict(watched(name), name, OPENAT[name], third=f) == ASK for f in (0, 0x80000, 1, 2, 0x40, 0x80)}
        assert modes == {0: False, 0x80000: False, 1: True, 2: True, 0x40: True, 0x80: False}


def verdict(code: bytes, name: str, number: int, second: int = 0, third: int = 0, fourth: int = 0) -> int:
    """What a filter returns for a call with these arguments."""
    lines = list(struct.iter_unpack("<HBBI", code))
    words = {
        24: second,
        32: third,
        40: fourth,
        0: number,
        4: {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}.get(name, 0x40000003),
    }
    place = held = 0
    while True:
        what, yes, no, k = lines[place]
        place += 1
        if what == 0x20:
            held = words.get(k, 0)
        elif what == 0x54:
            held &= k
        elif what == 0x15:
            place += yes if held == k else no
        else:
            return k


def test_a_program_may_ask_and_is_answered():
    code = """
import os
os.write(3, b"one")
print(os.read(3, 99))
os.write(3, b"none")
os.write(3, b"two")
print(os.read(3, 99))
"""
    questions = []
    answers = {b"one": b"1", b"two": b"2"}
    ran = run(code, answer=lambda message: questions.append(message) or answers.get(message), seconds=GENEROUS)
    assert (ran.stdout, ran.stderr, questions) == ("b'1'\nb'2'\n", "", [b"one", b"none", b"two"])
    assert run("import os\nos.write(3, b'x')").stderr.endswith("OSError: [Errno 9] Bad file descriptor\n")


def test_messages_end_at_their_bounds():
    many = run("import os\nwhile True: os.write(3, b'x')", answer=lambda message: None, seconds=GENEROUS)
    assert many.reason == "more than 1000 messages, or one of more than 65536 bytes"
    long = run("import os\nos.write(3, bytes(65537))\nos.read(0, 1)", answer=lambda message: None, seconds=GENEROUS)
    assert long.reason == many.reason
    deaf = run("import os\nwhile True: os.write(3, b'x')", answer=lambda message: bytes(60_000), seconds=GENEROUS)
    assert deaf.reason == "it does not read the answers to its messages"


def test_whether_a_file_was_opened_is_noticed_in_many_threads():
    def opens(turn):
        code = "open('a').read()" if turn % 2 else "import os\nos.stat('a')"
        return run(code, files={"a": "x", "b": "x"}, notice=["a", "b"], seconds=GENEROUS).opened

    with ThreadPoolExecutor(4) as pool:
        opened = list(pool.map(opens, range(24)))
    assert opened == [frozenset(), frozenset({"a"})] * 12
