# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The compiler runs with the rest of the package absent, and stays of a size that TVM could take.

TVM's own tests of DistIR run the same way with ``scripts/upstream/core_alone.py --tvm CHECKOUT``;
they are not part of a wheel.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.repo.code_lines import count_by_folder
from tvm_distir.support.native.loader import LIBRARY_VARIABLE, library_path

ROOT = Path(__file__).resolve().parents[3]
MOST_LINES = 21_000


def test_the_passes_work_without_the_other_wings() -> None:
    """The texts of the four passes, in a package of ``core`` and ``support`` only."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "upstream" / "core_alone.py")],
        env={**os.environ, LIBRARY_VARIABLE: str(library_path())},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "4 texts are equal; loaded: core, support\n"


def test_the_compiler_is_small_enough_to_take() -> None:
    counts = count_by_folder(ROOT / "tvm_distir")
    lines = sum(n for folder, n in counts.items() if folder.startswith("tvm_distir.core"))
    assert 10_000 < lines <= MOST_LINES
