# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A part of ``scripts/checks/round_trip.py``: two models, all levels; and a fault in a text."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import tvm_distir as td

ROOT = Path(__file__).parents[4]
SCRIPT = ROOT / "scripts" / "checks" / "round_trip.py"


def test_what_is_written_is_read_back():
    command = [sys.executable, str(SCRIPT), "mlp", "vit"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "30 round trips, 0 differ" in done.stdout


def test_a_text_that_says_something_else_is_seen(monkeypatch, capsys):
    """At one level a bias is subtracted."""
    spec = spec_from_file_location("round_trip", SCRIPT)
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    write, changed = td.to_stablehlo, []

    def faulty(mod, partitioning="auto"):
        text = write(mod, partitioning)
        if partitioning == "manual":
            changed.append('"stablehlo.add"(%v' in text)
            return text.replace('"stablehlo.add"(%v', '"stablehlo.subtract"(%v', 1)
        return text

    monkeypatch.setattr(td, "to_stablehlo", faulty)
    monkeypatch.setattr(sys, "argv", ["round_trip.py", "mlp"])
    assert script.main() == 1 and changed == [True]
    message = capsys.readouterr().out
    assert "15 round trips, 1 differ" in message and "stablehlo=NO" in message
