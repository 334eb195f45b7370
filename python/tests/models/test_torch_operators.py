# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Every ATen operator that is imported gives what torch gives: values, shapes and types."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra torch is not installed")

import tvm_distir as td  # noqa: E402
from tests.models.torch_cases import GROUPS, cases  # noqa: E402
from tvm_distir.execution.runtime.engines.reference import Reference  # noqa: E402
from tvm_distir.models.torch.grouped_products import GROUPED_OPERANDS  # noqa: E402
from tvm_distir.models.torch.signature import as_array  # noqa: E402
from tvm_distir.models.torch.table import CONVERTERS  # noqa: E402

CREATED = ("empty.memory_format", "new_empty.default", "empty_permuted.default")
CREATED += ("empty_like.default",)
"""Without values of their own; zeros here."""
EXPERTS = set(GROUPED_OPERANDS)
"""See test_torch_experts.py."""


def overload(name):
    base, kind = name.split(".")
    return getattr(getattr(torch.ops.aten, base), kind)


class Calls(torch.nn.Module):
    """All cases of a group, their tensors as inputs."""

    def __init__(self, result):
        super().__init__()
        self.calls, self.tensors = [], []
        for name, args, options in result:
            first = options.get("first", False)
            remaining = {k: v for k, v in options.items() if k != "first"}
            self.calls.append((name, self._taken(args), remaining, first))

    def _taken(self, value):
        """Tensors put by, and their places left in the arguments."""
        if isinstance(value, torch.Tensor):
            self.tensors.append(value)
            return Place(len(self.tensors) - 1)
        if isinstance(value, (list, tuple)):
            return type(value)(self._taken(item) for item in value)
        return value

    def _given(self, value, tensors):
        if isinstance(value, Place):
            return tensors[value.index]
        if isinstance(value, (list, tuple)):
            return type(value)(self._given(item, tensors) for item in value)
        return value

    def forward(self, *tensors):
        results = []
        for name, args, options, first in self.calls:
            result = overload(name)(*self._given(args, tensors), **options)
            listed = [result] if isinstance(result, torch.Tensor) else list(result)
            results.append(listed[:1] if first else listed)
        return results


class Place:
    def __init__(self, index):
        self.index = index


def exported(module, args):
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(module, tuple(args))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("group", GROUPS)
def test_operators_give_what_torch_gives(group, dtype):
    module = Calls(cases(group, getattr(torch, dtype)))
    with torch.no_grad():
        expected = module(*module.tensors)
    mod = td.from_exported_program(exported(module, module.tensors))
    observed = iter(Reference(mod).run([as_array(tensor) for tensor in module.tensors]))
    tolerance = {"float32": 2e-5, "bfloat16": 2e-2, "float16": 3e-3}[dtype]
    wrong = []
    for (name, args, options, _), results in zip(module.calls, expected, strict=True):
        for index, result in enumerate(results):
            fault = difference(next(observed), as_array(result), tolerance)
            if fault:
                wrong.append(f"{name}{args}{options} result {index}: {fault}")
    assert not wrong, "\n".join(wrong)


def difference(result, expected, tolerance):
    """In words; None where there is none."""
    result = np.asarray(result)
    if (result.dtype, result.shape) != (expected.dtype, expected.shape):
        return f"{result.dtype}{result.shape}, not {expected.dtype}{expected.shape}"
    a, b = result.astype("float64"), expected.astype("float64")
    scale = np.abs(b[np.isfinite(b)]).max(initial=1e-3)
    if not np.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True):
        return f"{a.ravel()[:4]}, not {b.ravel()[:4]}"
    return None


def test_every_translated_operator_has_a_case():
    have = {name for group in GROUPS for name, _, _ in cases(group, torch.float32)}
    assert set(CONVERTERS) - set(CREATED) - KINDS - EXPERTS == have - KINDS


KINDS = {
    f"{name}.{kind}"
    for name in ("sum", "mean", "prod", "any", "all")
    for kind in ("default", "dim", "dims", "dim_IntList", "dim_int")
}
"""Written alike, and not all of them exist."""
