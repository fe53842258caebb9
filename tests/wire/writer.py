"""Frames written with the builders that flatc generated, so that a test can have the node send what it would never say.

A value is a tuple `(table, {field: value})`; a field of a union is a table; lists are vectors; text is a string.
"""

from __future__ import annotations

import base64
from typing import Any

import flatbuffers  # type: ignore[import-untyped]

from . import reader


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _function(name: str) -> Any:
    return reader.class_of(name)


def _tag(union: str, member: str) -> int:
    tag: int = getattr(reader.class_of(union), member)
    return tag


def build(builder: flatbuffers.Builder, value: tuple[str, dict[str, Any]], unions: dict[str, str]) -> int:
    """Write a table and what it holds; `unions` says which of its fields are of which union."""
    name, fields = value
    offsets: dict[str, Any] = {}
    for field, content in fields.items():
        if isinstance(content, str):
            offsets[field] = builder.CreateString(content)
        elif isinstance(content, bytes):
            offsets[field] = builder.CreateByteVector(content)
        elif isinstance(content, tuple):
            offsets[field] = build(builder, content, unions)
        elif isinstance(content, list):
            items = [build(builder, item, unions) for item in content]
            builder.StartVector(4, len(items), 4)
            for item in reversed(items):
                builder.PrependUOffsetTRelative(item)
            offsets[field] = builder.EndVector()
        else:
            offsets[field] = content
    _function(f"{name}Start")(builder)
    for field, offset in offsets.items():
        union = unions.get(f"{name}.{field}")
        if union is not None:
            _function(f"{name}Add{_camel(field)}Type")(builder, _tag(union, fields[field][0]))
        _function(f"{name}Add{_camel(field)}")(builder, offset)
    end: int = _function(f"{name}End")(builder)
    return end


FIELDS = {
    "ServerMessage.body": "ServerBody",
    "Reply.body": "ReplyBody",
    "Cell.value": "CellValue",
    "CommandOutcome.disposition": "CommandDisposition",
    "LeadershipObserved.leadership": "Leadership",
    "SubscribeOutcome.disposition": "SubscribeDisposition",
    "FieldType.shape": "FieldTypeShape",
}


def server_frame(body: tuple[str, dict[str, Any]]) -> bytes:
    """A whole ServerMessage."""
    builder = flatbuffers.Builder(256)
    builder.Finish(build(builder, ("ServerMessage", {"body": body}), FIELDS), b"NXSM")
    return bytes(builder.Output())


def cell(kind: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    """A Cell of a kind, for example `cell("U32Cell", value=1)`."""
    return ("Cell", {"value": (kind, fields)})


def rows_frame(
    name: str, generation: int, rows: list[list[tuple[str, dict[str, Any]]]], key: list[tuple[str, dict[str, Any]]] | None = None
) -> bytes:
    """SubscriptionRows with these cells."""
    batch: dict[str, Any] = {"rows": [("Row", {"cells": cells}) for cells in rows]}
    if key is not None:
        batch["branch_key"] = ("BranchKey", {"cells": key})
    handle = ("SubscriptionHandle", {"name": name, "generation": generation})
    return server_frame(("SubscriptionRows", {"subscription": handle, "batch": ("RowBatch", batch)}))


def encoded(frame: bytes) -> str:
    """A frame as the control endpoint takes it."""
    return base64.b64encode(frame).decode("ascii")
