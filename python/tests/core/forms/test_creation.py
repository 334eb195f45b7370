# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Ops and kernels without operands, as importers and ``LegalizeOps`` leave them."""

from __future__ import annotations

import pytest
import tvm
import tvm_ffi
from tvm import relax

import tvm_distir as td
from tests.core.forms.parsing import ROWS, X_COLUMNS, X, agrees, main, parsed, refusal
from tvm_distir.transforms import AnnotateSharding, PropagateSharding

CREATED = [
    'R.full(R.shape([8, 16]), R.const(2.0), "float32")', 'R.zeros(R.shape([8, 16]), "float32")',
    'R.ones(R.shape([8, 16]), "float32")', 'R.eye(8, 16, 0, "float32")',
    'R.arange(0, 16, 1, "float32")', 'R.hamming_window(16, True, 0.5, 0.4, "float32")',
]  # fmt: skip


@pytest.mark.parametrize("plan", [ROWS, X_COLUMNS], ids=["rows", "columns"])
@pytest.mark.parametrize("legalized", [False, True], ids=["op", "kernel"])
@pytest.mark.parametrize("created", CREATED)
def test_what_is_created_is_added(created: str, legalized: bool, plan: td.Plan) -> None:
    mod = parsed(main(f"c = {created}\ny = R.add(x, c)", X))
    agrees(relax.transform.LegalizeOps()(mod) if legalized else mod, plan)


def test_a_kernel_creates_the_shard_of_a_device() -> None:
    text = main(f"c = {CREATED[1]}\ny = R.add(x, c)", X)
    mod = relax.transform.LegalizeOps()(parsed(text))
    created = td.distribute(mod, ROWS)["main"].body.blocks[0].bindings[0]
    assert [int(n) for n in created.var.ty.shape] == [4, 16]
    placed = PropagateSharding()(AnnotateSharding(ROWS)(mod))
    parsed_again = tvm.script.from_source(placed.script(show_meta=True))
    assert tvm_ffi.structural_equal(placed, parsed_again)


@pytest.mark.parametrize("created", ['R.arange(n, 2 * n, 1, "float32")', 'R.eye(8, n, 0, "int8")'])
def test_the_remedy_for_an_unknown_size_is_true(created: str) -> None:
    text = f'n = T.int64()\nc = {created}\ny = R.add(x, R.astype(c, "float32"))'
    mod = parsed(main(text, 'x: R.Tensor((8, "n"), "float32")'))
    error = refusal(mod, ROWS)
    assert error.code == "DIST0417"
    assert error.remedy == 'Give the size: --dim n=N; in Python td.bind_dims(mod, {"n": N}).'
    agrees(td.bind_dims(mod, {"n": 16}), ROWS)
