#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run 40 deployed programs under torchrun, as a node of 4 and as 2 nodes of 2, against virtual.

Usage: scripts/checks/torchrun_programs.py [--folder FOLDER] [--programs NAME ...]
Needs torch. The programs of ``job_cases.py`` are deployed, each with inputs and the results of
the engine ``virtual``; those that FOLDER has already are not deployed again. Then torchrun starts
four processes, once by one agent and once by two agents that meet over loopback (c10d). They load
each folder and run it twice: with ``reduce="ordered"``, whose results must have the bits of
``virtual``, and with ``reduce="library"``, whose results may differ by 1e-4 of the largest value of
an array (2e-2 in 16 bits). Prints a line per program, with the collectives of process 0 and the
difference over the tolerance. Exits 1 when one differs.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from job_cases import CASES
from tests.quick_compilation import QUICK_TARGET

import tvm_distir as td
from tvm_distir.execution.runtime.program.joining import same_bits

JOBS = {"1 x 4": 1, "2 x 2": 2}
"""The number of agents of torchrun, by the name of the job."""
PROCESSES, TIMEOUT_S = 4, 120.0
FOLDER = "TVM_DISTIR_PROGRAMS"
"""The variable that tells the processes of a job where the programs are."""


def case_folder(folder: Path, name: str) -> Path:
    """Return the folder of a program."""
    return folder / name.replace(" ", "_")


def free_port() -> int:
    """Return a port of this machine that no process uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def prepare(folder: Path, names: list[str]) -> None:
    """Deploy programs that the folder lacks, with inputs and the results of ``virtual``."""
    for name in names:
        place = case_folder(folder, name)
        if (place / "values.pickle").is_file():
            continue
        dist, inputs = CASES[name]()
        with QUICK_TARGET:
            td.deploy(dist, place, force=True)
        results = td.load(place).run(inputs, engine="virtual")
        (place / "values.pickle").write_bytes(pickle.dumps((name, inputs, results)))


def difference(results: list[Any], expected: list[Any], half_tolerance: float = 2e-2) -> float:
    """Return the largest difference over the tolerance; infinite for other shapes or types."""
    worst = 0.0
    for a, b in zip(results, expected, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            return float("inf")
        if same_bits(a, b):
            continue
        tolerance = half_tolerance if a.dtype.itemsize == 2 else 1e-4
        x, y = a.astype("float64"), b.astype("float64")
        worst = max(worst, float(np.abs(x - y).max() / (tolerance * np.abs(y).max())))
    return worst


def is_close(matches: str | float) -> bool:
    """Return whether the results of a run are within the tolerance."""
    return matches == "same bits" or (isinstance(matches, float) and matches <= 1)


def serve_all(folder: Path) -> None:
    """Run all programs as a process of a job; process 0 prints a line of JSON per program."""
    import torch

    from tvm_distir.execution.runtime.engines.torch.engine import TorchEngine

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    for place in sorted(path.parent for path in folder.glob("*/values.pickle")):
        name, inputs, expected = pickle.loads((place / "values.pickle").read_bytes())
        program, row = td.load(place), {"name": name}
        for reduce in ("ordered", "library"):
            engine = TorchEngine(TIMEOUT_S, reduce, check=reduce == "ordered")
            try:
                results = program.run(inputs, engine=engine)
            except td.support.DistIRError as error:
                row[reduce] = str(error)
                continue
            same = all(same_bits(a, b) for a, b in zip(results, expected, strict=True))
            row[reduce] = "same bits" if same else round(difference(results, expected), 7)
            row["collectives"] = sum(call.count for call in engine.collectives)
        if torch.distributed.get_rank() == 0:
            print(json.dumps(row), flush=True)
    torch.distributed.destroy_process_group()


def start(folder: Path, agents: int) -> list[dict[str, Any]]:
    """Start a job of four processes by a number of agents; returns the rows of process 0."""
    command = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={agents}"]
    command += [f"--nproc-per-node={PROCESSES // agents}", "--rdzv-backend=c10d"]
    command += [f"--rdzv-endpoint=127.0.0.1:{free_port()}", __file__]
    paths = os.pathsep.join(path or "." for path in sys.path)
    variables = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", FOLDER: str(folder)}
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | variables)
        for _ in range(agents)
    ]
    message = "".join(agent.communicate()[0] for agent in started)
    if any(agent.returncode for agent in started):
        raise SystemExit(f"torchrun failed:\n{message}")
    return [json.loads(line) for line in message.splitlines() if line.startswith("{")]


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--programs", nargs="*", default=list(CASES))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tvm-distir-programs-") as scratch:
        folder = options.folder or Path(scratch)
        prepare(folder, options.programs)
        failed = 0
        for job, agents in JOBS.items():
            rows = start(folder, agents)
            for row in rows:
                right = row["ordered"] == "same bits" and is_close(row["library"])
                failed += not right
                print(
                    f"{'ok    ' if right else 'FAILED'} {job} {row['name']}: "
                    f"{row.get('collectives', 0)} collectives, ordered {row['ordered']}, "
                    f"library {row['library']}"
                )
            failed += len(rows) < len(options.programs)
            bits = sum(row["ordered"] == "same bits" for row in rows)
            print(f"{job}: {len(rows)} programs, {bits} with the bits of virtual", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(serve_all(Path(os.environ[FOLDER])) if FOLDER in os.environ else main())
