# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Joint graphs of torch, with a loss and gradients, are steps like any other."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra torch is not installed")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.export.experimental import _export_forward_backward  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

import tvm_distir as td  # noqa: E402
from tvm_distir.execution.runtime.engines.reference import Reference  # noqa: E402
from tvm_distir.models.frontends import load_weights  # noqa: E402


class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Embedding(13, 8, padding_idx=0), nn.LayerNorm(8)
        self.qkv, self.up, self.head = nn.Linear(8, 24), nn.Linear(8, 16), nn.Linear(16, 13)

    def forward(self, ids, target):
        x = self.norm(self.embed(ids))
        q, k, v = self.qkv(x).reshape(*ids.shape, 3, 2, 4).permute(2, 0, 3, 1, 4)
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        logits = self.head(F.gelu(self.up(x)))
        return (F.cross_entropy(logits.flatten(0, 1), target.flatten()),)


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8)
        self.grouped, self.group = nn.Conv2d(8, 8, 3, padding=1, groups=2), nn.GroupNorm(2, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, image, target):
        x = F.max_pool2d(F.relu(self.norm(self.stem(image))), 2)
        x = F.avg_pool2d(self.group(self.grouped(x)), 2)
        return (F.cross_entropy(self.head(x.mean((2, 3))), target),)


def text():
    return Text(), (torch.randint(0, 13, (4, 6)), torch.randint(0, 13, (4, 6)))


def images():
    module = Images()
    module.norm.eval()
    return module, (torch.randn(4, 3, 16, 16), torch.randint(0, 5, (4,)))


def joint(make):
    """The joint program, its inputs, the module, and what autograd gives."""
    torch.manual_seed(0)
    module, args = make()
    with warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH):
        warnings.simplefilter("ignore")
        program = _export_forward_backward(torch.export.export(module, args))
    loss = module(*args)[0]
    loss.backward()
    expected = {"": loss.detach(), **{name: p.grad for name, p in module.named_parameters()}}
    return program, args, expected


@pytest.mark.parametrize("make", [text, images])
def test_gradients_are_those_of_autograd(make):
    program, args, expected = joint(make)
    mod = td.from_exported_program(program)
    weights = load_weights(program)
    main = mod["main"]
    names = [str(name) for name in main.attrs["dist.param_names"]][len(args) :]
    inputs = [arg.numpy() for arg in args] + [weights[name] for name in names]
    targets = [spec.target or "" for spec in program.graph_signature.output_specs]
    for name, result in zip(targets, Reference(mod).run(inputs), strict=True):
        scale = float(expected[name].abs().max()) + 1e-3
        np.testing.assert_allclose(result / scale, expected[name] / scale, atol=1e-5, err_msg=name)
    assert set(targets) == set(expected)
    plan = td.planning.make_plan(mod, "data_parallel", {"dp": 2})
    report = td.verify(mod, plan, inputs=inputs)
    assert report.equal
    assert "all_reduce" in {c.kind for c in report.collectives}
    noted = mod["main"].attrs["dist.training"]["gradients"]
    assert {str(name) for name in noted} == {*targets} - {""}, targets
    plan = td.planning.make_plan(mod, "zero:stage=2", {"dp": 2})
    dist = td.distribute(mod, plan)
    assert td.verify(mod, plan, inputs=inputs, dist=dist).equal
    outputs = dist["main"].attrs["dist.io"]["outputs"]
    assert {str(item["placement"]) for item in outputs[1:]} <= {"S[0]", "S[1]"}
