# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Damaged files: one message, exit code 1, nothing written, bounded time and memory."""

from __future__ import annotations

import resource
import time

import pytest

from tests.interface.command.cli_inputs import MLP
from tests.interface.command.damaged_files import MIB, MODELS, PLAN, WEIGHTS, content
from tvm_distir.interface.command import main
from tvm_distir.models.stablehlo import sizes

CASES = [
    *((f"m.{kind}", name, data) for kind, files in MODELS.items() for name, data in files.items()),
    *((f"{name}", "weights", data) for name, data in WEIGHTS.items()),
    *(("plan.json", name, data) for name, data in PLAN.items()),
]
MOST_S, MOST_BYTES = 10.0, 256 * MIB
GOOD = '{"schema_version": 1, "meshes": {"m": {"axes": {"a": 2}}}, "rules": []}'


@pytest.mark.parametrize(("file", "name", "data"), CASES, ids=[f"{f}-{n}" for f, n, _ in CASES])
def test_it_is_refused(file, name, data, tmp_path, monkeypatch, capfd):
    folder = tmp_path / "in"
    folder.mkdir()
    (tmp_path / "outside.bin").write_bytes(b"\x08" + b"\0" * 15)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("TVM_DISTIR_DEBUG", raising=False)
    monkeypatch.setattr(sizes, "MAX_OPERATIONS", 2000)  # the real one takes 20 s to reach
    words = ["convert", file, "out.json"]
    if name == "weights" or file == "plan.json":
        (folder / "mlp.py").write_text(MLP, encoding="utf-8")
        (folder / "plan.json").write_text(GOOD, encoding="utf-8")
        words = ["deploy", "mlp.py", "--plan", "plan.json", "-o", "out", "--weights", file]
        words = words[: 6 if file == "plan.json" else 8]
    (folder / file).write_bytes(content(data))
    before = sorted(folder.rglob("*")), (folder / file).stat().st_size
    started, stored = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    code = main(words)
    took_s = time.process_time() - started
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - stored)
    out, err = capfd.readouterr()
    lines = [line for line in err.splitlines() if line.startswith("DIST")]
    assert (code, len(lines), out) == (1, 1, ""), err
    assert not lines[0].startswith("DIST09") and lines[0].endswith("]") and "Traceback" not in err
    assert len(lines[0]) < 1000
    assert before == (sorted(folder.rglob("*")), (folder / file).stat().st_size)
    assert took_s < MOST_S and grown < MOST_BYTES
