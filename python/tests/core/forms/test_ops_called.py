# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The ops that a module calls, in branches and private functions too."""

from tvm import ir
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

from tvm_distir.core.rewriting.functions import LOCAL, calls_op, ops_called

NAMES = ["exp", "negative", "tanh", "sqrt", "add", "sin"]


@I.ir_module
class Branches:
    """Calls exp in one branch, negative in the other, tanh in a function, and sqrt in none."""

    @R.function(private=True)
    def inner(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        y = R.tanh(x)
        return y

    @R.function
    def main(c: R.Tensor((), "bool"), x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        cls = Branches
        if c:
            a = R.exp(x)
            y = cls.inner(a)
        else:
            b = R.negative(x)
            y = R.add(b, x)
        return y


def test_calls_of_branches_and_private_functions_count() -> None:
    called = ops_called(Branches, [f"relax.{name}" for name in NAMES])
    assert called == {"relax.exp", "relax.negative", "relax.tanh", "relax.add"}
    assert not calls_op(Branches, ["relax.sqrt"])
    assert calls_op(Branches, ["relax.sqrt", "relax.negative"])


def test_a_bound_function_counts_where_it_is_asked_for() -> None:
    @R.function
    def outer(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        @R.function
        def local(y: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
            return R.sin(y)

        return local(x)

    mod = ir.IRModule({"outer": outer})
    assert ops_called(mod, [LOCAL, "relax.sqrt"]) == {LOCAL}
    assert ops_called(mod, ["relax.sqrt"]) == set()
    assert LOCAL not in ops_called(Branches, [LOCAL])
