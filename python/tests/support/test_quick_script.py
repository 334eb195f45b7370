# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What tests parse TVMScript with gives the results of Python and of TVM."""

from __future__ import annotations

import inspect

import pytest
import tvm
from tvm.script import from_source
from tvm.script.parser.core import evaluator

import tvm_distir as td
from tests import quick_script

pytestmark = pytest.mark.skipif(
    not tvm.__version__.startswith("0.27."), reason="replaces functions of TVM 0.27"
)


def test_frames_are_those_of_python() -> None:
    found, expected = eval("inspect.stack(), inspect.getouterframes(inspect.currentframe())")
    assert inspect.stack is quick_script.quick_stack
    for one, other in zip(found[1:], expected[1:], strict=True):
        assert one.frame is other.frame and one[1:4] == other[1:4]
        assert one.code_context == other.code_context or other.code_context is None


def test_modules_are_those_of_the_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = td.distribute(
        td.zoo.gpt(size="tiny", layers=1),
        {"schema_version": 1, "mesh": {"a": 2}, "rules": [{"param": "*", "placement": "R"}]},
    )
    text = mod.script(show_meta=True)
    assert evaluator._eval_expr is quick_script.quick_eval
    found = from_source(text)
    monkeypatch.setattr(evaluator, "_eval_expr", quick_script._compile_and_eval)
    tvm.ir.assert_structural_equal(found, from_source(text))


@pytest.mark.parametrize("text", ["R.absent(x)", "R.add(x)", "R.add(x, absent)"])
def test_faults_are_reported_as_by_the_parser(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = (
        "@R.function\ndef main(x: R.Tensor((2,), 'float32')) -> R.Tensor((2,), 'float32'):\n"
        f"    return {text}\n"
    )
    messages = []
    for function in (quick_script.quick_eval, quick_script._compile_and_eval):
        monkeypatch.setattr(evaluator, "_eval_expr", function)
        with pytest.raises(Exception) as caught:
            from_source(source)
        messages.append((type(caught.value), str(caught.value)))
    assert messages[0] == messages[1]
