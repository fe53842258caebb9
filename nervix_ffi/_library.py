"""Opens the client library and says what it is.

Owns the choice of the file: ``NERVIX_CLIENT_LIBRARY``, or the library inside the package. Must not know what its functions do.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

try:
    from nervix_ffi._ffi import ffi, lib
except ImportError as missing:  # pragma: no cover - only in a source tree that was never built
    raise ImportError(
        f"the extension module of nervix_ffi cannot be loaded ({missing}); in a source tree, run `pip install -e .` first"
    ) from missing

__all__ = ["Library", "extension", "ffi", "lib", "library"]

#: The variable that names another library of the same interface.
VARIABLE = "NERVIX_CLIENT_LIBRARY"

_SUFFIX = "dylib" if sys.platform == "darwin" else "so"
_PACKAGED = Path(__file__).resolve().parent / f"libnervix_client_ffi.{_SUFFIX}"

#: What the package uses beyond the interface, by the functions each needs.
_EXTENSIONS = {
    "connect_options": (
        "nxx_connect_options_new",
        "nxx_connect_options_add_seed",
        "nxx_connect_options_request_timeout",
        "nxx_connect_options_retry_timeout",
        "nxx_connect_options_free",
        "nxx_session_connect",
    ),
    "ca_file": ("nxx_connect_options_ca_file",),
    "arrow": ("nxx_event_arrow",),
    "arrow_batches": ("nxx_batch_arrow", "nxx_batch_from_arrow"),
    "domains": ("nxx_session_prepare_in",),
    "outside": (
        "nxx_session_prepare_in",
        "nxx_session_execute_outside",
        "nxx_error_unsent",
        "nxx_error_held_transaction",
        "nxx_error_condemned",
    ),
    "repetitions": ("nxx_execution_sent", "nxx_execution_position", "nxx_execution_preview"),
    "statements": ("nxx_statement",),
    "event_details": ("nxx_event_end_reason", "nxx_event_skip_cause", "nxx_event_message"),
    "outcome_origin": ("nxx_outcome_origin", "nxx_outcome_already_existed", "nxx_outcome_decided_locally"),
    "outcome_statements": (
        "nxx_outcome_statement_count",
        "nxx_outcome_statement",
        "nxx_outcome_statement_diagnostic",
    ),
    "transactions": (
        "nxx_session_prepare",
        "nxx_outcome_transaction",
        "nxx_outcome_transaction_failure",
        "nxx_outcome_admission",
    ),
}


@dataclass(frozen=True)
class Library:
    """The client library that this process uses.

    ``path`` is the file that the system loaded. ``extensions`` names what it offers beyond the shared interface: ``arrow``,
    ``arrow_batches``, ``ca_file``, ``connect_options``, ``domains``, ``event_details``, ``outcome_origin``, ``outcome_statements``,
    ``outside``, ``repetitions``, ``statements`` and ``transactions``. What a library lacks is None where it would be read, and
    UnsupportedError where it is asked for.
    """

    path: str
    extensions: frozenset[str]


def _open() -> Library:
    named = os.environ.get(VARIABLE)
    if named:
        # A name with no folder that is no file here is left to the system's search.
        path = os.path.abspath(named) if os.sep in named or os.path.exists(named) else named
        origin = f"named by {VARIABLE}"
    else:
        path = str(_PACKAGED)
        origin = f"part of this package; {VARIABLE} can name another"
    failure = lib.nervix_library_open(os.fsencode(path))
    if failure != ffi.NULL:
        reason = ffi.string(failure).decode("utf-8", "replace")
        raise ImportError(f"cannot load the Nervix client library {path} ({origin}): {reason}", path=path)
    absent = lib.nervix_library_missing()
    if absent != ffi.NULL:
        name = ffi.string(absent).decode("ascii")
        raise ImportError(f"{path} ({origin}) is no Nervix client library of this version: it has no function {name}", path=path)
    return Library(
        path=os.path.realpath(os.fsdecode(ffi.string(lib.nervix_library_path()))),
        extensions=frozenset(
            extension
            for extension, names in _EXTENSIONS.items()
            if all(lib.nervix_library_has(name.encode("ascii")) for name in names)
        ),
    )


_LIBRARY = _open()


def library() -> Library:
    """The library that is loaded and the extensions that it has."""
    return _LIBRARY


def extension(name: str) -> bool:
    """Whether the library has the extension ``name``."""
    return name in _LIBRARY.extensions
