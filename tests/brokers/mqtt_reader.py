"""MQTT as a consumer sees it, with another client than ours: whatever arrives at a topic, from its first day on."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Coroutine
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from gmqtt import Client

T = TypeVar("T")

PATIENCE = 30.0
FOR_EVER = 2**32 - 1
MARK = b"everything before this has arrived: "


class Taken(NamedTuple):
    topic: str
    payload: bytes
    headers: dict[str, str]
    content_type: str | None
    expiry: int | None
    is_retained: bool


class MqttReader:
    """Listens in a thread of its own, with a session that the broker keeps while it is away."""

    def __init__(self, url: str, topic: str) -> None:
        self._url, self._topic = url, topic
        self._taken: list[Taken] = []
        self._marks: set[bytes] = set()
        self._news = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        try:
            self._client = self._call(self._connect())
        except BaseException:
            self._end()
            raise

    def taken(self) -> list[Taken]:
        """All that was confirmed to whoever sent it before we asked."""
        for _ in range(30):
            mark = MARK + secrets.token_bytes(8)
            self._call(self._send(mark))
            with self._news:
                if self._news.wait_for(lambda mark=mark: mark in self._marks, PATIENCE / 30):
                    return list(self._taken)
        raise AssertionError("the broker does not pass messages on")

    def stop(self) -> None:
        try:
            self._call(self._client.disconnect(session_expiry_interval=0))
        finally:
            self._end()

    async def _connect(self) -> Client:
        name, parts = f"reader-{secrets.token_hex(6)}", urlsplit(self._url)
        client = Client(name, clean_session=False, session_expiry_interval=FOR_EVER, receive_maximum=65_535)
        client.set_config({"reconnect_delay": 0.05, "reconnect_retries": -1})
        subscribed = asyncio.Event()
        client.on_message = self._take
        client.on_subscribe = lambda *_: subscribed.set()
        if parts.username is not None:
            client.set_auth_credentials(parts.username, parts.password)
        await client.connect(parts.hostname, parts.port or 1883)
        client.subscribe(self._topic, qos=1)
        await asyncio.wait_for(subscribed.wait(), PATIENCE)
        return client

    async def _send(self, mark: bytes) -> None:
        if self._client.is_connected:
            self._client.publish(self._topic.replace("#", "mark"), mark, qos=1)

    def _take(self, client: Client, topic: str, payload: bytes, qos: int, properties: dict[str, Any]) -> None:
        with self._news:
            if payload.startswith(MARK):
                self._marks.add(payload)
                self._news.notify_all()
            else:
                headers = dict(properties.get("user_property", []))
                [content_type, expiry] = [
                    properties.get(name, [None])[0] for name in ("content_type", "message_expiry_interval")
                ]
                taken = Taken(topic, payload, headers, content_type, expiry, bool(properties["retain"]))
                self._taken.append(taken)

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE)

    async def _give_up(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _end(self) -> None:
        self._call(self._give_up())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
