"""The audit log: several writers keep one chain, a cut-off write is no tampering, and tampering has a name."""

import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lineage.audit.log import (
    append,
    describe_author,
    hash_entry,
    head_file,
    log_file,
    name_person,
    read_account,
    read_entries,
    read_latest_anchor,
)
from lineage.keys import load_signer
from lineage.layout import Layout
from lineage.verification.audit_check import check_audit

HOUSE = Path(__file__).resolve().parents[3]
WRITER = """
import sys
from pathlib import Path
from lineage.audit.log import append
from lineage.layout import Layout
at = 0
while at < int(sys.argv[3]):
    append(Layout(Path(sys.argv[1])), "counted", by=sys.argv[2], at=at)
    print(at, flush=True)
    at += 1
"""


def writer(layout, name, count):
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(layout.root), name, str(count)], cwd=HOUSE, stdout=subprocess.PIPE, text=True
    )


@pytest.fixture
def log(tmp_path):
    layout = Layout(tmp_path)
    for number in range(1, 7):
        append(layout, "counted", at=number)
    assert check_audit(layout).problems == []
    return layout


def lines(layout):
    return log_file(layout).read_bytes().splitlines(keepends=True)


def rewritten(layout, new):
    log_file(layout).write_bytes(b"".join(new))
    return check_audit(layout)


def test_eight_processes_write_one_unbroken_chain(tmp_path):
    layout = Layout(tmp_path)
    writers = [writer(layout, str(n), 12) for n in range(8)]
    assert [w.communicate(timeout=120) and w.returncode for w in writers] == [0] * 8
    check = check_audit(layout)
    assert (check.problems, check.notes, len(check.hashes)) == ([], [], 96)
    entries = [(e["facts"]["by"], e["facts"]["at"]) for e in read_entries(layout)]
    assert sorted(entries) == sorted((str(n), at) for n in range(8) for at in range(12))
    for name in map(str, range(8)):
        assert [at for by, at in entries if by == name] == list(range(12))
    assert [path.name for path in (layout.state / "keys").iterdir()] in (
        ["signing.pem", "signing.pub"],
        ["signing.pub", "signing.pem"],
    )


def test_an_entry_says_who_and_when_and_follows_the_one_before(log, monkeypatch):
    monkeypatch.setenv("POSTTRAIN_USER", "ada")
    entry = append(log, "approved", why="because", ratio=float("nan"), file=Path("a/b"))
    before = list(read_entries(log))[-2]
    assert (entry["who"], entry["number"], entry["previous"]) == (read_account(), 7, before["hash"])
    assert entry["facts"] == {"why": "because", "ratio": "nan", "file": "a/b", "claimed": "ada"}
    assert describe_author(entry) == name_person() == f"ada (claimed by {read_account()})"
    assert name_person("bob") == f"bob (claimed by {read_account()})"
    assert entry["at"].endswith("+00:00")
    six = {k: entry[k] for k in ("action", "at", "facts", "number", "previous", "who")}
    body = json.dumps(six, sort_keys=True, separators=(",", ":")).encode()
    assert entry["hash"] == hashlib.sha256(body).hexdigest()
    assert read_latest_anchor(log) == {"number": 7, "hash": entry["hash"]}
    monkeypatch.delenv("POSTTRAIN_USER")
    assert name_person() == name_person(read_account()) == read_account()
    assert "claimed" not in append(log, "approved")["facts"]


def test_a_flipped_byte_anywhere_is_named_with_its_line(log):
    content = log_file(log).read_bytes()
    ends = [i for i, byte in enumerate(content) if byte == 0x0A]
    for position in range(0, len(content), 7):
        changed = bytearray(content)
        changed[position] ^= 1
        log_file(log).write_bytes(changed)
        line = sum(end < position for end in ends) + 1
        near = [f"{log_file(log)}:{n}: " for n in (line, line + 1)]  # a line's own end also begins the next
        problems = check_audit(log).problems
        assert problems, position
        ended = f"{log_file(log)}: ends at entry 5" if line == 6 else near[0]  # a last line may look cut off
        assert any(problem.startswith((near[0], ended)) for problem in problems), (position, problems)
        assert all(problem.startswith((*near, f"{log_file(log)}: ")) for problem in problems), (position, problems)


@pytest.mark.parametrize("number", range(1, 7))
def test_a_removed_entry_is_named(log, number):
    all_lines = lines(log)
    check = rewritten(log, all_lines[: number - 1] + all_lines[number:])
    expected = f"ends at entry 5, but {head_file(log)} saw entry 6" if number == 6 else f"entry {number} is missing"
    assert any(expected in problem for problem in check.problems), check.problems


@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 4), (2, 3), (4, 5)])
def test_entries_in_another_order_are_named(log, first, second):
    moved = lines(log)
    moved[first], moved[second] = moved[second], moved[first]
    problems = rewritten(log, moved).problems
    assert any(f"entry {first + 1} (counted) stands after entry" in problem for problem in problems), problems


def forged(entry, key=None, **changes):
    """An entry with another content whose hash is right; signed when there is a key."""
    made = {k: v for k, v in (entry | changes).items() if k != "hash"}
    made["hash"] = hash_entry(made)
    if key:
        made["signature"] = {"keyid": key.name, "sig": key.sign(made["hash"].encode()).hex()}
    return json.dumps(made, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def test_an_inserted_and_a_forged_entry_are_named(log):
    original, all_entries = lines(log), list(read_entries(log))
    extra = forged(all_entries[3], number=4, previous=all_entries[2]["hash"], facts={"at": "never"})
    problems = rewritten(log, [*original[:3], extra, *original[3:]]).problems
    assert any(":4: entry 4 (counted) has a signature that does not fit" in p for p in problems), problems
    problems = rewritten(log, [*original[:2], forged(all_entries[2], facts={}), *original[3:]]).problems
    assert any(":3: entry 3 (counted) has a signature that does not fit" in p for p in problems)
    assert any(":4: entry 4 was written after another entry" in p for p in problems)
    unsigned = {k: v for k, v in all_entries[2].items() if k != "signature"}
    problems = rewritten(log, [*original[:2], forged(unsigned), *original[3:]]).problems
    assert problems == [f"{log_file(log)}:3: entry 3 (counted) is not signed"]


def test_who_has_the_key_and_rewrites_everything_is_found_out_by_what_others_saw(log):
    """Only the head that others keep speaks then: that of the log, of ended runs and of signed artifacts."""
    key, previous, new = load_signer(log), "0" * 64, []
    for entry in read_entries(log):
        new.append(forged(entry, key, facts={"at": 0}, previous=previous))
        previous = json.loads(new[-1])["hash"]
    problems = rewritten(log, new).problems
    assert problems == [f"{log_file(log)}: entry 6 is another than the one that {head_file(log)} saw"]


def test_a_write_cut_off_at_any_byte_is_no_tampering_and_the_next_entry_says_so(log):
    content, kept = log_file(log).read_bytes(), head_file(log).read_bytes()
    append(log, "lost", text="x" * 40)
    last = log_file(log).read_bytes()[len(content) :]
    for length in (*range(1, len(last) - 2, 11), len(last) - 2, len(last) - 1):
        log_file(log).write_bytes(content + last[:length])
        head_file(log).write_bytes(kept)
        before = check_audit(log)
        whole = length == len(last) - 1  # only the end of the line is missing: the entry is there
        assert (before.problems, len(before.notes), len(before.hashes)) == ([], not whole, 6 + whole), length
        append(log, "next")
        after = check_audit(log)
        assert (after.problems, len(after.notes)) == ([], not whole), length
        actions = [entry["action"] for entry in read_entries(log)][6:]
        assert actions == (["lost", "next"] if whole else ["repaired", "next"]), length


def test_a_full_disk_cuts_a_write_off_for_real(log):
    """The kernel ends the write in the middle; the entry is refused, and the next one tells."""
    room = log_file(log).stat().st_size + 50

    def little_room():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

    done = subprocess.run(
        [sys.executable, "-c", WRITER, str(log.root), "x", "1"],
        cwd=HOUSE,
        preexec_fn=little_room,
        capture_output=True,
        text=True,
    )
    assert "an entry of the audit log was cut off" in done.stderr
    assert log_file(log).stat().st_size == room
    assert (check_audit(log).problems, len(check_audit(log).notes)) == ([], 1)
    append(log, "next")
    assert [e["action"] for e in read_entries(log)][6:] == ["repaired", "next"]
    assert next(e for e in read_entries(log) if e["action"] == "repaired")["facts"]["bytes"] == 50
    assert (check_audit(log).problems, len(check_audit(log).notes)) == ([], 1)


def test_foreign_entries_stay_named_after_the_log_continues(log):
    with log_file(log).open("ab") as stream:
        stream.write(b"# nothing to see here\n")
    assert check_audit(log).problems == [f"{log_file(log)}:7: no entry"]
    append(log, "next")
    assert check_audit(log).problems == [f"{log_file(log)}:7: 22 bytes that posttrain did not write"]


def test_what_a_cut_off_write_left_cannot_be_changed_later(log):
    content = log_file(log).read_bytes()
    log_file(log).write_bytes(content + b'{"action":"app')
    append(log, "next")
    log_file(log).write_bytes(log_file(log).read_bytes().replace(b'{"action":"app\n', b'{"action":"apq\n'))
    assert check_audit(log).problems == [f"{log_file(log)}:7: the bytes that entry 7 says it found are not there"]


def test_a_killed_writer_leaves_a_log_that_can_continue(tmp_path):
    layout = Layout(tmp_path)
    for number in range(6):
        process = writer(layout, str(number), 10_000)
        for _ in range(3 + number):
            process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    append(layout, "next")
    check = check_audit(layout)
    assert check.problems == []
    entries = [(e["facts"]["by"], e["facts"]["at"]) for e in read_entries(layout) if e["action"] == "counted"]
    assert all((str(n), at) in entries for n in range(6) for at in range(3 + n))


def test_a_log_that_is_gone_is_missed(log):
    log_file(log).unlink()
    assert check_audit(log).problems == [f"{log_file(log)}: ends at entry 0, but {head_file(log)} saw entry 6"]
    assert check_audit(Layout(log.root / "elsewhere")).problems == []
