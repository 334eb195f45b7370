# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Benchmarks measure the rows that are named, and no name is ignored."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest


def test_rows_are_named_or_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(root / "benchmarks"))
    measure = importlib.import_module("measure")
    rows = [SimpleNamespace(name=name) for name in ("dp", "tp", "fsdp")]
    options = measure.parser("A benchmark.")
    measure.add_rows(options, rows)
    assert options.parse_args([]).rows == rows
    assert options.parse_args(["--rows", "fsdp,dp"]).rows == [rows[0], rows[2]]
    with pytest.raises(SystemExit) as caught:
        options.parse_args(["--rows", "dp,pp"])
    assert caught.value.code == 2
    assert "no row pp; there are: dp, tp, fsdp" in capsys.readouterr().err
