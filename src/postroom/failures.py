"""What an error says: is the destination to blame or the message, and in which words.

Known clients are recognised by the names of their exceptions, so that nothing is imported for it.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from typing import Any, cast

from .errors import DestinationUnavailable, MessageRejected
from .redact import redact

LONGEST_DESCRIPTION = 500

# By top-level package, because clients move their exceptions between inner modules. Most are no ConnectionError. A
# subclass of a class named here counts too, unless REFUSED names it. An outage is more than an unreachable host: it may
# be overloaded, or refuse our credentials, or lack the topic or the right to it.
UNAVAILABLE: Mapping[str, frozenset[str]] = {
    package: frozenset(names.split())
    for package, names in {
        "aiohttp": "ClientConnectionError ClientPayloadError",
        "aiokafka": """KafkaConnectionError KafkaTimeoutError KafkaUnavailableError NoBrokersAvailable NodeNotReadyError
            StaleMetadata MetadataEmptyBrokerList BrokerNotAvailableError LeaderNotAvailableError
            NotLeaderForPartitionError ReplicaNotAvailableError NotEnoughReplicasError NotEnoughReplicasAfterAppendError
            RequestTimedOutError KafkaStorageError GroupCoordinatorNotAvailableError GroupLoadInProgressError
            NotCoordinatorForGroupError UnknownTopicOrPartitionError ProducerClosed AuthenticationFailedError
            SaslAuthenticationFailed TopicAuthorizationFailedError ClusterAuthorizationFailedError""",
        "aiomqtt": "MqttError",
        "aiormq": "AMQPConnectionError ChannelInvalidStateError ChannelAccessRefused ChannelNotFoundEntity",
        "amqp": "ConnectionError AccessRefused NotFound",
        "asyncio": "IncompleteReadError",
        "botocore": """ConnectionError HTTPClientError NoCredentialsError PartialCredentialsError
            CredentialRetrievalError""",
        "elastic_transport": "ConnectionError ConnectionTimeout SniffingError",
        "google": "RetryError",
        "http": "NotConnected IncompleteRead BadStatusLine ImproperConnectionState",
        "httpcore": "NetworkError TimeoutException RemoteProtocolError ProxyError ConnectionNotAvailable",
        "httpx": "TransportError",
        "kafka": """RetriableError KafkaConnectionError KafkaTimeoutError KafkaUnavailableError NoBrokersAvailable
            NodeNotReadyError BrokerNotAvailableError LeaderNotAvailableError NotLeaderForPartitionError
            NotEnoughReplicasError NotEnoughReplicasAfterAppendError RequestTimedOutError UnknownTopicOrPartitionError
            AuthorizationError TopicAuthorizationFailedError ClusterAuthorizationFailedError
            SaslAuthenticationFailedError""",
        "kombu": "OperationalError ConnectionLimitExceeded",
        "nats": """NoServersError NoRespondersError ConnectionClosedError ConnectionDrainingError
            ConnectionReconnectingError StaleConnectionError OutboundBufferLimitError AuthorizationError
            SecureConnRequiredError SecureConnWantedError SecureConnFailedError ServiceUnavailableError ServerError
            NoStreamResponseError TooManyStalledMsgsError""",
        "pika": "AMQPConnectionError ChannelClosed ChannelWrongStateError",
        "pymongo": "ConnectionFailure",
        "redis": """ConnectionError TimeoutError ReadOnlyError OutOfMemoryError NoPermissionError ClusterDownError
            SlotNotCoveredError TryAgainError""",
        "requests": "ConnectionError Timeout ChunkedEncodingError RetryError",
        "socket": "gaierror herror",
        "smtplib": "SMTPServerDisconnected SMTPConnectError SMTPHeloError SMTPAuthenticationError",
        "ssl": "SSLError",
        "stomp": "ConnectFailedException ConnectionClosedException NotConnectedException",
        "urllib": "URLError",
        "urllib3": "TimeoutError ProtocolError MaxRetryError SSLError ProxyError EmptyPoolError ClosedPoolError",
        "valkey": """ConnectionError TimeoutError ReadOnlyError OutOfMemoryError NoPermissionError ClusterDownError
            SlotNotCoveredError TryAgainError""",
        "websockets": "ConnectionClosed InvalidHandshake",
    }.items()
}

# Subclasses of the above that blame what was to be sent.
REFUSED: Mapping[str, frozenset[str]] = {
    "httpx": frozenset({"LocalProtocolError", "UnsupportedProtocol"}),
    "urllib3": frozenset({"ResponseNotChunked"}),
}

# The destination answered, and the client raised for it: the status decides.
ANSWERED: Mapping[str, frozenset[str]] = {
    "aiohttp": frozenset({"ClientResponseError"}),
    "elastic_transport": frozenset({"ApiError"}),
    "elasticsearch": frozenset({"ApiError"}),
    "google": frozenset({"GoogleAPICallError"}),
    "grpc": frozenset({"RpcError"}),
    "httpx": frozenset({"HTTPStatusError"}),
    "requests": frozenset({"HTTPError"}),
    "smtplib": frozenset({"SMTPResponseException"}),
    "urllib": frozenset({"HTTPError"}),
}
# HTTP without 403, 404 and 500 (to a function that talks to many resources these may be about this one message), SMTP's
# 421, and gRPC's names.
UNAVAILABLE_STATUS: frozenset[object] = frozenset({
    401, 407, 408, 425, 429, 502, 503, 504,
    421,
    "UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "UNAUTHENTICATED",
})  # fmt: skip

# What the operating system says with a plain OSError: no way to the host, or nothing left to open a connection with.
_NETWORK_ERRNO = frozenset({
    errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL, errno.ENOTCONN,
    errno.ENOBUFS, errno.EMFILE, errno.ENFILE,
})  # fmt: skip
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\s]+")


def is_unavailable(error: BaseException, extra: tuple[type[BaseException], ...] = ()) -> bool:
    """Whether nobody can be served now, so that no message is to blame.

    True for `DestinationUnavailable`, connection errors and time-outs, those of the known clients, and `extra` classes.
    `MessageRejected` never is. A group is if all that is in it is. Causes are not looked at: who raises something else
    from a connection error has decided.
    """
    if isinstance(error, (DestinationUnavailable, *extra)):
        return True
    if isinstance(error, MessageRejected):
        return False
    if isinstance(error, BaseExceptionGroup):
        group = cast(BaseExceptionGroup[BaseException], error)
        return all(is_unavailable(inner, extra) for inner in group.exceptions)
    known = _known_client(error)
    return _is_network(error) if known is None else known


def describe(error: BaseException) -> str:
    """The error in one line, "TypeName: message", for people and for the database: at most 500 characters, no control
    characters, secrets in URLs hidden. It never raises."""
    # Cut twice: hiding secrets in megabytes takes time, and may not come after the last cut.
    text = redact(_one_line(_spell(error)[: LONGEST_DESCRIPTION * 20]))
    return text if len(text) <= LONGEST_DESCRIPTION else f"{text[: LONGEST_DESCRIPTION - 1]}…"


def _known_client(error: BaseException) -> bool | None:
    """What the tables say; the most derived class they name decides."""
    for kind in type(error).__mro__:
        package, name = kind.__module__.partition(".")[0], kind.__name__
        if name in ANSWERED.get(package, ()):
            return _answer_is_unavailable(error)
        if name in REFUSED.get(package, ()):
            return False
        if name in UNAVAILABLE.get(package, ()):
            return True
    return None


def _answer_is_unavailable(error: BaseException) -> bool:
    try:
        return _status(error) in UNAVAILABLE_STATUS
    except Exception:
        return False


def _status(error: Any) -> object:
    """Where httpx and requests, aiohttp, Elasticsearch, smtplib, gRPC, urllib and Google keep it, in this order."""
    response = getattr(error, "response", None)
    for place, name in ((response, "status_code"), (error, "status"), (error, "status_code"), (error, "smtp_code")):
        if isinstance(status := getattr(place, name, None), int):
            return status
    code = error.code
    return getattr(code(), "name", None) if callable(code) else code


def _is_network(error: BaseException) -> bool:
    if isinstance(error, (ConnectionError, TimeoutError)):
        return True
    if type(error) is not OSError:
        return False
    # What asyncio raises when a host has several addresses and none of them answers.
    return error.errno in _NETWORK_ERRNO or (error.errno is None and str(error).startswith("Multiple exceptions: "))


def _spell(error: BaseException) -> str:
    name = type(error).__name__
    if isinstance(error, BaseExceptionGroup):
        group = cast(BaseExceptionGroup[BaseException], error)
        return f"{name}: {group.message} ({'; '.join(_spell(inner) for inner in group.exceptions)})"
    try:
        text = str(error).strip()
    except Exception:
        text = "(it has no text: its __str__ fails)"
    return f"{name}: {text}" if text else name


def _one_line(text: str) -> str:
    # A lone surrogate or a zero byte is valid in Python and refused by databases.
    return _UNPRINTABLE.sub(" ", text.encode(errors="replace").decode()).strip()
