#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write the traces that tests of ``td.check`` read where torch is not installed.

Usage: scripts/checks/store_traces.py
Traces some programs of python/tests/execution/checking/{,further_}programs.py, right and with
faults, to the folder ``traces`` beside it. Needs the extra torch.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2] / "python"
STORED = (
    ("tensor and data parallel", ""),
    ("tensor and data parallel", "dp over tp"),
    ("tensor and data parallel", "no g"),
    ("1F1B", ""),
    ("1F1B", "deadlock"),
    ("tied embedding", ""),
    ("tied embedding", "not summed"),
    ("masked mean", "local counts"),
)


def main() -> None:
    """Trace and write."""
    sys.path.insert(0, str(TESTS))
    from tests.execution.checking.further_programs import FURTHER
    from tests.execution.checking.programs import CASES
    from tvm import ir

    import tvm_distir as td

    folder = TESTS / "tests" / "execution" / "checking" / "traces"
    folder.mkdir(exist_ok=True)
    for name, bug in STORED:
        case = {**CASES, **FURTHER}[name]
        programs = td.trace_ranks(case.of(bug), case.ranks, mesh=case.mesh)
        for kind, mod in (
            (bug or "right", programs),
            ("reference", td.trace_ranks(case.single, 1)),
        ):
            file = re.sub(r"\W+", "_", f"{name}.{kind}")
            (folder / f"{file}.json").write_text(ir.save_json(mod) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
