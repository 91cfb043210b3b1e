import pytest

from lineage.database import (
    hide_password,
    mlflow_address,
    prefect_address,
    prepare_database,
    read_chosen_database,
    remember_database,
)
from lineage.layout import Layout
from schemas.errors import PlanError

ADDRESS = "postgresql://lab:p%40ss@db.example:5433/records?sslmode=require"


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    monkeypatch.delenv("POSTTRAIN_DATABASE", raising=False)


def test_each_server_gets_its_driver_and_its_schema():
    assert mlflow_address(ADDRESS) == (
        "postgresql+psycopg2://lab:p%40ss@db.example:5433/records?sslmode=require&options=-csearch_path%3Dmlflow"
    )
    assert prefect_address(ADDRESS) == "postgresql+asyncpg://lab:p%40ss@db.example:5433/records?ssl=require"


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        (ADDRESS, "postgresql://lab@db.example:5433/records?sslmode=require"),
        ("postgresql://lab@h/n", "postgresql://lab@h/n"),
        ("postgresql://h/n?password=p%40ss", "postgresql://h/n"),
        ("postgresql:///n?host=/run/postgresql", "postgresql:///n?host=/run/postgresql"),
    ],
)
def test_a_password_is_not_shown(address, shown):
    assert hide_password(address) == shown
    assert "p%40ss" not in shown


def test_the_choice_is_remembered_without_its_password_and_can_be_undone(tmp_path, monkeypatch):
    layout = Layout(tmp_path)
    files = f"sqlite:///{layout.state}/mlflow.db"
    assert (read_chosen_database(layout.state), layout.mlflow_uri) == (None, files)
    remember_database(layout.state, ADDRESS)
    assert read_chosen_database(layout.state) == hide_password(ADDRESS)
    assert layout.mlflow_uri == mlflow_address(hide_password(ADDRESS))
    assert [f for f in layout.state.iterdir() if "p%40ss" in f.read_text()] == []
    monkeypatch.setenv("POSTTRAIN_DATABASE", "postgresql://other@h/n")
    assert read_chosen_database(layout.state) == "postgresql://other@h/n"
    monkeypatch.delenv("POSTTRAIN_DATABASE")
    remember_database(layout.state, "sqlite")
    assert (read_chosen_database(layout.state), layout.mlflow_uri) == (None, files)
    assert [path.name for path in layout.state.iterdir()] == ["database"]


@pytest.mark.parametrize("address", ["mysql://u@h/n", "postgresql://u:hidden@h", "records"])
def test_what_is_no_database_is_refused(address):
    with pytest.raises(
        PlanError, match="is not a database address: give postgresql://USER@HOST:PORT/NAME, or `sqlite`"
    ) as error:
        prepare_database(address)
    assert "hidden" not in str(error.value)


def test_an_unreachable_server_is_reported_without_the_password():
    with pytest.raises(PlanError, match=r"postgresql://lab@127.0.0.1:1/records cannot be used: .*refused") as error:
        prepare_database("postgresql://lab:hidden@127.0.0.1:1/records")
    assert "hidden" not in str(error.value)
