import subprocess
import sys
import threading

from flows.processes.capture import capture_output


def test_only_the_steps_thread_is_captured(tmp_path, capsys):
    with capture_output(tmp_path / "log", whole_process=False):
        print("mine")
        print("error", file=sys.stderr)
        other = threading.Thread(target=print, args=("others",))
        other.start()
        other.join()
    print("after")
    assert (tmp_path / "log").read_text() == "mine\nerror\n"
    assert capsys.readouterr().out == "others\nafter\n"


def test_the_output_of_a_process_and_its_children_is_captured(tmp_path, capfd):
    with capture_output(tmp_path / "log", whole_process=True):
        print("mine")
        subprocess.run(["echo", "child"], check=True)
    print("after")
    assert (tmp_path / "log").read_text() == "mine\nchild\n"
    assert capfd.readouterr().out == "after\n"
