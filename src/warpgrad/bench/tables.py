"""The record of a benchmark as tables: for the terminal, and as text between two marks of a page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warpgrad.engine.files import write_bytes
from warpgrad.errors import WarpgradError

BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
MEGABYTE = 1e6


@dataclass(frozen=True)
class Columns:
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(record: Mapping[str, Any]) -> list[Columns]:
    """One table of ratios, and one each of memory and of the replay buffer where they were measured."""
    found = []
    if record["figures"] or record["absent"]:
        found.append(_ratios(record))
    if "memory" in record:
        found.append(_memory(record["memory"]))
    if "replay" in record:
        found.append(_replay(record["replay"]))
    return found


def conditions(record: Mapping[str, Any]) -> str:
    """What the figures were made on, in one sentence."""
    machine, versions = record["hardware"], record["versions"]
    size = "small networks, a trial" if record["quick"] else "full size"
    return (
        f"{machine['cpu']}, {machine['threads']} thread, torch {versions['torch']}, warpgrad {versions['warpgrad']}; "
        f"{size}; medians of {record['repetitions']} interleaved repetitions [smallest, largest]."
    )


def markdown(record: Mapping[str, Any]) -> str:
    """All tables as text."""
    lines = [conditions(record), ""]
    lines += [f"{name}: {words}." for name, words in record["sizes"].items()]
    for table in tables(record):
        lines += ["", f"**{table.title}**", "", _line(table.header), _line(("---",) * len(table.header))]
        lines += [_line(row) for row in table.rows]
    return "\n".join(lines) + "\n"


def write_page(path: Path, record: Mapping[str, Any]) -> None:
    """Put the tables between the two marks of a page; all else in it stays."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise WarpgradError(f"{path} has no place for the tables: it needs a line '{BEGIN}' and then a line '{END}'.")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    write_bytes(path, f"{before}{BEGIN}\n\n{markdown(record)}\n{END}{after}".encode())


def _ratios(record: Mapping[str, Any]) -> Columns:
    header = ("row", "what", "ms", "against", "ms", "cost ratio", "target", "")
    rows = []
    for one in record["figures"]:
        ratio, target = one["ratio"], one["at_most"]
        rows.append(
            (
                one["row"],
                one["what"],
                f"{one['milliseconds']['median']:.3g}",
                one["against"],
                f"{one['milliseconds_against']['median']:.3g}",
                f"{ratio['median']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]",
                "" if target is None else f"≤ {target:.2f}",
                {True: "met", False: "missed", None: ""}[one["met"]],
            )
        )
    rows += [("maml", "MAML", "", name, "", "absent", "", reason) for name, reason in record["absent"].items()]
    return Columns("Cost per (task, step), in units of what stands beside it: less is better", header, tuple(rows))


def _memory(memory: Mapping[str, Any]) -> Columns:
    rows = []
    for peak in memory["peaks"]:
        base = next(one["bytes"] for one in memory["peaks"] if one["method"] == peak["method"])
        grown = (peak["bytes"] - base) / peak["theta_bytes"]
        rows.append((peak["method"], str(peak["steps"]), f"{peak['bytes'] / MEGABYTE:.0f}", f"{grown:.1f}"))
    verdict = "missed" if memory["online_grows"] else "met"
    title = f"Peak memory of a meta-step against K; no growth for online: {verdict}"
    return Columns(title, ("method", "K", "MB", "more than at the smallest K, in θ"), tuple(rows))


def _replay(replay: Mapping[str, Any]) -> Columns:
    rows = tuple(
        (place, f"{replay['write'][place]['median']:.3g}", f"{replay['read'][place]['median']:.3g}")
        for place in replay["write"]
    )
    title = f"Replay buffer of conv: {replay['entry_bytes']:,} bytes per entry; wall-clock ms per entry"
    return Columns(title, ("where", "write", "read back"), rows)


def _line(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cells) + " |"
