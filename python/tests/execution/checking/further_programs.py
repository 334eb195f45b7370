# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Further programs of torch that are distributed by hand, right and with faults."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh

from .cases import Case, Tensors, divided, grads, tensors
from .communicating_functions import CopyTo, ReduceFrom, Turn, turned

NET_W = {"a": (16, 32), "b": (32, 16)}
NET_D = {"x": (8, 16), "y": (8, 16)}


def net(p: Tensors, d: Tensors) -> Tensors:
    return grads(((torch.tanh(d["x"] @ p["a"]) @ p["b"] - d["y"]) ** 2).mean(), p)


# A pipeline of two ranks, each with two stages of four.
CHUNK_W = {f"w{i}": (8, 8) for i in range(4)}
CHUNK_D = {"x": (4, 8), "y": (4, 8)}


def chunks_reference(p: Tensors, d: Tensors) -> Tensors:
    h = d["x"]
    for i in range(4):
        h = torch.tanh(h @ p[f"w{i}"])
    return grads(((h - d["y"]) ** 2).mean(), p)


def interleaved(bug: str, rank: int) -> Any:
    init_device_mesh("cpu", (2,), mesh_dim_names=("pp",))
    mine = [f"w{rank}", f"w{rank + 2}"]
    order = mine[::-1] if bug == "stages swapped" else mine

    def received(shape: Any) -> torch.Tensor:
        buffer = torch.empty(shape)
        dist.recv(buffer, 1 - rank)
        return buffer

    def step(p: Tensors, d: Tensors) -> Tensors:
        kept = []
        for number, name in enumerate(order):
            first = rank == 0 and number == 0
            h = d["x"] if first else received((4, 8)).requires_grad_()
            out = torch.tanh(h @ p[name])
            kept.append((h, name, out))
            if not (rank == 1 and number == 1):
                dist.send(out.detach(), 1 - rank)
        result = {}
        for number, (h, name, out) in reversed(list(enumerate(kept))):
            wanted = [p[name]] if h is d.get("x") else [p[name], h]
            if rank == 1 and number == 1:
                loss = ((out - d["y"]) ** 2).mean()
                result["loss"] = loss
                found = torch.autograd.grad(loss, wanted)
            else:
                found = torch.autograd.grad(out, wanted, received((4, 8)))
            result[f"grad:{name}"] = found[0]
            if len(found) > 1:
                dist.send(found[1], 1 - rank)
        return result

    shapes = {n: (8, 8) for n in mine}
    return step, tensors(shapes, True), tensors({"x": (4, 8)} if rank == 0 else {"y": (4, 8)})


# ZeRO-2: gradients in a padded flat buffer, of which each rank updates a part.
FLAT_W = {"a": (5, 3), "b": (3, 5), "c": (5,)}
FLAT_D = {"x": (8, 5), "y": (8, 5)}


def flat_loss(p: Tensors, d: Tensors) -> Tensors:
    return grads(((torch.tanh(d["x"] @ p["a"]) @ p["b"] + p["c"] - d["y"]) ** 2).mean(), p)


def flat_reference(p: Tensors, d: Tensors) -> Tensors:
    out = flat_loss(p, d)
    return {"loss": out["loss"], **{f"new:{n}": p[n] - 0.1 * out[f"grad:{n}"] for n in p}}


def padded(bug: str, rank: int) -> Any:
    init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))

    def flat(values: list[torch.Tensor]) -> torch.Tensor:
        return F.pad(torch.cat([v.reshape(-1) for v in values]), (0, 1))  # 35 numbers

    def step(p: Tensors, d: Tensors) -> Tensors:
        out = flat_loss(p, d)
        mine = torch.empty(9)
        dist.reduce_scatter_tensor(mine, flat([out[f"grad:{n}"] for n in p]))
        old = flat([v.detach() for v in p.values()])
        begin = 9 * rank - (1 if bug == "shifted" and rank else 0)
        mine = old[begin : begin + 9] - 0.1 * (mine if bug == "not averaged" else mine / 4)
        new = torch.empty(36)
        dist.all_gather_into_tensor(new, mine)
        parts = new[:35].split([v.numel() for v in p.values()])
        result = {f"new:{n}": part.view(p[n].shape) for n, part in zip(p, parts)}
        return {"loss": out["loss"], **result}

    return step, tensors(FLAT_W, True), tensors(divided(FLAT_D, x=(0, 4), y=(0, 4)))


# Attention by all-to-all, with two heads of keys and values for four of queries.
GQA_W = {"q": (16, 16), "k": (16, 8), "v": (16, 8), "o": (16, 16)}
GQA_D = {"x": (2, 8, 16)}


def gqa(q: Any, k: Any, v: Any, interleaved: bool = True) -> torch.Tensor:
    n = q.shape[1] // k.shape[1]
    if interleaved:
        k, v = k.repeat_interleave(n, 1), v.repeat_interleave(n, 1)
    else:
        k, v = k.repeat(1, n, 1, 1), v.repeat(1, n, 1, 1)
    s = torch.softmax(q @ k.transpose(-1, -2) / 2, -1)
    return s @ v


def heads(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w).unflatten(-1, (-1, 4)).transpose(1, 2)


def gqa_reference(p: Tensors, d: Tensors) -> Tensors:
    y = gqa(*(heads(d["x"], p[n]) for n in "qkv")).transpose(1, 2).flatten(-2)
    return grads(((y @ p["o"]) ** 2).mean(), p)


def grouped_ulysses(bug: str, rank: int) -> Any:
    init_device_mesh("cpu", (2,), mesh_dim_names=("cp",))

    def exchanged(t: torch.Tensor, split: int, joined: int) -> torch.Tensor:
        parts = torch.stack(t.chunk(2, split)).contiguous()
        parts = fc.wait_tensor(fc.all_to_all_single_autograd(parts, None, None, dist.group.WORLD))
        return torch.cat(list(parts.unbind(0)), joined)

    def step(p: Tensors, d: Tensors) -> Tensors:
        q, k, v = (exchanged(heads(d["x"], p[n]), 1, 2) for n in "qkv")
        if bug == "other heads":
            q = q.flip(1)
        y = exchanged(gqa(q, k, v), 2, 1).transpose(1, 2).flatten(-2)
        out = grads(((y @ p["o"]) ** 2).mean(), p)
        names = [n for n in out if bug != "keys not reduced" or n != "grad:k"]
        return {**out, **{n: fc.all_reduce(out[n], "avg", dist.group.WORLD) for n in names}}

    return step, tensors(GQA_W, True), tensors(divided(GQA_D, x=(1, 2)))


def replicated_keys(bug: str, rank: int) -> Any:
    """Four ranks share two heads of keys and values: each head is on two ranks."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("kv", "copy"))
    copies = mesh["copy"].get_group()

    def step(p: Tensors, d: Tensors) -> Tensors:
        x = CopyTo.apply(CopyTo.apply(d["x"], copies), mesh["kv"].get_group())
        y = gqa(*(heads(x, p[n]) for n in "qkv")).transpose(1, 2).flatten(-2)
        y = ReduceFrom.apply(ReduceFrom.apply(y @ p["o"], copies), mesh["kv"].get_group())
        out = grads((y**2).mean(), p)
        for name in ("grad:k", "grad:v") if bug != "copies differ" else ():
            out[name] = fc.all_reduce(out[name], "sum", copies)
        return out

    weights = divided(GQA_W, q=(1, 4), k=(1, 2), v=(1, 2), o=(0, 4))
    return step, tensors(weights, True), tensors(GQA_D)


def ring(bug: str, rank: int) -> Any:
    """Keys and values of four ranks go round, with a causal mask."""
    init_device_mesh("cpu", (4,), mesh_dim_names=("cp",))

    def step(p: Tensors, d: Tensors) -> Tensors:
        q, k, v = (heads(d["x"], p[n]) for n in "qkv")
        scores, values = [], []
        for _ in range(4):
            scores.append(q @ k.transpose(-1, -2) / 2)
            values.append(v)
            k, v = Turn.apply(k, 1), Turn.apply(v, 3 if bug == "wrong rotation" else 1)
        s = torch.softmax(torch.cat(scores, -1), -1)
        y = (s @ torch.cat(values, 2)).transpose(1, 2).flatten(-2)
        out = grads(((y @ p["o"]) ** 2).mean(), p)
        return {n: fc.all_reduce(t, "avg", dist.group.WORLD) for n, t in out.items()}

    return step, tensors({**GQA_W, "k": (16, 16), "v": (16, 16)}, True), tensors({"x": (2, 2, 16)})


# Experts with a capacity: what is over it is dropped.
MOE_W = {"r": (8, 4), "w": (4, 8, 8)}
MOE_D = {"x": (2, 6, 8)}


def dispatched(p: Tensors, x: torch.Tensor, drops: bool = True) -> tuple[torch.Tensor, ...]:
    gates = torch.softmax(x @ p["r"], -1)
    chosen = F.one_hot(gates.argmax(-1), 4).to(gates.dtype)
    place = (chosen.cumsum(0) * chosen - 1).long()
    slots = F.one_hot(place.clamp(0, 1), 2).to(gates.dtype) * chosen.unsqueeze(-1)
    kept = (place < 2).to(gates.dtype).unsqueeze(-1) if drops else 1.0
    slots = slots * kept
    return slots, slots * (gates * chosen).sum(-1)[:, None, None]


def capacity_reference(p: Tensors, d: Tensors) -> Tensors:
    loss = torch.zeros(())
    for x in d["x"].unbind(0):
        slots, weights = dispatched(p, x)
        y = torch.einsum("ecd,edf->ecf", torch.einsum("tec,td->ecd", slots, x), p["w"])
        loss = loss + ((torch.einsum("tec,ecf->tf", weights, torch.tanh(y)) - x) ** 2).mean() / 2
    return grads(loss, p)


def capacity(bug: str, rank: int) -> Any:
    init_device_mesh("cpu", (2,), mesh_dim_names=("ep",))

    def exchanged(t: torch.Tensor) -> torch.Tensor:
        parts = fc.all_to_all_single_autograd(t.contiguous(), None, None, dist.group.WORLD)
        return fc.wait_tensor(parts)

    def step(p: Tensors, d: Tensors) -> Tensors:
        x = d["x"][0]
        slots, weights = dispatched(p, x, bug != "no drop")
        sent = exchanged(torch.einsum("tec,td->ecd", slots, x))
        y = sent.unflatten(0, (2, 2)).transpose(0, 1).flatten(1, 2)  # experts, sources x slots
        y = torch.tanh(torch.einsum("ecd,edf->ecf", y, p["w"]))
        y = exchanged(y.unflatten(1, (2, 2)).transpose(0, 1).flatten(0, 1))
        loss = ((torch.einsum("tec,ecf->tf", weights, y) - x) ** 2).mean() / 2
        out = grads(loss, p)
        if bug != "router not reduced":
            out["grad:r"] = fc.all_reduce(out["grad:r"], "sum", dist.group.WORLD)
        return {**out, "loss": fc.all_reduce(out["loss"], "sum", dist.group.WORLD)}

    return step, tensors(divided(MOE_W, w=(0, 2)), True), tensors(divided(MOE_D, x=(0, 2)))


# An embedding that the first and the last stage share.
TIED_W = {"e": (12, 8), "w": (8, 8)}
_IDS = torch.arange(8).view(2, 4)
TIED_D = {"ids": _IDS, "labels": (_IDS + 3) % 12}


def tied_reference(p: Tensors, d: Tensors) -> Tensors:
    h = torch.tanh(F.embedding(d["ids"], p["e"]) @ p["w"])
    return grads(F.cross_entropy((h @ p["e"].t()).flatten(0, 1), d["labels"].flatten()), p)


def tied(bug: str, rank: int) -> Any:
    init_device_mesh("cpu", (2,), mesh_dim_names=("pp",))

    def summed(g: torch.Tensor) -> torch.Tensor:
        return g if bug == "not summed" else fc.all_reduce(g, "sum", dist.group.WORLD)

    def first(p: Tensors, d: Tensors) -> Tensors:
        h = F.embedding(d["ids"], p["e"])
        dist.send(h.detach(), 1)
        g = torch.empty(2, 4, 8)
        dist.recv(g, 1)
        return {"grad:e": summed(torch.autograd.grad(h, p["e"], g)[0])}

    def last(p: Tensors, d: Tensors) -> Tensors:
        h = torch.empty(2, 4, 8)
        dist.recv(h, 0)
        h.requires_grad_()
        z = (torch.tanh(h @ p["w"]) @ p["e"].t()).flatten(0, 1)
        loss = F.cross_entropy(z, d["labels"].flatten())
        gh, ge, gw = torch.autograd.grad(loss, [h, p["e"], p["w"]])
        dist.send(gh, 0)
        return {"loss": loss, "grad:e": summed(ge), "grad:w": gw}

    if rank == 0:
        return first, tensors({"e": (12, 8)}, True), {"ids": TIED_D["ids"]}
    return last, tensors(TIED_W, True), {"labels": TIED_D["labels"]}


# Data parallel programs.
def loss_scaled(bug: str, rank: int) -> Any:
    init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))

    def step(p: Tensors, d: Tensors) -> Tensors:
        h = torch.tanh(d["x"] @ p["a"]) @ p["b"]
        loss = ((h - d["y"]) ** 2).mean()
        out = grads(loss if bug == "not scaled" else loss * 4, p)
        reduced = {
            n: fc.all_reduce(out[n], "sum", dist.group.WORLD) / 16 for n in out if n != "loss"
        }
        return {"loss": loss, **reduced}

    return step, tensors(NET_W, True), tensors(divided(NET_D, x=(0, 4), y=(0, 4)))


MASK = torch.tensor([1.0, 0, 0, 1, 1, 1, 1, 0])


def masked_reference(p: Tensors, d: Tensors) -> Tensors:
    each = ((torch.tanh(d["x"] @ p["a"]) @ p["b"] - d["y"]) ** 2).mean(-1)
    return grads((each * d["mask"]).sum() / d["mask"].sum(), p)


def masked_mean(bug: str, rank: int) -> Any:
    init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))

    def step(p: Tensors, d: Tensors) -> Tensors:
        each = ((torch.tanh(d["x"] @ p["a"]) @ p["b"] - d["y"]) ** 2).mean(-1)
        count = d["mask"].sum()
        if bug != "local counts":
            count = fc.all_reduce(count, "sum", dist.group.WORLD) / 2
        out = grads((each * d["mask"]).sum() / count, p)
        return {n: fc.all_reduce(t, "avg", dist.group.WORLD) for n, t in out.items()}

    data = tensors(divided(NET_D, x=(0, 2), y=(0, 2)))
    return step, tensors(NET_W, True), {**data, "mask": MASK.chunk(2)[rank]}


NORM_W = {"a": (16, 16), "g": (16,), "h": (16,)}


def norm_reference(p: Tensors, d: Tensors) -> Tensors:
    z = F.batch_norm(d["x"] @ p["a"], None, None, p["g"], p["h"], training=True)
    return grads(((torch.tanh(z) - d["y"]) ** 2).mean(), p)


def batch_norm(bug: str, rank: int) -> Any:
    init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))

    def mean(x: torch.Tensor) -> torch.Tensor:
        x = x.mean(0)
        if bug == "local statistics":
            return x
        return CopyTo.apply(ReduceFrom.apply(x, dist.group.WORLD), dist.group.WORLD) / 2

    def step(p: Tensors, d: Tensors) -> Tensors:
        z = d["x"] @ p["a"]
        m = mean(z)
        z = (z - m) * torch.rsqrt(mean((z - m) ** 2) + 1e-5) * p["g"] + p["h"]
        out = grads(((torch.tanh(z) - d["y"]) ** 2).mean(), p)
        return {n: fc.all_reduce(t, "avg", dist.group.WORLD) for n, t in out.items()}

    return step, tensors(NORM_W, True), tensors(divided(NET_D, x=(0, 2), y=(0, 2)))


# Tensor parallel programs.
LORA_W = {"w": (16, 32), "down": (16, 4), "up": (4, 32), "o": (32, 16)}


def lora_reference(p: Tensors, d: Tensors) -> Tensors:
    h = torch.tanh(d["x"] @ p["w"] + 2 * (d["x"] @ p["down"]) @ p["up"])
    return grads(((h @ p["o"] - d["y"]) ** 2).mean(), p)


def lora(bug: str, rank: int) -> Any:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    tp, dp = mesh["tp"].get_group(), mesh["dp"].get_group()
    if bug == "transposed groups":
        tp, dp = dp, tp

    def step(p: Tensors, d: Tensors) -> Tensors:
        low = d["x"] @ p["down"]
        if bug != "adapter not reduced":
            low = CopyTo.apply(low, tp)
        h = torch.tanh(d["x"] @ p["w"] + 2 * low @ p["up"])
        out = grads(((ReduceFrom.apply(h @ p["o"], tp) - d["y"]) ** 2).mean(), p)
        for name in p:
            out["grad:" + name] = fc.all_reduce(out["grad:" + name], "avg", dp)
        return out

    weights = divided(LORA_W, w=(1, 2), up=(1, 2), o=(0, 2))
    return step, tensors(weights, True), tensors(divided(NET_D, x=(0, 2), y=(0, 2)))


def gathered(bug: str, rank: int) -> Any:
    """Columns of a product are gathered as a list, and joined."""
    init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))

    def step(p: Tensors, d: Tensors) -> Tensors:
        h = torch.tanh(d["x"] @ p["a"])
        parts = [torch.empty_like(h) for _ in range(4)]
        dist.all_gather(parts, h)
        if bug == "wrong order":
            parts = parts[1:] + parts[:1]
        h = torch.cat(parts).view(8, 32) if bug == "wrong dim" else torch.cat(parts, 1)
        return {"z": h @ p["b"]}

    return step, tensors(divided(NET_W, a=(1, 4))), tensors({"x": (8, 16)})


def gathered_reference(p: Tensors, d: Tensors) -> Tensors:
    return {"z": torch.tanh(d["x"] @ p["a"]) @ p["b"]}


EMB_W, EMB_D = {"e": (12, 8)}, {"ids": torch.tensor([[0, 5, 6, 11], [3, 6, 7, 1]])}


def embedding_reference(p: Tensors, d: Tensors) -> Tensors:
    return grads((F.embedding(d["ids"], p["e"]) ** 2).mean(), p)


def embedding(bug: str, rank: int) -> Any:
    init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    low = 6 * rank

    def step(p: Tensors, d: Tensors) -> Tensors:
        over = d["ids"] > low + 6 if bug == "wrong mask" else d["ids"] >= low + 6
        mask = (d["ids"] < low) | over
        index = (d["ids"] - low).clamp(0, 5)
        h = F.embedding(index, p["e"]) * (~mask).unsqueeze(-1)
        return grads((ReduceFrom.apply(h, dist.group.WORLD) ** 2).mean(), p)

    return step, tensors(divided(EMB_W, e=(0, 2)), True), EMB_D


def half_reduction(bug: str, rank: int) -> Any:
    init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))

    def step(p: Tensors, d: Tensors) -> Tensors:
        out = net(p, d)
        for name in p:
            g = out["grad:" + name].bfloat16()
            work = dist.all_reduce(g, op=dist.ReduceOp.AVG, async_op=True)
            if bug != "not waited":
                work.wait()
            out["grad:" + name] = g.float()
        return out

    return step, tensors(NET_W, True), tensors(divided(NET_D, x=(0, 4), y=(0, 4)))


def stale(bug: str, rank: int) -> Any:
    """A value is sent round, and back."""
    init_device_mesh("cpu", (4,), mesh_dim_names=("cp",))

    def step(p: Tensors, d: Tensors) -> Tensors:
        h = turned(torch.tanh(d["x"] @ p["a"]), 1)
        return {"z": turned(h, 1 if bug == "on" else 3) @ p["b"]}

    return step, tensors(NET_W), tensors({"x": (2, 16)})


_DATA = {"x": {"dp": 0}, "y": {"dp": 0}}
_KEYS = {"q": {"kv": 1, "copy": 1}, "k": {"kv": 1}, "v": {"kv": 1}, "o": {"kv": 0, "copy": 0}}
_LORA = {**_DATA, "w": {"tp": 1}, "up": {"tp": 1}, "o": {"tp": 0}}
FURTHER = {
    "interleaved stages": Case(interleaved, chunks_reference, {"pp": 2}, CHUNK_W, CHUNK_D),
    "ZeRO-2": Case(padded, flat_reference, {"dp": 4}, FLAT_W, FLAT_D),
    "grouped heads": Case(grouped_ulysses, gqa_reference, {"cp": 2}, GQA_W, GQA_D),
    "replicated keys": Case(
        replicated_keys, gqa_reference, {"kv": 2, "copy": 2}, GQA_W, GQA_D, _KEYS
    ),
    "ring of four": Case(
        ring, gqa_reference, {"cp": 4}, {**GQA_W, "k": (16, 16), "v": (16, 16)}, GQA_D
    ),
    "capacity": Case(capacity, capacity_reference, {"ep": 2}, MOE_W, MOE_D),
    "tied embedding": Case(tied, tied_reference, {"pp": 2}, TIED_W, TIED_D),
    "scaled loss": Case(loss_scaled, net, {"dp": 4}, NET_W, NET_D),
    "masked mean": Case(masked_mean, masked_reference, {"dp": 2}, NET_W, {**NET_D, "mask": MASK}),
    "batch norm": Case(batch_norm, norm_reference, {"dp": 2}, NORM_W, NET_D),
    "adapters": Case(lora, lora_reference, {"dp": 2, "tp": 2}, LORA_W, NET_D, _LORA),
    "gathered list": Case(gathered, gathered_reference, {"tp": 4}, NET_W, {"x": (8, 16)}),
    "embedding": Case(embedding, embedding_reference, {"tp": 2}, EMB_W, EMB_D),
    "half reduction": Case(half_reduction, net, {"dp": 4}, NET_W, NET_D),
    "round and back": Case(stale, gathered_reference, {"cp": 4}, NET_W, {"x": (8, 16)}),
}
"""Right programs, by name."""
