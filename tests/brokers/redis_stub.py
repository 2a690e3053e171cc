"""A server that speaks just enough of the protocol of Redis to answer as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

Reply = Callable[[list[bytes]], bytes]


class RedisStub:
    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self.address = ""
        self.connections = 0
        self.ended = 0
        self.executed = 0
        """Transactions that came as a whole."""
        self.takes_empty = True
        """Transactions, without asking for a reply."""
        self.may_read = asyncio.Event()
        self.may_read.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        before = b""
        try:
            while True:
                await self.may_read.wait()
                command = await self._command(reader)
                is_empty = command[0] == b"EXEC" and before == b"MULTI"
                self.executed += command[0] == b"EXEC" and not is_empty
                reply = self._reply(command)
                writer.write(b"*0\r\n" if is_empty and self.takes_empty else reply)
                before = command[0]
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.ended += 1
            writer.close()

    async def _command(self, reader: asyncio.StreamReader) -> list[bytes]:
        count = int((await reader.readuntil(b"\r\n"))[1:])
        words: list[bytes] = []
        for _ in range(count):
            size = int((await reader.readuntil(b"\r\n"))[1:])
            words.append((await reader.readexactly(size + 2))[:-2])
        return words


@asynccontextmanager
async def redis_stub(reply: Reply) -> AsyncIterator[RedisStub]:
    stub = RedisStub(reply)
    server = await asyncio.start_server(stub.serve, "127.0.0.1", 0)
    stub.address = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield stub
