"""How the text of others is shown: harmless on a terminal, and no longer than someone reads.

Owns what a person gets to see of a text that a server wrote. Must not know what the text is about.
"""

from __future__ import annotations

__all__ = ["CUT", "NAMED", "TOLD", "cut", "harmless", "inline", "named", "told"]

#: How many characters are shown of one text.
TOLD = 4000

#: How many characters are shown of a name, or of a list of names.
NAMED = 200

#: Stands for what is left out.
CUT = "\N{HORIZONTAL ELLIPSIS}"


def cut(text: str, length: int) -> str:
    """The first ``length`` characters of a text, the last of them a mark when there were more."""
    return text if len(text) <= length else text[: length - 1] + CUT


def harmless(line: str) -> str:
    """A line without anything that a terminal would obey."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in line)


def named(name: str) -> str:
    """A name, or names, as a terminal may show them within a line."""
    return harmless(cut(name, NAMED))


def told(message: str) -> str:
    """A text as a terminal may show it, line by line."""
    return "\n".join(map(harmless, cut(message, TOLD).split("\n")))


def inline(message: str) -> str:
    """A text as a part of one line that a terminal may show."""
    return harmless(" ".join(cut(message, TOLD).splitlines()))
