# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A part of ``scripts/checks/hostile.py``: broken files, odd outputs, signals, full disks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]


def test_hostile_inputs_are_refused_and_lose_nothing():
    command = [sys.executable, str(ROOT / "scripts" / "checks" / "hostile.py"), "--every", "29"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert ", 0 bad; exit codes: " in done.stdout
