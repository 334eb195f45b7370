# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Programs of torch.export that fix their batch, imported at other batches."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra torch is not installed")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import tvm_distir as td  # noqa: E402
from tvm_distir.execution.runtime.engines.reference import Reference  # noqa: E402
from tvm_distir.models.frontends import load_weights  # noqa: E402
from tvm_distir.support.errors.tree import ModelError  # noqa: E402


class Attention(nn.Module):
    """Views into as many heads as samples, and a mask made as `transformers` makes its masks."""

    def __init__(self):
        super().__init__()
        self.embed, self.kinds = nn.Embedding(11, 16), nn.Embedding(2, 16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.start = nn.Parameter(torch.rand(1, 1, 16))
        self.register_buffer("kind", torch.zeros(1, 8, dtype=torch.int64), persistent=False)

    def forward(self, ids):
        batch, length = ids.shape
        x = self.embed(ids) + self.kinds(self.kind[:, :length].expand(batch, length))
        x = torch.cat([self.start.expand(batch, -1, -1), x], 1)
        q, k, v = self.qkv(x).view(batch, length + 1, 4, 3, 4).permute(3, 0, 2, 1, 4).unbind(0)
        places = torch.arange(length + 1).unsqueeze(0).expand(batch, -1)
        rows = torch.arange(batch)[:, None, None, None]
        at = torch.arange(length + 1)
        mask = places[rows, at[None, None, None, :]] <= places[rows, at[None, None, :, None]]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        y = self.out(y.transpose(1, 2).reshape(batch * (length + 1), 16))
        return y.view(batch, -1, 16)


class Padded(nn.Module):
    """Indexes an input by the numbers of the samples, and merges the batch behind another dim."""

    def filled(self, x):
        base = torch.ones(x.shape[0], 1, x.shape[1], x.shape[1])
        base[:, :, :, 1:3] = x[:, None, :, None].expand(-1, -1, -1, 2)
        return base.sum((1, 2))

    def forward(self, x, weight):
        batch, length = x.shape
        picked = x[torch.arange(batch)[:, None], torch.arange(length)[None, :]]
        kinds = torch.zeros(1, 9, dtype=torch.int64).expand(batch, -1)
        picked = picked + kinds.gather(1, (picked * 8).long()) + self.filled(picked)
        merged = picked.t().reshape(length * batch, 1) * 2.0
        return merged.view(length, batch).sum(0) + weight.sum(1)


def export(module, args):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(module.eval(), args)


@pytest.mark.parametrize("old", [1, 2, 4])
def test_attention_at_other_batches(old):
    torch.manual_seed(0)
    module = Attention()
    program = export(module, (torch.randint(0, 11, (old, 5)),))
    mod = td.from_exported_program(program, batch=6)
    ids = torch.randint(0, 11, (6, 5))
    names = [str(name) for name in mod["main"].attrs["dist.param_names"]][1:]
    weights = load_weights(program)
    result = Reference(mod).run([ids.numpy(), *(weights[name] for name in names)])[0]
    with torch.no_grad():
        np.testing.assert_allclose(result, module(ids), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("old", [1, 4])
def test_numbers_of_samples_and_merged_dims(old):
    program = export(Padded(), (torch.rand(old, 4), torch.rand(old, 3)))
    mod = td.from_exported_program(program, batch=10)
    x, weight = torch.rand(10, 4), torch.rand(10, 3)
    result = Reference(mod).run([x.numpy(), weight.numpy()])[0]
    np.testing.assert_allclose(result, Padded()(x, weight), rtol=1e-5)


def test_distributed_program_at_another_batch():
    program = export(Attention(), (torch.randint(0, 11, (1, 5)),))
    mod = td.from_exported_program(program, batch=4)
    plan = td.planning.make_plan(mod, "data_parallel", {"dp": 2})
    td.verify(mod, plan).check()


class Refused(nn.Module):
    def __init__(self, form):
        super().__init__()
        self.form = form
        self.register_buffer("table", torch.arange(12.0).reshape(4, 3))

    def forward(self, x):
        if self.form == "table":
            return x + self.table
        if self.form == "scatter":
            return torch.index_put(x, (torch.arange(4), torch.tensor([0, 1, 2, 0])), x[:, 0])
        if self.form == "rows":
            return x[torch.tensor([1, 0, 3, 2])]
        if self.form == "numbers":
            return x + torch.arange(4.0)[:, None]
        return x.mean(0)


@pytest.mark.parametrize(
    ("form", "what"),
    [
        ("table", "the samples of .* differ"),
        ("numbers", "the samples of .* differ"),
        ("scatter", "has the old batch"),
        ("rows", "does not count the samples"),
        ("mean", "the result does not have the batch"),
    ],
)
def test_what_depends_on_the_batch_is_refused(form, what):
    program = export(Refused(form), (torch.rand(4, 3),))
    with pytest.raises(ModelError, match=what) as caught:
        td.from_exported_program(program, batch=8)
    assert caught.value.code == "DIST0314"
    assert int(td.from_exported_program(program, batch=4)["main"].params[0].ty.shape[0]) == 4


def test_inputs_of_several_sizes_are_refused():
    class Sum(nn.Module):
        def forward(self, x, scale):
            return x * scale

    program = export(Sum(), (torch.rand(4, 3), torch.rand(3)))
    with pytest.raises(ModelError, match="others differ") as caught:
        td.from_exported_program(program, batch=8)
    assert caught.value.code == "DIST0314"
