# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts as `transformers` exports them: grouped products without a sort."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra torch is not installed")

from torch.utils import _pytree as pytree  # noqa: E402

import tvm_distir as td  # noqa: E402
from tvm_distir.execution.runtime.engines.reference import Reference  # noqa: E402
from tvm_distir.models.frontends import load_weights  # noqa: E402
from tvm_distir.models.torch.signature import as_array  # noqa: E402
from tvm_distir.support.errors.tree import ModelError  # noqa: E402

EXPERTS, CHOICES, WIDTH, INNER = 4, 2, 16, 8


def grouped(x: Any, w: Any, offs: Any) -> Any:
    """Multiply sorted rows by the matrices of their groups, one group at a time."""
    ends = [0, *offs.tolist()]
    parts = [x[a:b] @ m for a, b, m in zip(ends, ends[1:], w, strict=False)]
    return torch.cat(parts)


class Experts(torch.nn.Module):
    """Experts that sort their rows; ``shown`` returns something that depends on the order."""

    def __init__(self, product: Any, biases: bool = False, shown: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.product, self.shown = product, shown
        self.router = torch.nn.Linear(WIDTH, EXPERTS, bias=False)
        self.gate_up_proj = torch.nn.Parameter(torch.randn(EXPERTS, 2 * INNER, WIDTH) / 4)
        self.down_proj = torch.nn.Parameter(torch.randn(EXPERTS, WIDTH, INNER) / 4)
        self.bias = torch.nn.Parameter(torch.randn(EXPERTS, 2 * INNER)) if biases else None

    def forward(self, x: Any) -> Any:
        tokens = x.reshape(-1, WIDTH)
        logits = self.router(tokens.to(self.router.weight.dtype))
        weights, chosen = torch.topk(torch.softmax(logits, -1), CHOICES)
        ids, order = torch.sort(chosen.reshape(-1))
        rows = tokens[order // CHOICES]
        counts = torch.histc(ids.float(), bins=EXPERTS, min=0, max=EXPERTS - 1)
        ends = torch.cumsum(counts, 0, dtype=torch.int32)
        both = self.product(rows, self.gate_up_proj.transpose(-2, -1), ends)
        if self.bias is not None:
            both = both + self.bias[ids]
        if self.shown == "mean":  # mixes rows of several places
            both = both + both.mean(0)
        gate, up = both.chunk(2, dim=-1)
        out = self.product(
            torch.nn.functional.silu(gate) * up, self.down_proj.transpose(-2, -1), ends
        )
        out = out * weights.reshape(-1)[order].unsqueeze(-1).to(out.dtype)
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(order.size(0))
        result = out[inverse].view(-1, CHOICES, WIDTH).sum(1).reshape(x.shape)
        return (result, order) if self.shown == "order" else result


def is_registered() -> bool:
    """Whether another test of this process imported `transformers`, which has the operator."""
    return hasattr(torch.ops.transformers, "grouped_mm_fallback")


@contextmanager
def registered() -> Iterator[Any]:
    """The operator that `transformers` calls where torch has no kernel; gone afterwards."""
    library = torch.library.Library("transformers", "FRAGMENT")
    library.define("grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) -> Tensor")
    library.impl("grouped_mm_fallback", grouped, "CPU")
    name = "transformers::grouped_mm_fallback"
    torch.library.register_fake(
        name, lambda x, w, _: x.new_empty((len(x), w.shape[2])), lib=library
    )
    yield torch.ops.transformers.grouped_mm_fallback
    library._destroy()


@pytest.fixture
def fallback() -> Iterator[Any]:
    """That operator, of `transformers` itself where it is imported."""
    if is_registered():
        yield torch.ops.transformers.grouped_mm_fallback
    else:
        with registered() as operator:
            yield operator


def exported(module: Any, x: Any) -> Any:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(module.eval(), (x,))


def import_and_run(program: Any, x: Any) -> tuple[Any, Any]:
    """The module, and its results."""
    mod = td.from_exported_program(program)
    weights = load_weights(program)
    names = [str(name) for name in mod["main"].attrs["dist.param_names"]][1:]
    return mod, Reference(mod).run([as_array(x), *(weights[name] for name in names)])


@pytest.mark.parametrize("biases", [False, True])
def test_experts_compute_what_torch_computes_without_a_sort(fallback: Any, biases: bool) -> None:
    module, x = Experts(fallback, biases), torch.randn(4, 6, WIDTH)
    mod, (result,) = import_and_run(exported(module, x), x)
    np.testing.assert_allclose(result, module(x).detach(), rtol=1e-5, atol=1e-6)
    text = mod.script()
    assert text.count("R.dist.grouped_matmul") == 2
    assert "sort" not in text and "scatter" not in text


@pytest.mark.parametrize("shown", ["order", "mean"])
def test_rows_that_need_their_order_stay_sorted(fallback: Any, shown: str) -> None:
    module, x = Experts(fallback, shown=shown), torch.randn(2, 6, WIDTH)
    mod, result = import_and_run(exported(module, x), x)
    expected = module(x)
    expected = expected[0] if shown == "order" else expected
    np.testing.assert_allclose(result[0], expected.detach(), rtol=1e-4, atol=1e-5)
    assert "sort" in mod.script()
    if shown == "order":  # of equal ids any order may be returned
        assert sorted(result[1]) == list(range(2 * 6 * CHOICES))


def test_the_operator_of_torch_is_read_too() -> None:
    product = lambda x, w, offs: torch._grouped_mm(x, w, offs=offs)  # noqa: E731
    module, x = Experts(product).bfloat16(), torch.randn(4, 8, WIDTH).bfloat16()
    module.router.float()
    _, (result,) = import_and_run(exported(module, x), x)
    expected = as_array(module(x)).astype("float32")
    np.testing.assert_allclose(result.astype("float32"), expected, rtol=0.03, atol=0.03)


@pytest.mark.parametrize(
    ("strategy", "mesh", "moved"),
    [
        ("data_parallel", {"dp": 4}, set()),
        ("expert_parallel", {"ep": 4}, {"all_gather", "reduce_scatter"}),
        ("data_parallel+expert_parallel", {"dp": 2, "ep": 2}, {"all_gather", "reduce_scatter"}),
    ],
)
def test_distributed_experts_compute_the_same(
    fallback: Any, strategy: str, mesh: dict[str, int], moved: set[str]
) -> None:
    x = torch.randn(4, 6, WIDTH)
    mod = td.from_exported_program(exported(Experts(fallback), x))
    plan = td.planning.make_plan(mod, strategy, mesh)
    assert td.verify(mod, plan).equal
    program = td.export(td.distribute(mod, plan))
    kinds = {op.collective for fn in program.functions.values() for op in fn.ops} - {""}
    assert kinds == moved


def test_a_device_computes_the_flops_of_its_experts(fallback: Any) -> None:
    x = torch.randn(4, 6, WIDTH)
    mod = td.from_exported_program(exported(Experts(fallback), x))

    def flops(plan: Any) -> int:
        ops = [op for fn in td.export(td.distribute(mod, plan)).functions.values() for op in fn.ops]
        return sum(op.flops for op in ops if "grouped_matmul" in op.op)

    rows = 4 * 6 * CHOICES
    whole = 2 * rows * WIDTH * 2 * INNER + 2 * rows * INNER * WIDTH
    single = td.planning.make_plan(mod, "data_parallel", {"dp": 1})
    assert flops(single) == whole
    assert flops(td.planning.make_plan(mod, "expert_parallel", {"ep": 4})) == whole // 4


def test_a_training_step_of_experts_equals_one_device(fallback: Any) -> None:
    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = Experts(fallback)

        def forward(self, x: Any) -> Any:
            return self.experts(x)

    x = torch.randn(4, 6, WIDTH)
    mod = td.from_exported_program(exported(Loss(), x))
    step = td.train_step(mod, optimizer="sgd", loss="mse")
    plan = td.planning.make_plan(step, "data_parallel+expert_parallel", {"dp": 2, "ep": 2})
    assert td.verify(step, plan).equal


class Output(tuple):
    """An output class that no importer of the archive knows."""


def _archive(tmp_path: Any, module: Any, x: Any) -> Any:
    """Save a program whose output is of a class that is forgotten afterwards."""
    pytree.register_pytree_node(
        Output,
        lambda value: (list(value), ["logits"]),
        lambda leaves, _: Output(leaves),
        serialized_type_name="some_package.outputs.Output",
        to_dumpable_context=lambda context: context,
        from_dumpable_context=lambda context: context,
    )

    class Wrapped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = module

        def forward(self, x: Any) -> Any:
            return Output([self.model(x)])

    path = tmp_path / "model.pt2"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(exported(Wrapped(), x), path)
    pytree._deregister_pytree_node(Output)
    return path


def test_an_archive_needs_no_package_that_it_names(tmp_path: Any) -> None:
    if is_registered():
        pytest.skip("transformers is imported in this process, so that the operator is known")
    x = torch.randn(4, 6, WIDTH)
    with registered() as operator:
        module = Experts(operator)
        path, expected = _archive(tmp_path, module, x), module(x).detach()
    weights = load_weights(path)
    mod = td.load_model(str(path)).mod
    names = [str(name) for name in mod["main"].attrs["dist.param_names"]][1:]
    (result,) = Reference(mod).run([as_array(x), *(weights[name] for name in names)])
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_an_operator_of_another_package_is_refused_by_name(tmp_path: Any) -> None:
    library = torch.library.Library("some_package", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: 2 * x, "CPU")
    torch.library.register_fake("some_package::twice", torch.empty_like, lib=library)

    class Twice(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.ops.some_package.twice(x)

    path = tmp_path / "twice.pt2"
    torch.export.save(exported(Twice(), torch.randn(3)), path)
    library._destroy()
    with pytest.raises(ModelError, match=r"DIST0360.*does not support some_package\.twice"):
        td.load_model(str(path))
