"""The program of Prefect's server: `prefect server start`, with SQLite transactions that wait instead of failing.

Prefect opens its transactions DEFERRED: one that reads first and then writes fails at once with "database is locked"
if another connection wrote in between, however long its busy timeout is, because SQLite cannot give it a newer
snapshot. An IMMEDIATE transaction waits for the other before it reads.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from prefect.cli import app
from prefect.server.database.configurations import SQLITE_BEGIN_MODE, AioSqliteConfiguration
from prefect.server.database.dependencies import MODELS_DEPENDENCIES
from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL
from sqlalchemy.ext.asyncio import AsyncSession, AsyncSessionTransaction


class WaitingSqlite(AioSqliteConfiguration):
    """Prefect's SQLite database with transactions that take the write lock when they begin."""

    @asynccontextmanager
    async def begin_transaction(
        self, session: AsyncSession, with_for_update: bool = False
    ) -> AsyncGenerator[AsyncSessionTransaction, None]:
        """Open an IMMEDIATE transaction; sessions opened inside it are not affected."""
        async with session.begin() as transaction:
            token = SQLITE_BEGIN_MODE.set("IMMEDIATE")
            try:
                await session.connection()  # sends BEGIN
            finally:
                SQLITE_BEGIN_MODE.reset(token)
            yield transaction


def use_waiting_transactions() -> None:
    """Make Prefect's server use `WaitingSqlite` where its database is SQLite."""
    url = PREFECT_API_DATABASE_CONNECTION_URL.value()
    if url.startswith("sqlite"):
        MODELS_DEPENDENCIES["database_config"] = WaitingSqlite(connection_url=url)


if __name__ == "__main__":
    use_waiting_transactions()
    app()
