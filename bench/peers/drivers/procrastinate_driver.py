"""procrastinate over psycopg, with a lock per key."""

# pyright: reportMissingImports=false
# It is in an environment of its own.

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import islice
from typing import Any

from procrastinate import App, PsycopgConnector
from procrastinate.jobs import Job
from psycopg import AsyncConnection

from .protocol import Handler, Writer, serve

TASK = "deliver"
CONCURRENCY = 20
MANY_KEYS = 100
EVERY_MINUTE = "* * * * *"


class Procrastinate:
    packages = ("procrastinate", "psycopg")
    configured = (
        f'concurrency={CONCURRENCY}, as many connections, delete_jobs="successful", lock=key; with few keys '
        "concurrency=1, as a worker that finds them all locked waits for its next poll (5 s); fetches and acknowledges "
        "each message by itself; the lock keeps the order of ids in each key; its default policy does not retry, and "
        "keeps what failed; the periodic task of its documentation retries stalled jobs, here every minute instead of "
        "every ten; writes through psycopg"
    )
    left = """
        SELECT args->>'payload', CASE WHEN status IN ('todo', 'doing') THEN 'pending' ELSE 'dead' END
        FROM procrastinate_jobs WHERE status <> 'succeeded' AND task_name = 'deliver'"""

    async def prepare(self, url: str) -> None:
        async with opened(url) as app:
            await app.schema_manager.apply_schema_async()

    async def fill(self, url: str, messages: Iterator[tuple[str, str]]) -> None:
        async with opened(url) as app:
            while some := [job_of(key, payload) for key, payload in islice(messages, 2_000)]:
                await app.job_manager.batch_defer_jobs_async(some)

    @asynccontextmanager
    async def worker(self, url: str, handle: Handler, keys: int) -> AsyncIterator[None]:
        async with opened(url) as app:

            @app.task(name=TASK)
            async def deliver(payload: str) -> None:
                await handle(payload)

            add_retries(app)
            options: dict[str, Any] = {"delete_jobs": "successful", "install_signal_handlers": False}
            concurrency = CONCURRENCY if keys >= MANY_KEYS else 1
            running = asyncio.create_task(app.run_worker_async(concurrency=concurrency, **options))
            try:
                yield
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    @asynccontextmanager
    async def writer(self, url: str) -> AsyncIterator[Writer]:
        async with opened(url) as app, await AsyncConnection.connect(url, autocommit=True) as connection:
            yield PsycopgWriter(connection, app)


class PsycopgWriter:
    def __init__(self, connection: AsyncConnection[Any], app: App) -> None:
        self._connection = connection
        self._app = app

    def transaction(self) -> AbstractAsyncContextManager[object]:
        return self._connection.transaction()

    async def execute(self, statement: str) -> None:
        await self._connection.execute(statement.encode())

    async def add(self, key: str, payload: str) -> None:
        task = self._app.configure_task(TASK, lock=key, connection=self._connection)
        await task.defer_async(payload=payload)


def job_of(key: str, payload: str) -> Job:
    return Job(queue="default", lock=key, queueing_lock=None, task_name=TASK, task_kwargs={"payload": payload})


def add_retries(app: App) -> None:
    """Without them, what a killed worker held is held for ever, and so is the rest of its key."""

    @app.periodic(cron=EVERY_MINUTE)
    @app.task(name="retry_stalled_jobs", queueing_lock="retry_stalled_jobs")
    async def retry_stalled_jobs(timestamp: int) -> None:
        for job in await app.job_manager.get_stalled_jobs():
            await app.job_manager.retry_job(job)


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[App]:
    app = App(connector=PsycopgConnector(conninfo=url, min_size=1, max_size=CONCURRENCY + 2))
    async with app.open_async():
        yield app


if __name__ == "__main__":
    serve(Procrastinate())
