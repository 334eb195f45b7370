# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A part of ``scripts/round_trip.py``: two models, all levels, all forms."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_what_is_written_is_read_back():
    command = [sys.executable, str(ROOT / "scripts" / "round_trip.py"), "mlp", "vit"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "40 round trips, 0 differ" in done.stdout
