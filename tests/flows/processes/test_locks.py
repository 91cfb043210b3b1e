import os

from flows.processes.locks import hold_lock


def test_a_folder_that_its_holder_removes_while_it_is_made_is_made_again(tmp_path, monkeypatch):
    make, tries = os.mkdir, []

    def gone_meanwhile(path, mode=0o777):
        tries.append(path)
        if len(tries) == 1:  # it was there, and is not when one looks
            raise FileExistsError(17, "File exists", str(path))
        make(path, mode)

    monkeypatch.setattr(os, "mkdir", gone_meanwhile)
    with hold_lock(tmp_path / "key"):
        assert (tmp_path / "key" / "lock").is_file()
    assert len(tries) == 2
