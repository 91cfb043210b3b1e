"""Prefect's transactions on SQLite wait for one another, where Prefect's own fail with "database is locked"."""

import asyncio
import contextlib

import pytest
from prefect.server.database import configurations, dependencies
from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL, temporary_settings
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from flows.servers.prefect_main import WaitingSqlite, use_waiting_transactions

WRITERS, ROUNDS = 3, 8


@contextlib.asynccontextmanager
async def opened(kind, folder):
    config = kind(connection_url=f"sqlite+aiosqlite:///{folder / 'x.db'}", timeout=10.0)
    engine = await config.engine()
    async with await config.session(engine) as session:
        await session.execute(text("CREATE TABLE IF NOT EXISTS counter (n INTEGER)"))
        await session.execute(text("INSERT INTO counter VALUES (0)"))
        await session.commit()
    yield config, engine
    await engine.dispose()


async def add_one(config, engine):
    """Read, let others run, and write what was read plus one, as Prefect marks a polled deployment as ready."""
    async with await config.session(engine) as session, config.begin_transaction(session):
        n = (await session.execute(text("SELECT n FROM counter"))).scalar()
        await asyncio.sleep(0)
        await session.execute(text("UPDATE counter SET n = :n"), {"n": n + 1})


async def add_at_once(kind, folder):
    async with opened(kind, folder) as (config, engine):

        async def work():
            for _ in range(ROUNDS):
                await add_one(config, engine)

        try:
            await asyncio.gather(*(work() for _ in range(WRITERS)))
        finally:
            await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)
        async with await config.session(engine) as session:
            return (await session.execute(text("SELECT n FROM counter"))).scalar()


def test_concurrent_transactions_lose_nothing(tmp_path):
    assert asyncio.run(add_at_once(WaitingSqlite, tmp_path)) == WRITERS * ROUNDS


def test_prefects_own_transactions_fail(tmp_path):
    with pytest.raises(OperationalError, match="database is locked"):
        asyncio.run(add_at_once(configurations.AioSqliteConfiguration, tmp_path))


def test_a_session_inside_a_transaction_reads_without_waiting_for_it(tmp_path):
    async def read_inside():
        async with (
            opened(WaitingSqlite, tmp_path) as (config, engine),
            await config.session(engine) as outer,
            config.begin_transaction(outer),
        ):
            await outer.execute(text("UPDATE counter SET n = 5"))
            async with await config.session(engine) as inner:
                return (await inner.execute(text("SELECT n FROM counter"))).scalar()

    assert asyncio.run(read_inside()) == 0  # as committed


@pytest.mark.parametrize(
    ("url", "kind"), [("sqlite+aiosqlite:////x/y.db", WaitingSqlite), ("postgresql+asyncpg://u@h/n", type(None))]
)
def test_only_sqlite_is_configured(monkeypatch, url, kind):
    monkeypatch.setitem(dependencies.MODELS_DEPENDENCIES, "database_config", None)
    with temporary_settings({PREFECT_API_DATABASE_CONNECTION_URL: url}):
        use_waiting_transactions()
    assert isinstance(dependencies.MODELS_DEPENDENCIES["database_config"], kind)
