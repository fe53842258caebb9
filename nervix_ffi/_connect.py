"""Opening a session.

Owns the options of it. Must not know what a session does.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from nervix_ffi._handle import TOKEN, Handle, blocking
from nervix_ffi._library import extension, lib, library
from nervix_ffi._native import Out, check, encode, optional
from nervix_ffi._unbroken import own
from nervix_ffi.cancel import Cancel, Limit
from nervix_ffi.errors import (
    InvalidArgumentError,
    UnsupportedError,
)
from nervix_ffi.session import Session

__all__ = ["connect"]


def _milliseconds(seconds: float, what: str) -> int:
    if not isinstance(seconds, (int, float)):
        raise TypeError(f"{what} is a number of seconds or None, not {type(seconds).__name__}")
    value = round(float(seconds) * 1000) if seconds == seconds and abs(seconds) < 1e12 else 0
    if value < 1:
        raise InvalidArgumentError(f"{what} is a number of seconds, at least 0.001; {seconds!r} is not")
    return value


def _options(
    seeds: Iterable[str],
    request_timeout: float | None,
    retry_timeout: float | None,
    ca_file: str | bytes | os.PathLike[str] | os.PathLike[bytes] | None,
) -> Handle | None:
    """The options of a connect; None for a library that has none, which goes without."""
    if isinstance(seeds, (str, bytes)) or not isinstance(seeds, Iterable):
        raise TypeError(f"seeds is a sequence of server origins (str), not {type(seeds).__name__}")
    servers = [encode(seed, "each of seeds") for seed in seeds]
    authorities = None if ca_file is None else os.fsencode(ca_file)
    if authorities is not None and not (extension("connect_options") and extension("ca_file")):
        raise UnsupportedError(
            f"ca_file needs a library with the ca_file extension, which {library().path} lacks; connect without it to trust what "
            "the system trusts"
        )
    if not extension("connect_options"):
        if servers or request_timeout is not None or retry_timeout is not None:
            raise UnsupportedError(
                "seeds, request_timeout and retry_timeout need a library with the connect_options extension, which "
                f"{library().path} lacks; connect without them"
            )
        return None
    options = Handle("connect options", own(lib.nxx_connect_options_new, (), lib.nxx_connect_options_free))
    with options as pointer:
        for server in servers:
            check(lib.nxx_connect_options_add_seed(pointer, server, len(server)))
        if request_timeout is not None:
            check(lib.nxx_connect_options_request_timeout(pointer, _milliseconds(request_timeout, "request_timeout")))
        if retry_timeout is not None:
            check(lib.nxx_connect_options_retry_timeout(pointer, _milliseconds(retry_timeout, "retry_timeout")))
        if authorities is not None:
            check(lib.nxx_connect_options_ca_file(pointer, authorities, len(authorities)))
    return options


def connect(
    server: str,
    *,
    username: str | None = None,
    password: str | None = None,
    domain: str | None = None,
    seeds: Iterable[str] = (),
    request_timeout: float | None = None,
    retry_timeout: float | None = None,
    ca_file: str | bytes | os.PathLike[str] | os.PathLike[bytes] | None = None,
    timeout: float | None = None,
    cancel: Cancel | None = None,
) -> Session:
    """Opens a session.

    ``server`` is an http or https origin, for example ``http://127.0.0.1:47391``; the port is 47391 when left out. An https
    server's certificate is checked, against the host name of its address, wherever the session is opened or led (T-2); a session
    that begins with https is never led to http. Trusted are the certificate authorities of the system, or, with ``ca_file``, those
    whose PEM certificates that file holds, and no others; with an http server it goes for the https servers that the session
    may be redirected to. ``username`` and ``password`` come both or not at
    all. ``domain`` is the domain of later commands. ``seeds`` are more servers to try, now and after a loss of the connection;
    ``request_timeout`` bounds the wait for one reply and ``retry_timeout`` one call with all its retries and redirects (seconds,
    120 each unless given); a connection that carries nothing any more is given up within two request timeouts. The outcome of a
    batch, a delivery and the close of a producer wait for others and have no time to come in: give those calls a ``timeout``.
    ``timeout`` bounds this call, in seconds.

    Raises InvalidArgumentError for a malformed origin, half a pair of credentials or a ``ca_file`` that cannot be used (nothing
    is sent then), ConnectError when no server answers, none has a certificate to be trusted, the credentials are refused, or no
    file descriptor is left, DeadlineError, CancelledError, and UnsupportedError when the library lacks the options asked for.
    """
    limit = Limit(timeout, cancel)
    origin = encode(server, "the server")
    scope, scope_len = optional(domain, "the domain")
    user, user_len = optional(username, "the username")
    secret, secret_len = optional(password, "the password")
    options = _options(seeds, request_timeout, retry_timeout, ca_file)
    credentials = (origin, len(origin), scope, scope_len, user, user_len, secret, secret_len)
    with Out("nx_session", lib.nx_session_free) as out:
        if options is None:
            blocking(None, lib.nx_session_connect, limit, *credentials, TOKEN, out.place)
        else:
            blocking(None, lib.nxx_session_connect, limit, *credentials, options, TOKEN, out.place)
        return Session(out.take(), domain)
