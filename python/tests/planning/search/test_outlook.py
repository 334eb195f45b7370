# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What layers say of candidates, against every way to do them: the script's proof, small."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[4] / "scripts" / "checks" / "check_bounds.py"


@pytest.fixture(scope="module")
def proof():
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("check_bounds", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_cuts_within_memory_are_as_even_as_can_be(proof):
    assert proof.cuts(40) == 0


def test_stages_with_device_counts_take_the_least_of_all(proof):
    assert proof.shares(300) == 0


@pytest.mark.parametrize("share", [0.3, 0.6, 1.0])
def test_the_best_of_a_space_is_that_of_all_its_plans(proof, share):
    assert proof.space(12, 7, 24, (1, 2), share) == 0
