# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""PrimFuncs that tests share are those that TVM makes anew."""

from __future__ import annotations

import re
from typing import Any

import pytest
import tvm
from tvm import relax, te, topi
from tvm.relax import block_builder

import tvm_distir as td
from tests import quick_kernels

pytestmark = pytest.mark.skipif(
    not tvm.__version__.startswith("0.27."), reason="replaces functions of TVM 0.27"
)


def _legalized(kind: str) -> str:
    """Return the text of a legalized step, but for the numbers of offsets of buffers.

    TVM's printer numbers the offsets of the operands of a function in the order of addresses.
    """
    step = td.train_step(td.zoo.build(kind, {"size": "tiny", "layers": 1}), optimizer="adam")
    return re.sub(r"elem_offset_\d+", "elem_offset", relax.transform.LegalizeOps()(step).script())


@pytest.mark.parametrize("kind", ["gpt", "llama", "moe"])
def test_modules_have_the_prim_funcs_of_tvm(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert block_builder.gen_call_tir_inputs is quick_kernels.quick_call_tir_inputs
    twice = [_legalized(kind) for _ in range(2)]
    monkeypatch.setattr(block_builder, "gen_call_tir_inputs", quick_kernels._make)
    assert twice == [_legalized(kind)] * 2


def _prim_func(function: Any, *values: Any) -> Any:
    return block_builder.gen_call_tir_inputs(function, *values)[0]


def _var(shape: tuple[int, ...], dtype: str = "float32", name: str = "x") -> relax.Var:
    return relax.Var(name, relax.TensorType(shape, dtype))


def test_equal_calls_share_a_prim_func_and_others_do_not() -> None:
    first = _prim_func(topi.sum, _var((2, 3)), 1)
    assert _prim_func(topi.sum, _var((2, 3)), 1).same_as(first)
    others = [
        _prim_func(topi.sum, _var((2, 3)), 0), _prim_func(topi.sum, _var((2, 3)), 1, True),
        _prim_func(topi.sum, _var((3, 3)), 1), _prim_func(topi.max, _var((2, 3)), 1),
        _prim_func(topi.sum, _var((2, 3), "float16"), 1),
        _prim_func(topi.sum, _var((2, 3), name="y"), 1),
    ]  # fmt: skip
    assert len({other.script() for other in [first, *others]}) == 7


def test_values_that_a_function_holds_distinguish_it() -> None:
    def scaled(factor: float) -> Any:
        return lambda x: te.compute(x.shape, lambda i: x[i] * tvm.tirx.const(factor, x.dtype))

    first, second = (_prim_func(scaled(factor), _var((4,))) for factor in (2.0, 3.0))
    assert _prim_func(scaled(2.0), _var((4,))).same_as(first)
    assert first.script() != second.script()


def test_operands_are_those_of_the_call() -> None:
    x, y = _var((4,)), _var((4,))
    for pair in ([x, y], [y, x], [x, x]):
        assert [*block_builder.gen_call_tir_inputs(topi.add, *pair)[1]] == pair


def test_a_function_that_holds_itself_is_called_anew() -> None:
    def doubled(x: Any, times: int) -> Any:
        return x if times == 0 else doubled(topi.add(x, x), times - 1)

    first, second = (_prim_func(doubled, _var((4,)), 2) for _ in range(2))
    assert first.script() == second.script() and not first.same_as(second)
