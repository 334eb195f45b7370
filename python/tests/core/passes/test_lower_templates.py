# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Like bindings are lowered once: what the template of one holds for, and for which others."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from tests.core.passes import lower_harness as h
from tvm_distir.core.ops import registry
from tvm_distir.core.ops.registration import SAME_OP
from tvm_distir.core.ops.registry import register_sharding_rule, registration_of
from tvm_distir.core.passes.legalize.passes import LegalizeRedistribute
from tvm_distir.core.passes.lower.bindings import Bindings
from tvm_distir.core.passes.lower.passes import LowerDistIR


def D(shape, placement, dtype="float32"):
    return f'R.DTensor({shape}, "{dtype}", "mesh[0]", "{placement}")'


def module(params, body, result, mesh="R.device_mesh((2, 2), I.Range(0, 4))"):
    """``main(*params)`` of level 3; ``params`` are pairs of name and DTensor type."""
    lines = "\n            ".join(body)
    return tvm.script.from_source(f"""
@I.ir_module
class Module:
    I.module_attrs({{"mesh_axes": [["a", "b"]]}})
    I.module_global_infos({{"mesh": [{mesh}]}})
    @R.function
    def main({", ".join(f"{name}: {ty}" for name, ty in params)}):
        with R.dataflow():
            {lines}
            R.output({result})
        return {result}
""")


def lower(mod):
    return LowerDistIR()(LegalizeRedistribute()(mod))


def lower_and_run(mod, **inputs):
    (got,) = h.run_virtual(lower(mod), inputs)
    return got


def draw(*shape, seed=5):
    return np.random.default_rng(seed).integers(-2, 3, shape).astype("float32")


@pytest.fixture
def visits(monkeypatch):
    """Names of the variables whose bindings are looked at one by one."""
    matches = []
    visit = Bindings.visit

    def counted(self, var, value, like=-1):
        matches.append(str(var.name))
        visit(self, var, value, like)

    monkeypatch.setattr(Bindings, "visit", counted)
    return matches


@pytest.fixture(autouse=True)
def nothing_learned():
    """Begin and end with an empty memory."""
    registry.note_change()
    yield
    registry.note_change()


def test_like_calls_of_operands_in_other_states(visits):
    """Zeros in the padding may be added up, what ``exp`` makes of them may not."""
    uneven, whole = D((5, 4), "S[0], R"), D((4,), "R, R")
    mod = module(
        [("x", uneven)],
        [
            f"s: {whole} = R.sum(x, axis=[0])",
            "y = R.exp(x)",
            f"t: {whole} = R.sum(y, axis=[0])",
            f"u: {whole} = R.sum(x, axis=[0])",
            "v = R.add(s, t)",
            "out = R.add(v, u)",
        ],
        "out",
    )
    x = draw(5, 4)
    np.testing.assert_allclose(lower_and_run(mod, x=x), 2 * x.sum(0) + np.exp(x).sum(0), rtol=1e-6)
    assert "t_terms" in visits
    assert "u_terms" not in visits


def test_aliases_have_the_state_of_their_source(visits):
    """Also of an alias; an output that a dataflow variable is bound to has a binding."""
    total = D((4,), "R, R")
    mod = module(
        [("x", D((5, 4), "S[0], R"))],
        [
            "y = R.exp(x)",
            "a = y",
            "b = a",
            f"s: {total} = R.sum(b, axis=[0])",
            "c = x",
            f"t: {total} = R.sum(c, axis=[0])",
            "v = R.add(s, t)",
            "out = v",
        ],
        "out",
    )
    x = draw(5, 4)
    np.testing.assert_allclose(lower_and_run(mod, x=x), np.exp(x).sum(0) + x.sum(0), rtol=1e-6)
    assert not {"a", "b", "c"}.intersection(visits)
    assert "out" in visits


def test_operands_stay_in_their_order(visits):
    ty = D((4, 4), "S[0], R")
    mod = module(
        [("x", ty), ("y", ty), ("z", ty)],
        ["p = R.subtract(x, y)", "q = R.subtract(y, z)", "out = R.subtract(q, p)"],
        "out",
    )
    x, y, z = (draw(4, 4, seed=n) for n in range(3))
    np.testing.assert_array_equal(lower_and_run(mod, x=x, y=y, z=z), (y - z) - (x - y))
    assert visits == ["p"]


def test_fields_of_a_tuple_stay_in_their_order():
    ty = D((4, 4), "R, S[0]")
    mod = module(
        [("x", ty), ("y", ty)],
        ["p = R.concat((x, y), axis=1)", "q = R.concat((y, x), axis=1)", "out = R.subtract(p, q)"],
        "out",
    )
    x, y = draw(4, 4), draw(4, 4, seed=6)
    whole = np.concatenate([x, y], 1) - np.concatenate([y, x], 1)
    np.testing.assert_array_equal(lower_and_run(mod, x=x, y=y), whole)


def test_an_operand_whose_padding_is_masked_takes_the_place_of_the_given_one():
    """The largest of negative rows is no zero of the padding."""
    mod = module([("x", D((5, 4), "S[0], R"))], [f"m: {D((4,), 'R, R')} = R.max(x, axis=[0])"], "m")
    x = draw(5, 4) - 3
    np.testing.assert_array_equal(lower_and_run(mod, x=x), x.max(0))


def test_a_field_that_is_masked_takes_the_place_of_that_in_the_tuple_variable():
    mod = module(
        [("x", D((4, 5), "R, S[1]")), ("w", D((5, 4), "R, S[0]"))],
        [
            "y = R.exp(x)",
            "v = R.exp(w)",
            "both = (y, v)",
            f"m: {D((4, 4), 'R, R')} = R.einsum(both, subscripts='ij,jk->ik')",
        ],
        "m",
    )
    x, w = draw(4, 5), draw(5, 4, seed=6)
    np.testing.assert_allclose(lower_and_run(mod, x=x, w=w), np.exp(x) @ np.exp(w), rtol=1e-6)


PLAIN = [("x", D((8, 4), "S[0], R")), ("w", D((4, 8), "R, S[1]"))]
BODY = ["y = R.matmul(x, w)", "z = R.exp(y)", f"out: {D((8,), 'R, S[0]')} = R.sum(z, axis=[0])"]


def test_the_next_module_is_not_looked_at_again(visits):
    first = lower(module(PLAIN, BODY, "out"))
    assert visits == ["y", "z", "out_terms", "out"]
    second = lower(module(PLAIN, BODY, "out"))  # with a mesh of its own
    assert len(visits) == 4
    assert second.script() == first.script()
    h.check_module(second)


def test_another_mesh_is_another_matter(visits):
    lower(module(PLAIN, BODY, "out"))
    mesh = "R.device_mesh((2, 2), I.Range(4, 8))"
    text = lower(module(PLAIN, BODY, "out", mesh)).script()
    assert len(visits) == 8
    assert "I.Range(4, 8)" in text


def test_constants_keep_their_data():
    ty = D((4, 4), "S[0], R")
    for number in (1.0, 2.0):
        constant = f"R.dist.const({number}, {D((), 'R, R')})"
        x = draw(4, 4)
        got = lower_and_run(module([("x", ty)], [f"out = R.add(x, {constant})"], "out"), x=x)
        np.testing.assert_array_equal(got, x + np.float32(number))


def test_a_rule_that_is_registered_counts_at_once(visits, monkeypatch):
    lower(module(PLAIN, BODY, "out"))
    monkeypatch.setattr(registry, "_known", dict(registry._known))
    message = registration_of("relax.exp")
    register_sharding_rule("relax.exp", local=SAME_OP, padding=message.padding, override=True)(
        message.write
    )
    lower(module(PLAIN, BODY, "out"))
    assert len(visits) == 8
