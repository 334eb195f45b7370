#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run ten programs on the engine xla in a JAX job of two processes with two devices each.

Usage: scripts/checks/jax_processes.py [--folder FOLDER] [--programs NAME ...]
Needs jax. The programs are those of ``job_cases.py`` with one mesh; FOLDER may be that of
``torchrun_programs.py``, which then has the results of ``virtual`` already. Both processes compare
all results with those, within 1e-4 of the largest value of an array (5e-2 in 16 bits, because XLA
rounds fewer intermediate results). Prints a line per program. Exits 1 when one differs.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from job_cases import CASES
from torchrun_programs import case_folder, difference, free_port, prepare

import tvm_distir as td

PROCESSES, HALF_TOLERANCE = 2, 5e-2
PROGRAMS = (
    "gpt megatron", "gpt megatron sequence", "gpt context ring", "gpt of 3 uneven",
    "llama bfloat16", "vit data and tensor", "bert data and tensor", "moe experts",
    "gpt step zero 3 overlap", "mlp step uneven",
)  # fmt: skip
MEMBER = "TVM_DISTIR_JAX_MEMBER"
"""The variable that gives a process its number, the port, the folder and the programs."""


def compare_all(process: int, port: int, folder: Path, names: list[str]) -> None:
    """Run the programs as a process of the job; prints a line of JSON per program."""
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", PROCESSES, process)
    for name in names:
        _, inputs, expected = pickle.loads(
            (case_folder(folder, name) / "values.pickle").read_bytes()
        )
        dist, _ = CASES[name]()
        try:
            matches: float | str = difference(
                td.run(dist, inputs, engine="xla"), expected, HALF_TOLERANCE
            )
        except td.support.DistIRError as error:
            matches = str(error)
        print(json.dumps({"name": name, "process": process, "found": matches}), flush=True)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--programs", nargs="*", default=list(PROGRAMS))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tvm-distir-jax-") as scratch:
        folder = options.folder or Path(scratch)
        prepare(folder, options.programs)
        variables = {
            "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path),
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={4 // PROCESSES}",
        }
        port = free_port()
        started = [
            subprocess.Popen(
                [sys.executable, __file__],
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ
                | variables
                | {MEMBER: json.dumps([process, port, str(folder), options.programs])},
            )
            for process in range(PROCESSES)
        ]
        lines = [line for job in started for line in job.communicate()[0].splitlines()]
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    failed = sum(job.returncode != 0 for job in started)
    for name in options.programs:
        matches = [row["found"] for row in rows if row["name"] == name]
        right = len(matches) == PROCESSES and all(isinstance(x, float) and x <= 1 for x in matches)
        failed += not right
        print(f"{'ok    ' if right else 'FAILED'} {name}: difference over tolerance {matches}")
    return int(failed > 0)


if __name__ == "__main__":
    if MEMBER in os.environ:
        number, port, folder, names = json.loads(os.environ[MEMBER])
        sys.exit(compare_all(number, port, Path(folder), names))
    sys.exit(main())
