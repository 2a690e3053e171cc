"""TLS, with the same options in every URL."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from ..errors import ConfigurationError
from .options import truth

OPTIONS = {"ssl_ca": str, "ssl_cert": str, "ssl_key": str, "ssl_verify": truth}
"""`ssl_ca`: a file with the authorities to trust, instead of the system's. `ssl_cert`, `ssl_key`: who we are.
`ssl_verify=false`: whoever answers is trusted, for trials only."""


def context(options: Mapping[str, Any]) -> ssl.SSLContext:
    """Of the options that were read; the certificate and the name of the server are checked."""
    if "ssl_key" in options and "ssl_cert" not in options:
        raise ConfigurationError("ssl_key is of use only with ssl_cert, the certificate that it belongs to")
    try:
        made = ssl.create_default_context(cafile=options.get("ssl_ca"))
        if "ssl_cert" in options:
            made.load_cert_chain(options["ssl_cert"], options.get("ssl_key"))
    except OSError as error:
        names = [f"{name}={options[name]}" for name in ("ssl_ca", "ssl_cert", "ssl_key") if name in options]
        raise ConfigurationError(f"{', '.join(names)} cannot be used: {error}") from None
    if not options.get("ssl_verify", True):
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    return made
