# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A native walk over bindings drops those that nobody reads."""

from __future__ import annotations

import pytest
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_distir.core.rewriting.native.pruning import pruned, pruned_bindings
from tvm_distir.support.native.loader import load_library

pytestmark = pytest.mark.usefixtures("kernels")


@I.ir_module
class Module:
    @R.function(private=True)
    def double(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        with R.dataflow():
            y = R.add(x, x)
            R.output(y)
        return y

    @R.function(pure=False)
    def main(x: R.Tensor((4,), "float32"), flag: R.Tensor((), "bool")) -> R.Tuple(
        R.Tensor((4,), "float32"), R.Tensor((4,), "float32")
    ):
        cls = Module
        with R.dataflow():
            dead = R.exp(x)
            _deader = R.tanh(dead)
            pair = (x, R.negative(x))
            second = pair[1]
            inside = R.sin(x)
            called = cls.double(second)
            _unused = cls.double(x)
            R.output(called, inside)
        if flag:
            chosen = R.add(inside, called)
        else:
            chosen = called
        _printed = R.print(called, format="{}")
        return (chosen, inside)


def names(blocks: list[relax.BindingBlock]) -> list[list[str]]:
    """Names of the variables that blocks bind."""
    return [[str(b.var.name) for b in block.bindings] for block in blocks]


@pytest.fixture(name="main")
def fixture_main() -> relax.Function:
    """The function above, in normal form."""
    return relax.transform.Normalize()(Module)["main"]


def test_what_nobody_reads_goes(main: relax.Function) -> None:
    """What an ``If`` reads inside stays, and what is not pure."""
    blocks, pure = pruned(main.body.blocks, main.body.body)
    remaining = [name for block in names(blocks) for name in block]
    assert not pure
    assert {"called", "inside", "second", "pair", "chosen", "_printed"} <= set(remaining)
    assert not {"dead", "_deader", "_unused"} & set(remaining)
    assert [type(block) for block in blocks] == [type(block) for block in main.body.blocks]


def test_an_empty_block_goes(main: relax.Function) -> None:
    """A block of which nothing is left is dropped; all that stays is pure."""
    first, rest = main.body.blocks[0], main.body.blocks[1]
    rows = [(True, list(first.bindings)), (False, list(rest.bindings)[:0])]
    blocks, pure = pruned_bindings(rows, first.bindings[0].var)
    assert names(blocks) == [["dead"]]
    assert isinstance(blocks[0], relax.DataflowBlock)
    assert pure


def test_blocks_that_are_needed_keep_their_bindings(main: relax.Function) -> None:
    """The very bindings are kept, in order."""
    first = main.body.blocks[0]
    result = relax.Tuple([b.var for b in first.bindings])
    blocks, _ = pruned([first], result)
    assert all(a.same_as(b) for a, b in zip(blocks[0].bindings, first.bindings, strict=True))


@pytest.mark.parametrize("kernels", ["native"], indirect=True)
def test_arguments_are_checked(main: relax.Function) -> None:
    """A flag for each block."""
    with pytest.raises(ValueError, match="a flag for each block"):
        load_library()["prune"]([[]], (), main.body.body, lambda _: True, lambda _: [])
