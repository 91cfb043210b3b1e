"""What a killed run leaves is swept by the next; what somebody holds stays."""

import fcntl

from flows.processes.cleanup import clean_up
from lineage.layout import Layout


def test_the_address_of_a_dead_server_goes_and_that_of_a_living_one_stays(tmp_path):
    layout = Layout(tmp_path)
    home = layout.state / "prefect"
    home.mkdir(parents=True)
    for name in ("users", "host.lock", "server.json"):
        (home / name).write_text("{}")
    for lock in ("users", "host.lock"):
        with (home / lock).open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            clean_up(layout)
            assert (home / "server.json").exists()
    clean_up(layout)
    assert not (home / "server.json").exists()
