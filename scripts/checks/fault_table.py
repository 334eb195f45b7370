# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Break one rank in every way an engine may meet, and print how each was found.

``python scripts/checks/fault_table.py [--engine threads ...] [--fault killed ...] [--timeout 1.0]
[--json]``

Three ranks run two all-reduces with a fault of one rank (or of all) in between. Every row is a
process of its own, which runs the healthy program, the broken one and the healthy one again. The
table says how long the broken run took, its error, whether the engine was usable again, the exit
code, and what it left behind in ``/dev/shm`` or as processes. Exit code 1 when a row is
not as it should be.

An engine joins by an entry in ``ENGINES``: the faults that apply to it, and the command of a row.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the sources beside this script

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx

import tvm_distir as td
from tvm_distir.core.ir.operators import PACKED_PREFIX, ops
from tvm_distir.execution.runtime.engines.registry import engine as make_engine
from tvm_distir.support.errors.tree import DistIRError

RANKS = 3
BROKEN = 1
LONG_S = 60.0
ROW_S = 240.0  # three runs, each of which may start an MPI job on a busy machine
AGAIN_S = 10.0
ACT = "tvm_distir.fault_table.act"
MODULE = "fault_table"


def _packed(name: str) -> Any:
    return tvm.get_global_func(PACKED_PREFIX + name)


def _raise(x: Any, out: Any) -> None:
    raise ValueError("boom")


def _kill(number: int) -> Callable[[Any, Any], None]:
    return lambda x, out: os.kill(os.getpid(), number)


def _sleep(x: Any, out: Any) -> None:
    time.sleep(LONG_S)


def _other_collective(x: Any, out: Any) -> None:
    whole = tvm.runtime.empty((4 * RANKS,), "float32")
    _packed("all_gather")(x, tvm_ffi.Shape(range(RANKS)), RANKS, 0, whole)


def _reduce(shape: tuple[int, ...], dtype: str, op: int = 0) -> Callable[[Any, Any], None]:
    def act(x: Any, out: Any) -> None:
        y = tvm.runtime.empty(shape, dtype)
        _packed("all_reduce")(y, tvm_ffi.Shape(range(RANKS)), RANKS, op, y)

    return act


def _take_memory(x: Any, out: Any) -> None:
    np.empty(1 << 60, np.uint8)


def _exit(x: Any, out: Any) -> None:
    os._exit(3)


def _crash(x: Any, out: Any) -> None:
    ctypes.string_at(0)


@dataclass(frozen=True)
class Fault:
    """One way to break a rank.

    Attributes
    ----------
    name : str
    act : callable
        What the broken rank does between the two all-reduces, with their operand and result.
    text : str
        What the message must match.
    last : bool
        After the second all-reduce instead.
    interrupts : bool
        Whether the controller is interrupted meanwhile.
    everyone : bool
        Whether all ranks are broken so, and not one alone.
    """

    name: str
    act: Callable[[Any, Any], None]
    text: str
    last: bool = False
    interrupts: bool = False
    everyone: bool = False


_STOPPED = r"DIST0613.*ranks 0, 1, 2 made no progress"
_REDUCES = r"DIST0611 group.*rank 1 called all_reduce"
FAULTS = (
    Fault("worker raises", _raise, r"DIST0612 main: worker 1: ValueError: boom"),
    Fault("out of memory", _take_memory, r"DIST0612 main: worker 1: .*(MemoryError|allocate)"),
    Fault("never arrives", _sleep, r"DIST0613.*waited .* in all_reduce.* for rank 1"),
    Fault("never ends", _sleep, r"DIST0613.*: rank 1 did not end", last=True),
    Fault("other collective", _other_collective, r"DIST0611 group.*rank 1 called all_gather"),
    Fault("other reduction", _reduce((4,), "float32", 3), _REDUCES + r"\(op=max\)"),
    Fault("other shape", _reduce((8,), "float32"), _REDUCES + r".*32 bytes"),
    Fault("other dtype", _reduce((4,), "float16"), _REDUCES + r".*float16"),
    Fault("one call too many", _reduce((4,), "float32"), r"DIST0610.*rank 1 waits", last=True),
    Fault("Ctrl-C", _sleep, r"^KeyboardInterrupt$", interrupts=True),
    Fault("killed", _kill(signal.SIGKILL), r"DIST0615 main: worker 1: .*killed by SIGKILL"),
    Fault("crashes", _crash, r"DIST0615 main: worker 1: .*killed by SIGSEGV"),
    Fault("exits", _exit, r"DIST0615 main: worker 1: .*ended with exit code 3"),
    Fault("stopped", _kill(signal.SIGSTOP), r"DIST0613.*waited .* in all_reduce.* for rank 1"),
    Fault("all stopped", _kill(signal.SIGSTOP), _STOPPED, everyone=True),
)
"""All faults; number 0 of the program is none."""

_ANY_WORKER = tuple(f.name for f in FAULTS[:10])


def _act(x: Any, position: Any, number: Any, last: int, out: Any) -> None:
    """Copy ``x`` to ``out``; the broken rank does what the fault says."""
    out.copyfrom(x.numpy())
    chosen = int(number.numpy()[0])
    if not chosen:
        return
    fault = FAULTS[chosen - 1]
    if fault.last == bool(last) and (fault.everyone or int(position.numpy()) == BROKEN):
        fault.act(x, out)


tvm_ffi.register_global_func(ACT, _act, override=True)


def program() -> Any:
    """The level-5 module: ``main(x, number)`` on three ranks gives 9 x."""
    mesh = td.device_mesh({"a": RANKS})
    io = {"dtype": "float32", "placement": "R", "shape": [4]}
    number = {"index": 1, "name": "number", "dtype": "int64", "placement": "R", "shape": [1]}
    attributes = {
        "dist.io": {
            "mesh": 0,
            "inputs": [{"index": 0, "name": "x", **io}, number],
            "outputs": [{"index": 0, "name": "y", **io}],
        }
    }
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    n = relax.Var("number", relax.TensorType((1,), "int64"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x, n], attributes):
        position = bb.emit(ops.axis_index(mesh, 0))
        y: Any = x
        for last in (0, 1):
            y = bb.emit(ops.all_reduce(y, mesh, [0]))
            args = [y, position, n, tirx.IntImm("int64", last)]
            y = bb.emit(relax.op.call_dps_packed(ACT, args, out_ty=x.ty))
        bb.emit_func_output(y)
    mod = bb.finalize()
    mod.update_global_info("mesh", [mesh])
    return mod


def run_program(engine: Any, fault: Fault | None = None) -> None:
    """Run the program; with a fault it raises, without one the result is checked."""
    number = 0 if fault is None else 1 + FAULTS.index(fault)
    (y,) = engine.run(program(), [np.ones(4, "float32"), np.array([number])])
    if not np.array_equal(y, np.full(4, float(RANKS**2), "float32")):
        raise AssertionError(f"wrong result: {y}")


# ---- a row, in a process of its own -----------------------------------------------------------


def engine_for(name: str, timeout_s: float) -> Any:
    """The engine with a timeout, its workers knowing this module."""
    engine: Any = make_engine(name)
    engine.timeout_s = timeout_s
    engine = engine.for_verification()
    if hasattr(engine, "preload"):
        engine.preload = (MODULE,)
    return engine


def interrupt_soon() -> None:
    """Send this process what Ctrl-C sends, also where it was started deaf to it (with ``&``)."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()


def run_row(name: str, fault: Fault, timeout_s: float) -> int:
    """Run a fault; prints one JSON object and returns the exit code of a program that fails so."""
    run_program(engine_for(name, AGAIN_S))
    if fault.interrupts:
        interrupt_soon()
    start_s = time.monotonic()
    message, code = "no error", 0
    try:
        run_program(engine_for(name, timeout_s), fault)
    except DistIRError as err:
        message, code = str(err), err.exit_code
    except KeyboardInterrupt:
        message, code = "KeyboardInterrupt", 130
    seconds = time.monotonic() - start_s
    run_program(engine_for(name, AGAIN_S))
    print(json.dumps({"message": message, "seconds": seconds, "again": True}), flush=True)
    return code


# ---- the table --------------------------------------------------------------------------------


@dataclass(frozen=True)
class EngineRows:
    """Rows of one engine.

    Attributes
    ----------
    faults : tuple of str
        Names of the faults that apply.
    command : tuple of str
        Before the arguments of a row.
    goes_on : bool
        Whether a row runs the healthy program again after the fault.
    slack_s : float
        How long a run may take beside its timeout.
    """

    faults: tuple[str, ...]
    command: tuple[str, ...] = (sys.executable,)
    goes_on: bool = True
    slack_s: float = 2.0


ENGINES: dict[str, EngineRows] = {
    # It starts its processes for every run.
    "mpi": EngineRows(tuple(f.name for f in FAULTS), slack_s=30.0),
    "threads": EngineRows(_ANY_WORKER),
    # So does this one, and importing PyTorch takes long on a busy machine.
    "torch": EngineRows(tuple(f.name for f in FAULTS), slack_s=90.0),
}


def _named_memory() -> set[str]:
    folder = Path("/dev/shm")
    return {p.name for p in folder.iterdir()} if folder.is_dir() else set()


def _in_use(names: set[str]) -> set[str]:
    """Those of /dev/shm that a running process has mapped: other jobs', not left behind."""
    matches: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            text = maps.read_text(errors="replace")
        except OSError:
            continue
        matches.update(name for name in names if f"/dev/shm/{name}" in text)
    return matches


def _processes_of(group: str) -> list[int]:
    """Processes whose environment names the row's own variable."""
    matches = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if group.encode() in (folder / "environ").read_bytes():
                matches.append(int(folder.name))
        except OSError:
            continue
    return matches


def table_row(name: str, rows: EngineRows, fault: Fault, timeout_s: float) -> dict[str, Any]:
    """Run one row in a process and look at what it leaves behind."""
    before, mark = _named_memory(), f"TVM_DISTIR_FAULT_ROW={os.getpid()}_{time.monotonic_ns()}"
    key, _, value = mark.partition("=")
    row = [str(Path(__file__).resolve()), "--row", fault.name, "--engine", name]
    try:
        done = subprocess.run(
            [*rows.command, *row, "--timeout", str(timeout_s)],
            capture_output=True,
            text=True,
            timeout=ROW_S,
            check=False,
            env={**os.environ, key: value},
        )
        output, code = done.stdout + "\n" + done.stderr, done.returncode
    except subprocess.TimeoutExpired:
        output, code = "the row hangs", -1
    reported: dict[str, Any] = {"message": output.strip(), "seconds": None, "again": False}
    for line in output.splitlines():
        if line.startswith("{"):
            reported = json.loads(line)
    new = _named_memory() - before
    left = sorted(new - _in_use(new))
    orphans = _processes_of(mark)
    bound_s = timeout_s + rows.slack_s
    good = (
        re.search(fault.text, reported["message"], re.DOTALL) is not None
        and code == (130 if fault.interrupts else 1)
        and (reported["again"] or not rows.goes_on)
        and (reported["seconds"] is None or reported["seconds"] < bound_s)
        and not left
        and not orphans
    )
    return {"engine": name, "fault": fault.name, "code": code, "left": left, **reported,
            "orphans": orphans, "good": good}  # fmt: skip


def _text(row: dict[str, Any]) -> str:
    seconds = "" if row["seconds"] is None else f"{row['seconds']:.2f}"
    left = ", ".join([*row["left"], *(f"process {p}" for p in row["orphans"])]) or "nothing"
    message = " ".join(str(row["message"]).split())[:150]
    again = "yes" if row["again"] else "no"
    cells = (row["engine"], row["fault"], seconds, message, row["code"], left, again)
    return "| " + " | ".join(str(c) for c in (*cells, "ok" if row["good"] else "WRONG")) + " |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, or run one row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", nargs="*", default=sorted(ENGINES))
    parser.add_argument("--fault", nargs="*", choices=[f.name for f in FAULTS])
    parser.add_argument("--timeout", type=float, default=1.0)
    parser.add_argument("--row", choices=[f.name for f in FAULTS])
    parser.add_argument("--json", action="store_true")
    options: Any = parser.parse_args(arguments)
    by_name = {f.name: f for f in FAULTS}
    if options.row:
        return run_row(options.engine[0], by_name[options.row], options.timeout)
    rows = []
    if not options.json:
        print("| engine | fault | seconds | error | exit code | left behind | usable again | |")
        print("|--|--|--:|--|--:|--|--|--|")
    for name in options.engine:
        for fault in FAULTS:
            if fault.name in (options.fault or ENGINES[name].faults):
                rows.append(table_row(name, ENGINES[name], fault, options.timeout))
                if not options.json:
                    print(_text(rows[-1]), flush=True)
    if options.json:
        print(json.dumps(rows, indent=2))
    return int(not all(row["good"] for row in rows))


if __name__ == "__main__":
    # Workers import this file by its name: what is registered here is registered there.
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    sys.exit(main())
