# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Steps of the recipes of ``scripts/checks/recipe_exchanges.py``, at tiny sizes, on devices."""

from __future__ import annotations

import pytest

from tests.docs.loaded_script import loaded_script

RECIPES = loaded_script("recipe_exchanges", "checks")
CHOSEN = (1, 30, 35)
"""ZeRO in tensor parallelism, that with context parallelism, and context parallelism in stages."""


@pytest.mark.parametrize("number", CHOSEN)
def test_a_recipe_equals_one_device(number):
    assert RECIPES.executed(number, layers=1, system="h100")


@pytest.mark.nightly
@pytest.mark.parametrize("number", sorted({*range(len(RECIPES.recipes()))} - {*CHOSEN}))
def test_each_other_recipe_equals_one_device(number):
    assert RECIPES.executed(number, layers=1, system="h100")


def test_there_are_forty():
    assert len(RECIPES.recipes()) == 40
