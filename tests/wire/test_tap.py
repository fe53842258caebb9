"""The recording relay reads HTTP/2 and gRPC as they are defined."""

from __future__ import annotations

from .tap import DATA, PREFACE, grpc_messages, http2_frames


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def test_messages_are_joined_across_frames_and_kept_apart_by_stream() -> None:
    first, second = b"\0\0\0\0\x03abc", b"\0\0\0\0\x01x\0\0\0\0\0"
    data = (
        PREFACE
        + frame(4, 0, 0, b"")
        + frame(DATA, 0, 1, first[:6])
        + frame(DATA, 0x8, 3, b"\x02" + second + b"\0\0")
        + frame(DATA, 1, 1, first[6:])
        + b"\0\0\x09"
    )
    assert [one.stream for one in http2_frames(data)] == [0, 1, 3, 1]
    assert list(grpc_messages(data)) == [(3, b"x"), (3, b""), (1, b"abc")]
