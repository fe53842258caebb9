"""Prints what the benchmarks are about: ratios between the package and its yardsticks."""

from __future__ import annotations

import pytest

#: Means in seconds by what was measured.
MEANS: dict[str, float] = {}
#: Rows that one measurement of a name read.
ROWS: dict[str, int] = {}
#: The same of going there and back.
CARRIED: dict[str, int] = {}
#: Median and 99th percentile of a command's round trip in seconds, by the size of frames and whether the node sends them.
DELAYS: dict[tuple[str, str], tuple[float, float]] = {}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line a ratio."""
    if not MEANS and not DELAYS:
        return
    terminalreporter.section("ratios")
    for name in sorted(ROWS):
        ours = MEANS.get(f"{name}: to_arrow")
        if ours is None:
            continue
        terminalreporter.write_line(f"{name} rows to Arrow: {ROWS[name] / ours:,.0f} rows/s")
        for other, what in (("ctypes", "read column by column with ctypes"), ("ctypes to Arrow", "the same, then made Arrow")):
            if theirs := MEANS.get(f"{name}: {other}"):
                terminalreporter.write_line(f"  {what}: {ROWS[name] / theirs:,.0f} rows/s, ratio {theirs / ours:.2f}")
    for name in sorted(CARRIED):
        ours, flight = MEANS.get(f"{name}: there and back"), MEANS.get(f"{name}: flight")
        if ours and flight:
            terminalreporter.write_line(
                f"{name} rows submitted, consumed, acknowledged: {CARRIED[name] / ours:,.0f} rows/s;"
                f" Arrow Flight do_put and do_get: {CARRIED[name] / flight:,.0f} rows/s, ratio of ours to theirs {flight / ours:.2f}"
            )
        read, opened = MEANS.get(f"{name}: delivery"), MEANS.get(f"{name}: open_stream")
        if read and opened:
            terminalreporter.write_line(
                f"{name} delivery to pyarrow: {read * 1e6:,.0f} us; open_stream and validate(full=True): {opened * 1e6:,.0f} us,"
                f" ratio {read / opened:.2f}"
            )
    if (growth := MEANS.get("growth")) is not None:
        terminalreporter.write_line(f"a consumer held for 1,000,000 rows: {growth / 1024:+,.0f} KiB")
    command, echo = MEANS.get("command"), MEANS.get("echo")
    if command and echo:
        terminalreporter.write_line(
            f"a command's round trip: {command * 1e6:,.0f} us; a grpcio unary echo: {echo * 1e6:,.0f} us, ratio {command / echo:.2f}"
        )
    for name, what in DELAYS:
        if what == "flooded" and (name, "quiet") in DELAYS:
            quiet, flooded = DELAYS[name, "quiet"], DELAYS[name, "flooded"]
            added = [1000 * (behind - alone) for behind, alone in zip(flooded, quiet)]
            terminalreporter.write_line(
                f"a reply behind a flood of {name} frames: {added[0]:+.2f} ms at the median, {added[1]:+.2f} ms at the 99th percentile"
                f" (quiet: {1000 * quiet[0]:.2f} and {1000 * quiet[1]:.2f} ms)"
            )
