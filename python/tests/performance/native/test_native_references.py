# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Oracles that take the place of native functions call no library, which is else required."""

from __future__ import annotations

import pytest

from tests.performance.simulation.hand_crowds import crowded, pipeline
from tests.performance.simulation.hand_programs import SYSTEM, Build, program
from tests.references import using
from tvm_distir.performance.simulation.simulator import simulate
from tvm_distir.support.errors.tree import DependencyError
from tvm_distir.support.native.loader import LIBRARY_VARIABLE


def entry():
    build = Build().param("x", 8).compute("y", "x", 5)
    return simulate(program((("x",), (1,)), main=build.done("y")), SYSTEM)


def crowd():
    return simulate(pipeline(2, dp=2, payload=1000), crowded(), contention=True)


@pytest.mark.parametrize("step", [entry, crowd])
def test_references_need_no_library(step, monkeypatch, tmp_path):
    expected = step()
    monkeypatch.setenv(LIBRARY_VARIABLE, str(tmp_path / "none.so"))
    with using("reference"):
        result = step()
        assert (result.time_s, result.devices) == (expected.time_s, expected.devices)
    with using("native"), pytest.raises(DependencyError, match="DIST0110"):
        step()
