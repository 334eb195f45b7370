#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""List the addresses on which running jobs listen: on one host, the loopback address alone.

Usage: scripts/checks/listening_ports.py [ENGINE ...]
A program with collectives runs with each engine in a child process, and the sockets of all its
descendants are read from ``/proc`` while it runs. Prints a line per engine. Exits 1 when a socket
listens on another address than loopback. Engines whose extra is absent are named and left out.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ENGINES = ("virtual", "threads", "mpi", "torch", "xla")
PROGRAM = """
import sys
import tvm_distir as td
mod = td.zoo.gpt(size="tiny", layers=4)
dist = td.distribute(mod, td.planning.make_plan(mod, "megatron", {"tp": 2}))
from tvm_distir.execution.verification.random_inputs import draw_inputs
inputs = draw_inputs(mod, seed=0)
for _ in range(3):
    td.run(dist, inputs, engine=sys.argv[1])
"""
"""Three runs: as long as the sockets of a job must be open to be seen."""

_LISTENS = "0A"
_POLL_S = 0.02


def descendants(pid: int) -> set[int]:
    """Return a process and all that it started, directly or not."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:  # it has ended
            continue
        parents[int(stat.parent.name)] = int(text.rpartition(")")[2].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def listening_sockets(process: int | str = "self") -> dict[str, str]:
    """Return the addresses of the listening TCP sockets of a process's network, by inode."""
    found: dict[str, str] = {}
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process}/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENS:
                found[fields[9]] = address(fields[1])
    return found


def address(text: str) -> str:
    """Return an address and port of ``/proc/net`` as they are written."""
    host, port = text.split(":")
    words = [bytes.fromhex(host[i : i + 8])[::-1] for i in range(0, len(host), 8)]
    raw = b"".join(words)
    if len(raw) == 4:
        return f"{'.'.join(map(str, raw))}:{int(port, 16)}"
    if raw[:12] == bytes(10) + b"\xff\xff":
        return f"{'.'.join(map(str, raw[12:]))}:{int(port, 16)}"
    return f"[{raw.hex(':', 2)}]:{int(port, 16)}"


def is_loopback(where: str) -> bool:
    """Return whether only this host reaches an address."""
    return where.startswith(("127.", f"[{'0000:' * 7}0001]"))


def open_sockets(pid: int) -> set[str]:
    """Return the inodes of the sockets of a process; none of one that has ended."""
    inodes = set()
    for file in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            target = str(file.readlink())
        except OSError:
            continue
        inodes.add(target.removeprefix("socket:[").removesuffix("]"))
    return inodes


def listened(process: subprocess.Popen[bytes]) -> set[str]:
    """Return the addresses on which a process and its descendants listen until its end."""
    seen: set[str] = set()
    while process.poll() is None:
        sockets = listening_sockets()
        for pid in descendants(process.pid):
            seen |= {sockets[inode] for inode in open_sockets(pid) & sockets.keys()}
        time.sleep(_POLL_S)
    return seen


def main(engines: list[str]) -> int:
    """Run the engines; returns the exit code."""
    bad = 0
    for engine in engines or ENGINES:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, engine],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        seen = listened(process)
        message = process.stderr.read().decode() if process.stderr else ""
        if process.returncode:
            absent = "DIST0111" in message or "DIST0113" in message
            bad += not absent
            print(f"{engine}: {'absent' if absent else 'FAILED'}: {message.strip()[-300:]}")
            continue
        other = sorted(where for where in seen if not is_loopback(where))
        bad += bool(other)
        shown = ", ".join(other) if other else "none"
        print(f"{engine}: {len(seen)} listening sockets, on other addresses than loopback: {shown}")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
