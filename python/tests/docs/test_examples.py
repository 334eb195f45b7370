# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The examples run as scripts, and print that they compute what they should."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.child_processes import child_environment

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"
PRINTED = {
    "two_meshes": r"equal to one device, bit by bit: True",
    "sequential_passes": r'"tp: P"\)(?s:.*)verified: ',
    "custom_rule": r"equal: True\ncollectives: 0",
    "custom_strategy": r"dim 0: \d+ us(?s:.*)dim 1: \d+ us",
    "custom_system": r"12\.5 GB/s per adapter: (?s:.*)  50 GB/s",
    "search_plan": r"the best plan takes \d+ us and computes the same",
    "serve_decoder": r"equal: True",
    "jax_model": r"equal: True",
    "train_torchrun": r"loss ([\d.]+) -> ([\d.]+)",
}
"""A pattern of what each example prints."""
PACKAGES = {"jax_model": "jax", "train_torchrun": "torch"}
ALONE = ("custom_rule", *PACKAGES)
"""Examples in processes of their own: rules and packages remain in a process."""


def test_every_example_is_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(PRINTED)


@pytest.mark.parametrize("name", [name for name in PRINTED if name not in ALONE])
def test_an_example_runs(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(EXAMPLES / f"{name}.py")
    monkeypatch.setattr(sys, "argv", [path])
    runpy.run_path(path, run_name="__main__")
    printed = capsys.readouterr().out
    assert re.search(PRINTED[name], printed), printed[-2000:]


@pytest.mark.parametrize("name", ALONE)
def test_an_example_runs_alone(name: str) -> None:
    if name in PACKAGES:
        pytest.importorskip(PACKAGES[name])
    job = ["-m", "torch.distributed.run", "--nproc-per-node", "2"] if "torchrun" in name else []
    run = subprocess.run(
        [sys.executable, *job, str(EXAMPLES / f"{name}.py")],
        env=child_environment(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    match = re.search(PRINTED[name], run.stdout)
    assert match is not None, run.stdout[-2000:]
    if name == "train_torchrun":
        assert float(match[2]) < float(match[1]) / 2
