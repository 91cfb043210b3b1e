"""A log that grows past its limit is emptied while it is written, and what it had is kept once."""

from flows.servers.log_rotation import rotate_log


def test_a_writer_continues_at_the_start_of_a_rotated_log(tmp_path):
    log = tmp_path / "prefect.log"
    with log.open("ab", buffering=0) as writer:
        sizes = []
        for i in range(100):
            writer.write(b"%05d 7890\n" % i)
            rotate_log(log, 200)
            sizes.append(log.stat().st_size)
    assert max(sizes) <= 200
    old = log.with_suffix(".log.old").read_text().splitlines()
    assert len(old) == 19
    assert [*old, *log.read_text().splitlines()] == [f"{i:05} 7890" for i in range(76, 100)]


def test_a_small_or_missing_log_is_left(tmp_path):
    log = tmp_path / "worker.log"
    assert not rotate_log(log, 10)
    log.write_text("0123456789")
    assert not rotate_log(log, 10)
    assert list(tmp_path.iterdir()) == [log]
