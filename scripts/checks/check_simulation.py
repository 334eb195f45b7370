#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Check the simulator's kernels: every start of random programs against their flat task graphs.

Usage: scripts/checks/check_simulation.py [--functions N] [--pipelines N] [--meetings N]
--functions runs N random hierarchical functions (default 2000): compute and communication that
waits, is started, or blocks; calls of calls; a host that issues; --pipelines N random pipelines
(default 300) of five schedules with stages of such functions and messages of any duration. Each is
flattened op by op, scheduled by the event loop, and every start compared, of the native kernels
and, up to 1500 ops, of their references in NumPy. --meetings N random pipelines (default 300) run
on links that are often full: without loads as ever, with loads the native kernel as its reference.
Prints "N programs ... W differ"; exits 1 when something differs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2] / "python"


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--functions", type=int, default=2000, metavar="N")
    parser.add_argument("--pipelines", type=int, default=300, metavar="N")
    parser.add_argument("--meetings", type=int, default=300, metavar="N")
    options = parser.parse_args()
    sys.path.insert(0, str(TESTS))
    from tests.performance.native.simulation_proof import (
        differing_functions,
        differing_meetings,
        differing_pipelines,
    )

    wrong = []
    for name, count, prove in (
        ("functions", options.functions, differing_functions),
        ("pipelines", options.pipelines, differing_pipelines),
        ("meetings", options.meetings, differing_meetings),
    ):
        done, result = prove(range(count))
        print(f"{done} {name}: {len(result)} differ")
        wrong += result
    for line in wrong[:20]:
        print(f"  {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
