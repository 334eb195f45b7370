# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A step of Adam that torch wrote out: inputs are told apart, states stored in parts."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the extra torch is not installed")

import torch.nn.functional as F  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import tvm_distir as td  # noqa: E402
from tvm_distir.execution.runtime.engines.reference import Reference  # noqa: E402


def step(w, u, m_w, m_u, v_w, v_u, t, x, y):
    """AdamW of two layers; all of it are inputs, as in torch nothing else is left."""

    def loss_of(w, u):
        return F.cross_entropy(torch.tanh(x @ w) @ u, y)

    (g_w, g_u), loss = torch.func.grad_and_value(loss_of, (0, 1))(w, u)
    t = t + 1
    rate = 1e-2 * torch.sqrt(1 - 0.99**t) / (1 - 0.9**t)
    new = []
    for p, m, v, g in ((w, m_w, v_w, g_w), (u, m_u, v_u, g_u)):
        m, v = torch.lerp(m, g, 0.1), v * 0.99 + 0.01 * g * g
        new.append((p * (1 - 1e-3) - rate * m / (torch.sqrt(v) + 1e-3), m, v))
    return (loss, *(each[i] for i in range(3) for each in new), t)


def exported():
    torch.manual_seed(0)
    w, u = torch.randn(12, 16), torch.randn(16, 8)
    states = [torch.rand_like(a) for a in (w, u, w, u)]
    args = (w, u, *states, torch.tensor(3.0), torch.randn(8, 12), torch.randint(0, 8, (8,)))
    graph = make_fx(step)(*args)
    return torch.export.export(graph, args), args, step(*args)


def test_states_are_recognised_and_stored_in_parts():
    program, args, expected = exported()
    mod = td.from_exported_program(program)
    attrs = mod["main"].attrs
    names = [spec.arg.name for spec in program.graph_signature.input_specs]
    w, u, m_w, m_u, v_w, v_u, _, x, y = names
    assert {k: list(s) for k, s in attrs["dist.training"]["states"].items()} == {
        w: [m_w, v_w],
        u: [m_u, v_u],
    }
    order = [str(name) for name in attrs["dist.param_names"]]
    assert int(attrs["num_input"]) == 2 and order == [x, y, *names[:7]]
    values = dict(zip(names, args, strict=True))
    inputs = [values[name].numpy() for name in order]
    for result, value in zip(Reference(mod).run(inputs), expected, strict=True):
        torch.testing.assert_close(torch.from_numpy(result), value, rtol=1e-4, atol=1e-5)
    for stage in (1, 2, 3):
        plan = td.planning.make_plan(mod, f"zero:stage={stage}", {"dp": 2})
        dist = td.distribute(mod, plan)
        report = td.verify(mod, plan, inputs=inputs, dist=dist)
        assert report.equal
        shares = {
            str(i["name"]): str(i["placement"]) for i in dist["main"].attrs["dist.io"]["inputs"]
        }
        assert all(shares[name] == "S[0]" for name in (m_w, m_u, v_w, v_u, x, y))
        assert (shares[w] == shares[u] == "S[0]") is (stage == 3)
