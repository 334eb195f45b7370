# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Local functions that are called become private functions; those that escape are refused."""

from __future__ import annotations

import pytest
from tvm import relax

import tvm_distir as td
from tests.core.forms.parsing import COLUMNS, ROWS, agrees, main, parsed, refusal

CALLED = """
@R.function
def inner(a: R.Tensor((8, 16), "float32")) -> R.Tensor((8, 16), "float32"):
    b = R.matmul(a, w)
    return b
h = inner(x)
y = inner(h)
"""
NESTED = """
@R.function
def outer(a: R.Tensor((8, 16), "float32")) -> R.Tensor((8, 16), "float32"):
    @R.function
    def inner(c: R.Tensor((8, 16), "float32")) -> R.Tensor((8, 16), "float32"):
        d = R.add(c, a)
        return d
    b = inner(R.matmul(a, w))
    return b
y = outer(x)
"""


@pytest.mark.parametrize("plan", [ROWS, COLUMNS], ids=["rows", "columns"])
@pytest.mark.parametrize("text", [CALLED, NESTED, CALLED.replace("matmul(a, w)", "nn.relu(a)")])
@pytest.mark.parametrize("lifted", [False, True], ids=["local", "lifted"])
def test_a_closure_that_is_called_is_a_private_function(
    text: str, lifted: bool, plan: td.Plan
) -> None:
    mod = parsed(main(text))
    agrees(relax.transform.LambdaLift()(mod) if lifted else mod, plan)


def test_calls_of_one_closure_stay_calls_of_one_function() -> None:
    dist = td.distribute(parsed(main(CALLED)), ROWS)
    assert sorted(str(gv.name_hint) for gv in dist.functions) == ["main", "main_inner"]


def test_a_closure_that_is_returned_is_refused_by_name() -> None:
    text = """
    @R.function
    def inner(a: R.Tensor((8, 16), "float32")) -> R.Tensor((8, 16), "float32"):
        b = R.matmul(a, w)
        return b
    y = (inner, inner(x))
    """
    error = refusal(parsed(main(text)), ROWS)
    assert (error.code, error.location) == ("DIST0412", "main/inner")
    assert "is read as a value" in error.what


def test_a_closure_that_calls_itself_is_refused_by_name() -> None:
    text = """
    @R.function
    def inner(a: R.Tensor((8, 16), "float32")) -> R.Tensor((8, 16), "float32"):
        b = inner(a)
        return b
    y = inner(x)
    """
    error = refusal(parsed(main(text)), ROWS)
    assert (error.code, error.location) == ("DIST0412", "main/inner")
    assert "calls itself" in error.what
