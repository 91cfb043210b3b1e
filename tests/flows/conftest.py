"""Checkouts whose processes may be killed, and the helpers for that."""

from types import SimpleNamespace

import pytest

from tests.flows.checkout import Checkout, kill_tree, tree
from tests.waiting import wait_for


@pytest.fixture
def checkout(tmp_path):
    made = []

    def make(name, recipe, modules=None):
        made.append(Checkout(tmp_path / name, recipe, modules))
        return made[-1]

    yield make
    for process in (p for c in made for p in c.started):
        if process.poll() is None:
            kill_tree(process)


@pytest.fixture
def processes():
    """The helpers above, for tests."""
    return SimpleNamespace(tree=tree, kill=kill_tree, wait_for=wait_for)
