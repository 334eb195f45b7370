# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Six kinds of users from a fresh clone to a first answer: wall time and CPU time of each step.

``python scripts/checks/first_answers.py FOLDER`` clones this repository to FOLDER, runs the first
command of the README, and then one command per kind of user in the environment that it made (the
JAX user's adds the extra ``jax``). Exits 1 if a command fails or takes more than 60 s of CPU time;
setting up and the extra are not counted.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
CPU_LIMIT_S = 60.0

WORKSTATION = {
    "device": "rtx-4090",
    "network": {"intra_node": {"name": "pcie", "devices_per_node": 2, "bandwidth_GBps": 25}},
}

COMMAND = ".venv/bin/tvm-distir"
PYTHON = ".venv/bin/python"
WALKS: dict[str, list[str]] = {
    "TVM engineer": [PYTHON, "examples/sequential_passes.py"],
    "performance engineer": [COMMAND, "hf:llama-3.1-8b", "--gpus", "8xh100", "--train"],
    "researcher": [PYTHON, "examples/custom_system.py"],
    "workstation owner": [COMMAND, "hf:llama-3.2-1b", "--gpus", "2xworkstation.json"],
    "JAX user": [PYTHON, "examples/jax_model.py"],
    "maintainer": ["scripts/test", "-m", "quick", "-n", "0", "python/tests/core/passes"],
}
EXTRAS = {"JAX user": ["jax"], "maintainer": ["test", "dev"]}


def main() -> int:
    """Run the walks and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="a folder that does not exist: the clone")
    parser.add_argument("--show", action="store_true", help="print what each command prints")
    options = parser.parse_args()
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(options.folder)], check=True)
    (options.folder / "workstation.json").write_text(json.dumps(WORKSTATION))
    print(f"{'step':<32} {'wall, s':>8} {'CPU, s':>8}  command")
    failures = _step(options, "set-up (README command 1)", ["scripts/demo"], limit_s=None)
    for user, command in WALKS.items():
        if user in EXTRAS:
            setup = ["scripts/setup", *EXTRAS[user]]
            failures += _step(options, f"extras of the {user}", setup, limit_s=None)
        failures += _step(options, user, command, limit_s=CPU_LIMIT_S)
    return int(failures > 0)


def _step(
    options: argparse.Namespace, name: str, command: list[str], *, limit_s: float | None
) -> int:
    """Run one command in the clone and print its times; return 1 if it failed or took too long."""
    before, started = _children_cpu_s(), time.perf_counter()
    done = subprocess.run(command, cwd=options.folder, capture_output=True, text=True)
    wall_s, cpu_s = time.perf_counter() - started, _children_cpu_s() - before
    verdict = "" if done.returncode == 0 else f"  exit code {done.returncode}"
    if limit_s is not None and cpu_s > limit_s:
        verdict += f"  over {limit_s:.0f} s of CPU time"
    print(f"{name:<32} {wall_s:8.1f} {cpu_s:8.1f}  {' '.join(command)}{verdict}", flush=True)
    if options.show or verdict:
        print(done.stdout, done.stderr, sep="\n", flush=True)
    return int(bool(verdict))


def _children_cpu_s() -> float:
    """Return the user and system time of all ended child processes, in seconds."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    sys.exit(main())
