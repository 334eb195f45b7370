# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Programs of torch that are distributed by hand, right and with faults."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh

from .cases import Case, Tensors, divided, grads, tensors
from .communicating_functions import CopyTo, GatherRows, ReduceFrom, ScatterRows, Turn
from .module_programs import (
    BOTH_HINTS,
    NET_D,
    NET_W,
    accumulated_fsdp,
    dtensor,
    fsdp,
    net_reference,
    tensor_parallel_fsdp,
)

# Tensor parallel MLP, data parallel besides.
MLP_W = {"ln": (16,), "a": (16, 32), "b": (32, 16), "c": (16,)}
MLP_D = {"x": (8, 16), "y": (8, 16)}


def mlp_reference(p: Tensors, d: Tensors) -> Tensors:
    h = F.layer_norm(d["x"] * p["ln"], (16,))
    z = d["x"] + F.relu(h @ p["a"]) @ p["b"] + p["c"]
    return grads(((z - d["y"]) ** 2).mean(), p)


def mlp(bug: str, rank: int) -> Any:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    tp, dp = mesh["tp"].get_group(), mesh["dp"].get_group()
    over = {"dp over tp": tp, "dp over all": dist.group.WORLD}.get(bug, dp)

    def step(p: Tensors, d: Tensors) -> Tensors:
        h = F.layer_norm(d["x"] * p["ln"], (16,))
        if bug != "no f":
            h = CopyTo.apply(h, tp)
        o = F.relu(h @ p["a"]) @ p["b"]
        if bug == "bias before":
            o = o + p["c"]
        if bug != "no g":
            o = ReduceFrom.apply(o, tp)
        if bug == "g twice":
            o = ReduceFrom.apply(o, tp)
        z = d["x"] + o if bug == "bias before" else d["x"] + o + p["c"]
        loss = ((z - d["y"]) ** 2).mean()
        if bug == "loss twice":
            loss = loss / 2
        out = grads(loss, p)
        for name in p:
            g = out["grad:" + name].clone()
            if bug != "one not reduced" or name != "ln":
                dist.all_reduce(g, group=over)
            out["grad:" + name] = g if bug == "no mean" else g / 2
        return out

    weights = divided(MLP_W, a=(1, 2), b=(0, 2))
    return step, tensors(weights, True), tensors(divided(MLP_D, x=(0, 2), y=(0, 2)))


# FSDP by hand.
HAND_W = {"a": (16, 32), "b": (32, 16)}


def hand_reference(p: Tensors, d: Tensors) -> Tensors:
    return grads(((F.relu(d["x"] @ p["a"]) @ p["b"] - d["y"]) ** 2).mean(), p)


def hand(bug: str, rank: int) -> Any:
    init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
    kind = "sum" if bug == "sum" else "avg"

    def step(p: Tensors, d: Tensors) -> Tensors:
        full = {n: GatherRows.apply(v, dist.group.WORLD, kind) for n, v in p.items()}
        if bug == "stale":
            full["b"] = full["b"].roll(8, 0)
        return grads(((F.relu(d["x"] @ full["a"]) @ full["b"] - d["y"]) ** 2).mean(), p)

    weights = divided(HAND_W, a=(0, 4), b=(0, 4))
    return step, tensors(weights, True), tensors(divided(MLP_D, x=(0, 4), y=(0, 4)))


# Sequence parallel by hand: rows are gathered before the products and scattered behind them.
SEQ_W = {"n": (16,), "a": (16, 32), "b": (32, 16)}


def sequence_reference(p: Tensors, d: Tensors) -> Tensors:
    z = d["x"] + F.relu(F.rms_norm(d["x"], (16,), p["n"]) @ p["a"]) @ p["b"]
    return grads(((z - d["y"]) ** 2).mean(), p)


def sequence(bug: str, rank: int) -> Any:
    init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
    group = dist.group.WORLD

    def step(p: Tensors, d: Tensors) -> Tensors:
        h = GatherRows.apply(F.rms_norm(d["x"], (16,), p["n"]), group, "sum")
        o = F.relu(h @ p["a"]) @ p["b"]
        if bug == "no sum":
            o = o.chunk(4)[rank]
        else:
            o = ScatterRows.apply(o, group)
        out = grads(((d["x"] + o - d["y"]) ** 2).sum() / (8 * 16), p)
        out["loss"] = fc.all_reduce(out["loss"], "sum", group)
        if bug != "norm not reduced":
            out["grad:n"] = fc.all_reduce(out["grad:n"], "sum", group)
        return out

    weights = divided(SEQ_W, a=(1, 4), b=(0, 4))
    return step, tensors(weights, True), tensors(divided(MLP_D, x=(0, 4), y=(0, 4)))


# Tensor parallel and FSDP: rows gathered over dp, columns over tp.
def both(bug: str, rank: int) -> Any:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    tp, dp = mesh["tp"].get_group(), mesh["dp"].get_group()

    def step(p: Tensors, d: Tensors) -> Tensors:
        a = GatherRows.apply(p["a"], tp if bug == "wrong group" else dp, "avg")
        b = GatherRows.apply(p["b"], dp, "sum" if bug == "sum" else "avg")
        o = F.relu(CopyTo.apply(d["x"], tp) @ a) @ b
        if bug != "no g":
            o = ReduceFrom.apply(o, tp)
        return grads(((o - d["y"]) ** 2).mean(), p)

    weights = {"a": (8, 16), "b": (8, 16)}
    return step, tensors(weights, True), tensors(divided(MLP_D, x=(0, 2), y=(0, 2)))


# Attention: all-to-all between sequence and heads, and a ring.
ATT_W = {"q": (16, 16), "k": (16, 16), "v": (16, 16), "o": (16, 16)}
ATT_D = {"x": (2, 8, 16)}


def attention_reference(p: Tensors, d: Tensors) -> Tensors:
    def heads(w: torch.Tensor) -> torch.Tensor:
        return (d["x"] @ w).unflatten(-1, (4, 4)).transpose(1, 2)

    s = torch.softmax(heads(p["q"]) @ heads(p["k"]).transpose(-1, -2) / 2, -1)
    y = (s @ heads(p["v"])).transpose(1, 2).flatten(-2)
    return grads(((y @ p["o"]) ** 2).mean(), p)


def ulysses(bug: str, rank: int) -> Any:
    init_device_mesh("cpu", (4,), mesh_dim_names=("cp",))
    group = dist.group.WORLD

    def swapped(t: torch.Tensor, n: int) -> torch.Tensor:
        t = t.permute(2, 1, 0, 3).contiguous()
        t = fc.wait_tensor(fc.all_to_all_single_autograd(t, None, None, group))
        return t.unflatten(0, (4, n)).permute(3, 1, 0, 2, 4).flatten(2, 3)

    def step(p: Tensors, d: Tensors) -> Tensors:
        q, k, v = (swapped((d["x"] @ p[n]).unflatten(-1, (4, 4)), 1) for n in "qkv")
        s = torch.softmax(q @ k.transpose(-1, -2) / (1 if bug == "no scale" else 2), -1)
        y = swapped(s @ v, 2).flatten(-2)
        out = grads(((y @ p["o"]) ** 2).sum() / (2 * 8 * 16), p)
        kind = "avg" if bug == "average" else "sum"
        return {n: fc.all_reduce(t, kind, group) for n, t in out.items()}

    return step, tensors(ATT_W, True), tensors(divided(ATT_D, x=(1, 4)))


def ring(bug: str, rank: int) -> Any:
    init_device_mesh("cpu", (2,), mesh_dim_names=("cp",))
    n = 2

    def step(p: Tensors, d: Tensors) -> Tensors:
        def heads(w: torch.Tensor) -> torch.Tensor:
            return (d["x"] @ w).unflatten(-1, (4, 4)).transpose(1, 2)

        q, k, v = heads(p["q"]), heads(p["k"]), heads(p["v"])
        top = torch.full_like(q[..., :1], -1e30)
        total, y = torch.zeros_like(top), torch.zeros_like(q)
        for i in range(n):
            s = q @ k.transpose(-1, -2) / 2
            new = torch.maximum(top, s.amax(-1, keepdim=True)).detach()
            weight, old = (s - new).exp(), (top - new).exp()
            if bug == "no rescaling":
                old = torch.ones_like(old)
            total, y, top = total * old + weight.sum(-1, keepdim=True), y * old + weight @ v, new
            if i + 1 < n:
                k, v = Turn.apply(k, 1), (v if bug == "values stay" else Turn.apply(v, 1))
        y = (y / total).transpose(1, 2).flatten(-2)
        out = grads(((y @ p["o"]) ** 2).sum() / (2 * 8 * 16), p)
        return {n: fc.all_reduce(t, "sum", dist.group.WORLD) for n, t in out.items()}

    return step, tensors(ATT_W, True), tensors(divided(ATT_D, x=(1, 2)))


# Experts: tokens are sent to the ranks of their experts, a fixed number to each.
EXP_W = {"w": (4, 16, 16)}
EXP_D = {"x": (16, 16)}


def experts_reference(p: Tensors, d: Tensors) -> Tensors:
    h = d["x"].unflatten(0, (4, 4))  # the tokens of four ranks; token i goes to expert i
    y = torch.einsum("tec,ecd->ted", h, p["w"]).flatten(0, 1)
    return grads(((torch.tanh(y) - d["x"]) ** 2).mean(), p)


def experts(bug: str, rank: int) -> Any:
    init_device_mesh("cpu", (4,), mesh_dim_names=("ep",))
    group = dist.group.WORLD

    def sent(t: torch.Tensor) -> torch.Tensor:
        return fc.wait_tensor(fc.all_to_all_single_autograd(t.contiguous(), None, None, group))

    def step(p: Tensors, d: Tensors) -> Tensors:
        y = sent(d["x"]) @ p["w"][0]
        y = y if bug == "not sent back" else sent(y)
        loss = ((torch.tanh(y) - d["x"]) ** 2).mean()
        out = grads(loss if bug == "sum" else loss / 4, p)
        return {**out, "loss": fc.all_reduce(out["loss"], "sum", group)}

    weights = divided(EXP_W, w=(0, 4))
    return step, tensors(weights, True), tensors(divided(EXP_D, x=(0, 4)))


# Vocabulary-parallel embedding and cross entropy.
VOC_W = {"e": (32, 8), "w": (8, 8)}
_DRAWN = torch.Generator().manual_seed(1)
VOC_D = {n: torch.randint(0, 32, (2, 6), generator=_DRAWN) for n in ("ids", "labels")}


def vocabulary_reference(p: Tensors, d: Tensors) -> Tensors:
    h = torch.tanh(F.embedding(d["ids"], p["e"]) @ p["w"])
    z = (h @ p["e"].t()).flatten(0, 1)
    return grads(F.cross_entropy(z, d["labels"].flatten()), p)


def vocabulary(bug: str, rank: int) -> Any:
    init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
    group, low = dist.group.WORLD, rank * 8

    def masked(t: torch.Tensor) -> Any:
        m = (t < low) | (t >= low + 8)
        return m, torch.where(m, 0, t - low)

    def step(p: Tensors, d: Tensors) -> Tensors:
        m, i = masked(d["ids"])
        h = F.embedding(i, p["e"])
        if bug != "no mask":
            h = torch.where(m.unsqueeze(-1), 0.0, h)
        if bug != "no embedding reduction":
            h = ReduceFrom.apply(h, group)
        h = torch.tanh(h @ p["w"])
        z = CopyTo.apply(h, group) @ p["e"].t()
        top = z.detach().amax(-1)
        if bug != "local maximum":
            dist.all_reduce(top, dist.ReduceOp.MAX)
        z = z - top.unsqueeze(-1)
        m, i = masked(d["labels"])
        picked = torch.where(m, 0.0, z.gather(-1, i.unsqueeze(-1)).squeeze(-1))
        t, s = ReduceFrom.apply(picked, group), z.exp().sum(-1)
        if bug != "local denominator":
            s = ReduceFrom.apply(s, group)
        return grads((s.log() - t).mean(), p)

    return step, tensors(divided(VOC_W, e=(0, 4)), True), tensors(VOC_D)


# Data parallel: buckets, accumulation, ZeRO-1, clipping.
def buckets(bug: str, rank: int) -> Any:
    init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))

    def step(p: Tensors, d: Tensors) -> Tensors:
        out = mlp_reference(p, d)
        names = [n for n in p if bug != "one left out" or n != "c"]
        flat = torch.cat([out["grad:" + n].reshape(-1) for n in names])
        dist.all_reduce(flat)
        if bug != "no mean":
            flat /= 4
        for n, g in zip(names, flat.split([p[n].numel() for n in names])):
            out["grad:" + n] = g.view_as(p[n])
        return out

    return step, tensors(MLP_W, True), tensors(divided(MLP_D, x=(0, 4), y=(0, 4)))


def accumulated(bug: str, rank: int) -> Any:
    init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))

    def step(p: Tensors, d: Tensors) -> Tensors:
        total = {n: torch.zeros_like(v) for n, v in p.items()}
        loss = torch.zeros(())
        for i, (x, y) in enumerate(zip(d["x"].chunk(2), d["y"].chunk(2))):
            out = mlp_reference(p, {"x": x, "y": y})
            loss = loss + out["loss"] / 2
            for n in p:
                total[n] += out["grad:" + n] / (1 if bug == "not divided" else 2)
            if i == 1 or bug == "synchronized twice":
                for n in p:
                    dist.all_reduce(total[n], op=dist.ReduceOp.AVG)
        if bug == "last alone":
            total = {n: out["grad:" + n] for n in p}
        return {"loss": loss, **{"grad:" + n: g for n, g in total.items()}}

    return step, tensors(MLP_W, True), tensors(divided(MLP_D, x=(0, 2), y=(0, 2)))


def zero_reference(p: Tensors, d: Tensors) -> Tensors:
    out = hand_reference(p, d)
    return {"loss": out["loss"], **{f"new:{n}": p[n] - 0.1 * out[f"grad:{n}"] for n in p}}


def zero(bug: str, rank: int) -> Any:
    init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))

    def step(p: Tensors, d: Tensors) -> Tensors:
        out = hand_reference(p, d)
        result = {"loss": out["loss"]}
        for n, v in p.items():
            g = torch.empty_like(v.chunk(4)[rank])
            dist.reduce_scatter_tensor(g, out["grad:" + n].contiguous())
            mine = v.detach().chunk(4)[0 if bug == "wrong shard" else rank] - 0.1 * (
                g if bug == "sum" else g / 4
            )
            new = torch.empty_like(v)
            dist.all_gather_into_tensor(new, mine.contiguous())
            result["new:" + n] = v - 0.1 * out["grad:" + n] if bug == "own gradient" else new
        return result

    return step, tensors(HAND_W, True), tensors(divided(MLP_D, x=(0, 4), y=(0, 4)))


def clip_reference(p: Tensors, d: Tensors) -> Tensors:
    out = hand_reference(p, d)
    norm = sum((out["grad:" + n] ** 2).sum() for n in p).sqrt()
    return {"loss": out["loss"], **{f"grad:{n}": out["grad:" + n] / (norm + 1e-6) for n in p}}


def clip(bug: str, rank: int) -> Any:
    init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
    group = dist.group.WORLD

    def step(p: Tensors, d: Tensors) -> Tensors:
        o = ReduceFrom.apply(F.relu(CopyTo.apply(d["x"], group) @ p["a"]) @ p["b"], group)
        out = grads(((o - d["y"]) ** 2).mean(), p)
        squares = sum((out["grad:" + n] ** 2).sum() for n in p)
        if bug != "local norm":
            squares = fc.all_reduce(squares, "avg" if bug == "average" else "sum", group)
        return {
            "loss": out["loss"],
            **{f"grad:{n}": out["grad:" + n] / (squares.sqrt() + 1e-6) for n in p},
        }

    return step, tensors(divided(HAND_W, a=(1, 4), b=(0, 4)), True), tensors(MLP_D)


# Two stages, two micro-batches, in the order of 1F1B.
PIPE_W = {"u": (8, 8), "v": (8, 8)}
PIPE_D = {"x": (4, 8), "y": (4, 8)}


def pipe_reference(p: Tensors, d: Tensors) -> Tensors:
    return grads(((torch.tanh(d["x"] @ p["u"]) @ p["v"] - d["y"]) ** 2).mean(), p)


def pipe(bug: str, rank: int) -> Any:
    def first(p: Tensors, d: Tensors) -> Tensors:
        hs = [torch.tanh(x @ p["u"]) for x in d["x"].chunk(2)]
        for h in hs:
            dist.send(h.detach(), 1)
        total = torch.zeros(8, 8)
        for h in hs[::-1] if bug == "order" else hs:
            g = torch.empty(2, 8)
            dist.recv(g, 1)
            total = total + torch.autograd.grad(h, p["u"], g)[0]
        return {"grad:u": total}

    def second(p: Tensors, d: Tensors) -> Tensors:
        total, loss = torch.zeros(8, 8), torch.zeros(())
        for y in d["y"].chunk(2):
            h = torch.empty(2, 8)
            dist.recv(h, 0)
            h.requires_grad_()
            one = ((h @ p["v"] - y) ** 2).mean() / (1 if bug == "not divided" else 2)
            gh, gv = torch.autograd.grad(one, [h, p["v"]])
            total, loss = total + gv, loss + one.detach()
            if bug == "deadlock":
                dist.recv(torch.empty(2, 8), 0)
            dist.send(gh, 0)
        return {"loss": loss, "grad:v": total}

    if rank == 0:
        return first, tensors({"u": (8, 8)}, True), tensors({"x": (4, 8)})
    return second, tensors({"v": (8, 8)}, True), tensors({"y": (4, 8)})


_DATA = {"x": {"dp": 0}, "y": {"dp": 0}}
CASES = {
    "tensor and data parallel": Case(
        mlp, mlp_reference, {"dp": 2, "tp": 2}, MLP_W, MLP_D,
        {**_DATA, "a": {"tp": 1}, "b": {"tp": 0}},
    ),
    "DTensor tensor parallel": Case(
        functools.partial(dtensor, False), net_reference, {"tp": 4}, NET_W, NET_D
    ),
    "DTensor sequence parallel": Case(
        functools.partial(dtensor, True), net_reference, {"tp": 4}, NET_W, NET_D
    ),
    "sequence parallel": Case(sequence, sequence_reference, {"tp": 4}, SEQ_W, MLP_D),
    "sharded by hand": Case(hand, hand_reference, {"dp": 4}, HAND_W, MLP_D),
    "FSDP2": Case(functools.partial(fsdp, (4,), ("dp",)), net_reference, {"dp": 4}, NET_W, NET_D),
    "HSDP": Case(
        functools.partial(fsdp, (2, 2), ("dp", "shard")), net_reference, {"dp": 2, "shard": 2},
        NET_W, NET_D, {n: {"shard": 0} for n in NET_W},
    ),
    "FSDP2 accumulated": Case(
        accumulated_fsdp, net_reference, {"dp": 4}, NET_W, NET_D, micro_batches=(2,)
    ),
    "DTensor and FSDP2": Case(
        tensor_parallel_fsdp, net_reference, {"dp": 2, "tp": 2}, NET_W, NET_D, BOTH_HINTS
    ),
    "tensor parallel and sharded": Case(
        both, hand_reference, {"dp": 2, "tp": 2}, HAND_W, MLP_D,
        {**_DATA, "a": {"dp": 0, "tp": 1}, "b": {"tp": 0, "dp": 0}},
    ),
    "all-to-all attention": Case(ulysses, attention_reference, {"cp": 4}, ATT_W, ATT_D),
    "ring attention": Case(ring, attention_reference, {"cp": 2}, ATT_W, ATT_D),
    "experts": Case(experts, experts_reference, {"ep": 4}, EXP_W, EXP_D),
    "vocabulary parallel": Case(vocabulary, vocabulary_reference, {"tp": 4}, VOC_W, VOC_D),
    "buckets": Case(buckets, mlp_reference, {"dp": 4}, MLP_W, MLP_D),
    "accumulated": Case(
        accumulated, mlp_reference, {"dp": 2}, MLP_W, MLP_D, micro_batches=(2,)
    ),
    "ZeRO-1": Case(zero, zero_reference, {"dp": 4}, HAND_W, MLP_D),
    "clipped": Case(clip, clip_reference, {"tp": 4}, HAND_W, MLP_D),
    "1F1B": Case(pipe, pipe_reference, {"pp": 2}, PIPE_W, PIPE_D, micro_batches=(2,)),
}  # fmt: skip
"""Right programs, by name."""
