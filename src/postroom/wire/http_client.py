"""A client for web hooks whose connections can be ended at once, and go to public addresses only."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import ssl
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping
from contextlib import aclosing, contextmanager, suppress
from contextvars import ContextVar
from http.cookiejar import CookieJar, DefaultCookiePolicy
from importlib.util import find_spec
from typing import Any, cast

import httpcore
import httpx

from ..errors import DestinationUnavailable

KEEP_ALIVE = 5.0
"""Seconds after which an unused connection is closed; most servers wait longer."""

MOST_CARRIED = 500
"""Requests after which a connection for many is replaced. Many servers end one after 1,000, and then httpcore gives up
all that is in flight on it, though the server would still answer."""

MOST_READ = 64 * 1024
"""Bytes of an answer that are read to keep the connection; what says more loses it."""

HTTP2 = find_spec("h2") is not None
if (_hpack := logging.getLogger("hpack")).level == logging.NOTSET:
    _hpack.setLevel(logging.INFO)  # it would write every header into the log, and some are secret


class Exchange:
    """A request, and what became of it."""

    def __init__(self, request: httpx.Request) -> None:
        self.request = request
        self.response: httpx.Response | None = None
        self.body = b""


class Session:
    """A client and its connections, on one event loop."""

    def __init__(self, client: httpx.AsyncClient | None, context: ssl.SSLContext | None, allow_private: bool) -> None:
        self.loop = asyncio.get_running_loop()
        self._network = Network(allow_private)
        self.client = client or _client(context, self._network)
        self._carried = self._busy = 0
        self._is_retired = self._is_closed = False

    @property
    def is_over(self) -> bool:
        is_worn = self._carried >= MOST_CARRIED and self._network.is_shared
        return self._is_closed or is_worn or self._network.is_stale

    async def carry_out(self, exchange: Exchange) -> None:
        self._carried += 1
        self._busy += 1
        try:
            await self._carry_out(exchange)
        finally:
            self._busy -= 1
            if self._is_retired:
                self.retire()

    def retire(self) -> None:
        """Who uses it may go on; the last one closes it."""
        self._is_retired = True
        if not self._busy:
            self.close()

    def close(self) -> None:
        self._is_closed = True
        self._network.close()

    async def _carry_out(self, exchange: Exchange) -> None:
        USER.set(exchange)
        try:
            exchange.response = await self.client.send(exchange.request, stream=True, follow_redirects=False)
            await self._read(exchange, exchange.response)
        except httpx.RemoteProtocolError:
            raise  # the server ended it, or this one of the requests that share the connection
        except BaseException:
            self._give_up(exchange)
            raise

    async def _read(self, exchange: Exchange, response: httpx.Response) -> None:
        async with aclosing(cast("AsyncGenerator[bytes, None]", response.aiter_raw())) as parts:
            async for part in parts:
                exchange.body += part
                if len(exchange.body) > MOST_READ:
                    self._give_up(exchange)
                    break
        await response.aclose()

    def _give_up(self, exchange: Exchange) -> None:
        """Nothing more of it may leave. Of requests that share its connection nobody knows what has left."""
        if self._network.give_up(exchange):
            self.close()


class Transport(httpx.AsyncHTTPTransport):
    """The usual one, with a network of our own, for which httpx has no argument."""

    def __init__(self, pool: httpcore.AsyncConnectionPool) -> None:
        self._pool = pool


def _client(context: ssl.SSLContext | None, network: Network) -> httpx.AsyncClient:
    pool = httpcore.AsyncConnectionPool(
        ssl_context=context,
        max_connections=None,  # as many as there are requests, and their number is limited
        keepalive_expiry=KEEP_ALIVE,
        http2=HTTP2,
        network_backend=network,
    )
    return httpx.AsyncClient(
        transport=Transport(pool),
        headers={"accept-encoding": "identity", "user-agent": "postroom"},
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        trust_env=False,
    )


# --- connections

USER: ContextVar[Exchange | None] = ContextVar("USER", default=None)
"""Who sends."""


PING = bytes((0, 0, 8, 6, 0, 0, 0, 0, 0)) + b"postroom"
PONG = bytes((0, 0, 8, 6, 1, 0, 0, 0, 0)) + b"postroom"
"""Frames of HTTP/2."""
PATIENCE = 0.25
"""Seconds of silence before the first ping; after each that is answered, twice as many before the next."""


class Network(httpcore.AsyncNetworkBackend):
    """Connects to addresses that were looked at, and knows its connections, so that it can end them at once."""

    def __init__(self, allow_private: bool) -> None:
        self._allow_private = allow_private
        self._streams: set[Stream] = set()

    @property
    def is_shared(self) -> bool:
        return any(stream.is_shared for stream in self._streams)

    @property
    def is_stale(self) -> bool:
        """Whether a connection for many requests has ended, which the client would only learn from the next one."""
        return any(stream.is_shared and stream.has_ended for stream in self._streams)

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> Stream:
        with _translated(httpcore.ConnectError, f"{host}:{port}: "):
            addresses = await self._resolve(host, port)
            for number, address in enumerate(addresses, start=1):
                try:
                    async with asyncio.timeout(timeout and timeout / len(addresses)):
                        return await self._open(address, port)
                except OSError:
                    if number == len(addresses):
                        raise
        raise DestinationUnavailable(f"{host} has no address")

    def give_up(self, user: Exchange) -> bool:
        """End the connection of that user, and tell whether it may have been one for many."""
        streams = [stream for stream in self._streams if stream.is_shared or stream.user is user]
        for stream in streams:
            stream.abort()
        return any(stream.is_shared for stream in streams)

    def close(self) -> None:
        for stream in list(self._streams):
            stream.abort()

    def forget(self, stream: Stream) -> None:
        self._streams.discard(stream)

    async def _resolve(self, host: str, port: int) -> list[str]:
        """Looked up once: another answer, later, would not be looked at."""
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(place[0]) for *_, place in found))
        allowed = [address for address in addresses if self._allow_private or is_public(address)]
        if addresses and not allowed:
            raise DestinationUnavailable(
                f"{host} is {addresses[0]}, which is no public address: refused unless the URL has #allow_private=true"
            )
        return allowed

    async def _open(self, address: str, port: int) -> Stream:
        loop = asyncio.get_running_loop()
        reader = Reader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport, _ = await loop.create_connection(lambda: protocol, address, port)
        stream = Stream(self, reader, asyncio.StreamWriter(transport, protocol, reader, loop))
        self._streams.add(stream)
        return stream


class Reader(asyncio.StreamReader):
    """Tells what has come that nobody asked for."""

    unread = 0
    has_ended = False

    def feed_data(self, data: Any) -> None:
        self.unread += len(data)
        super().feed_data(data)

    def feed_eof(self) -> None:
        self.has_ended = True
        super().feed_eof()

    def set_exception(self, exc: Exception) -> None:
        self.has_ended = True
        super().set_exception(exc)

    async def read(self, n: int = -1) -> bytes:
        data = await super().read(n)
        self.unread -= len(data)
        return data


class Stream(httpcore.AsyncNetworkStream):
    """One connection. What has not left when it is aborted never leaves."""

    def __init__(self, network: Network, reader: Reader, writer: asyncio.StreamWriter) -> None:
        self._network = network
        self._reader = reader
        self._writer = writer
        self.user = USER.get()
        """Who sent last."""
        self.is_shared = False
        self._patience = PATIENCE

    @property
    def has_ended(self) -> bool:
        return self._reader.has_ended or self._writer.is_closing()

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        with _translated(httpcore.ReadError):
            async with asyncio.timeout(timeout):
                return await (self._read_awake(max_bytes) if self.is_shared else self._reader.read(max_bytes))

    async def _read_awake(self, max_bytes: int) -> bytes:
        """After a silence, ask for a sign of life. For httpcore may wait for leave to go on sending that another
        request has read already, and looks again when anything at all comes."""
        knock = asyncio.get_running_loop().call_later(self._patience, self._writer.write, PING)
        try:
            data = await self._reader.read(max_bytes)
        finally:
            knock.cancel()
        self._patience = 2 * self._patience if data == PONG else PATIENCE
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self.user = USER.get()
        with _translated(httpcore.WriteError):
            async with asyncio.timeout(timeout):
                self._writer.write(buffer)
                await self._writer.drain()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> Stream:
        try:
            with _translated(httpcore.ConnectError, f"{server_hostname}: "):
                async with asyncio.timeout(timeout):
                    await self._writer.start_tls(ssl_context, server_hostname=server_hostname)
        except BaseException:
            self.abort()
            raise
        self.is_shared = self.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
        return self

    async def aclose(self) -> None:
        self.abort()

    def abort(self) -> None:
        self._network.forget(self)
        with suppress(RuntimeError):  # its loop is closed
            self._writer.transport.abort()

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":
            return self.has_ended or self._reader.unread > 0
        return self._writer.get_extra_info(info)


@contextmanager
def _translated(kind: type[httpcore.NetworkError], where: str = "") -> Generator[None]:
    try:
        yield
    except TimeoutError as error:
        raise TIMEOUTS[kind](f"{where}no answer in time") from error
    except (OSError, UnicodeError) as error:
        raise kind(f"{where}{error}") from error


TIMEOUTS: Mapping[type[httpcore.NetworkError], type[httpcore.TimeoutException]] = {
    httpcore.ConnectError: httpcore.ConnectTimeout,
    httpcore.ReadError: httpcore.ReadTimeout,
    httpcore.WriteError: httpcore.WriteTimeout,
}

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def is_public(text: str) -> bool:
    """Whether an address is anybody's on the internet, and so none of our own network."""
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address):
        if inner := _within(address):
            return is_public(str(inner))
        if address.is_site_local:
            return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def _within(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The older address that it stands for, if it does."""
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo and address.teredo[1])
