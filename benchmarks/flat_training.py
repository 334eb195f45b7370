# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""How long strategies take to plan flat training steps of four GPT layers.

One step is ours, AdamW, with its private functions inlined; with ``--torch`` others are what torch
writes of loss and gradients, and of a whole step with Adam, imported (the extra ``torch``). Each
strategy plans each of them for eight devices, by bytes and by the times of a system. A strategy
that has nothing to do there says so, with a code.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from measure import cpu_seconds, interleaved, parser, print_setting, table
from models import binding_count
from tvm import ir

import tvm_distir as td
from tvm_distir.core.ir.attributes.keys import PARAM_NAMES_ATTR
from tvm_distir.support.errors.tree import DistIRError

LAYERS = 4
SYSTEM = "dgx-a100"
BOUND_S = 3.0
ONE, TWO = 8, (2, 4)  # devices along the only axis, and along two axes
STRATEGIES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("data_parallel", ("dp",)),
    ("zero:stage=1", ("dp",)),
    ("zero:stage=2", ("dp",)),
    ("zero:stage=3", ("dp",)),
    ("fsdp", ("dp",)),
    ("hsdp", ("pod", "dp")),
    ("deepspeed_zero1", ("dp",)),
    ("deepspeed_zero2", ("dp",)),
    ("deepspeed_zero3", ("dp",)),
    ("lightning_sharded", ("dp",)),
    ("megatron", ("tp",)),
    ("megatron:sequence=1", ("tp",)),
    ("tensor_parallel", ("tp",)),
    ("sequence", ("tp",)),
    ("tensor_parallel+sequence", ("tp",)),
    ("context_parallel", ("cp",)),
    ("context_parallel:form=ring", ("cp",)),
    ("context_parallel:form=gather", ("cp",)),
    ("data_parallel+tensor_parallel", ("dp", "tp")),
    ("fsdp+tensor_parallel+sequence", ("dp", "tp")),
    ("fsdp+megatron+context_parallel", ("dp", "tp", "cp")),
    ("local_layers", ("br",)),
    ("expert_parallel", ("ep",)),
    ("spatial_parallel", ("sp",)),
    ("pipeline", ("pp",)),
)


def our_step() -> ir.IRModule:
    """GPT-2's layers with AdamW, all in one function."""
    sizes = {"size": "gpt2", "layers": str(LAYERS), "heads": "16", "hidden": "1024", "batch": "8"}
    step = td.train_step(td.zoo.build("gpt", sizes), optimizer="adamw")
    return td.transforms.InlinePrivateFunctions()(step)


def torch_model() -> tuple[Any, Any]:
    """A GPT of torch with names that Megatron knows, and the tokens of a batch."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    hidden, heads, vocab, length, batch = 256, 16, 512, 64, 8

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
            self.q_proj, self.k_proj = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)
            self.v_proj, self.o_proj = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)
            self.up_proj, self.down_proj = nn.Linear(hidden, 1024), nn.Linear(1024, hidden)

        def forward(self, x: Any) -> Any:
            y = self.ln_1(x)
            q, k, v = (
                project(y).unflatten(2, (heads, -1)).transpose(1, 2)
                for project in (self.q_proj, self.k_proj, self.v_proj)
            )
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.o_proj(attended.transpose(1, 2).flatten(2))
            return x + self.down_proj(F.gelu(self.up_proj(self.ln_2(x))))

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wte, self.wpe = nn.Embedding(vocab, hidden), nn.Embedding(length, hidden)
            self.h = nn.ModuleList(Layer() for _ in range(LAYERS))
            self.ln_f, self.lm_head = nn.LayerNorm(hidden), nn.Linear(hidden, vocab, bias=False)

        def forward(self, ids: Any, target: Any) -> tuple[Any]:
            x = self.wte(ids) + self.wpe(torch.arange(length))
            for layer in self.h:
                x = layer(x)
            logits = self.lm_head(self.ln_f(x))
            return (F.cross_entropy(logits.flatten(0, 1), target.flatten()),)

    return Gpt(), torch.zeros(batch, length, dtype=torch.int64)


def torch_joint() -> ir.IRModule:
    """The loss and all gradients, as torch exports them."""
    import torch
    from torch.export.experimental import _export_forward_backward
    from torch.nn.attention import SDPBackend, sdpa_kernel

    model, tokens = torch_model()
    with sdpa_kernel(SDPBackend.MATH):
        program = _export_forward_backward(torch.export.export(model, (tokens, tokens)))
    return td.from_exported_program(program)


def torch_step() -> ir.IRModule:
    """A whole step: gradients by torch.func, Adam by hand."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    model, tokens = torch_model()
    names = [name for name, _ in model.named_parameters()]

    def step(ids: Any, target: Any, weights: Any, first: Any, second: Any) -> Any:
        def loss_of(weights: Any) -> Any:
            return torch.func.functional_call(model, dict(zip(names, weights)), (ids, target))[0]

        gradients, loss = torch.func.grad_and_value(loss_of)(weights)
        first = [0.9 * m + 0.1 * g for m, g in zip(first, gradients)]
        second = [0.99 * v + 0.01 * g * g for v, g in zip(second, gradients)]
        updated = [w - 0.001 * m / (v.sqrt() + 1e-8) for w, m, v in zip(weights, first, second)]
        return (loss, *updated, *first, *second)

    weights = [p.detach() for p in model.parameters()]
    states = [torch.zeros_like(w) for w in weights]
    inputs = (tokens, tokens, weights, states, states)
    trace = torch.fx.experimental.proxy_tensor.make_fx(step, tracing_mode="fake")
    with sdpa_kernel(SDPBackend.MATH):
        mod = td.from_exported_program(torch.export.export(trace(*inputs), inputs, strict=False))
    main = mod["main"].with_attr("num_input", 2)
    called = ["ids", "target", *(f"{kind}{n}" for kind in ("", "m.", "v.") for n in names)]
    mod["main"] = main.with_attr(PARAM_NAMES_ATTR, called)
    return mod


def sizes_of(axes: tuple[str, ...]) -> dict[str, int]:
    """Return how many devices stand along each axis."""
    counts = {1: (ONE,), 2: TWO, 3: (2, 2, 2)}[len(axes)]
    return dict(zip(axes, counts, strict=True))


def measured(
    mod: ir.IRModule, text: str, axes: tuple[str, ...], repeat: int
) -> tuple[list[float], str]:
    """CPU seconds of a plan by bytes and by times; the code of its refusal, if it is refused."""
    mesh = sizes_of(axes)
    messages: set[str] = set()

    def plan(system: str | None) -> None:
        try:
            td.planning.make_plan(mod, text, mesh, system)
        except DistIRError as error:
            messages.add(error.code)

    systems = (None, SYSTEM)
    times = [lambda s=s: cpu_seconds(lambda: plan(s)) for s in systems]
    return interleaved(times, repeat), ", ".join(sorted(messages))


def report(steps: Mapping[str, ir.IRModule], repeat: int) -> float:
    """Print the table of all steps, the longer way of each; return the longest time."""
    rows, longest = [], 0.0
    for text, axes in STRATEGIES:
        row = [f"`{text}`", ", ".join(f"{axis} {n}" for axis, n in sizes_of(axes).items())]
        for mod in steps.values():
            times, code = measured(mod, text, axes, repeat)
            longest = max(longest, *times)
            row.append(code or f"{max(times):.2f}")
        rows.append(row)
    table(["strategy", "devices", *(f"{title}, s" for title in steps)], rows)
    return longest


def main() -> None:
    """Print how large the steps are, and the table."""
    options = parser(__doc__)
    options.add_argument("--torch", action="store_true", help="steps that torch writes, too")
    arguments = options.parse_args()
    print_setting()
    warnings.simplefilter("ignore")  # bounds that tensor_parallel cannot meet
    makers = {"our AdamW step, inlined": our_step}
    if arguments.torch:
        makers["torch's loss and gradients"] = torch_joint
        makers["torch's Adam step"] = torch_step
    steps = {title: make() for title, make in makers.items()}
    for title, mod in steps.items():
        print(f"{title}: {binding_count(mod):,} bindings")
    print()
    longest = report(steps, arguments.repeat)
    print(f"the longest takes {longest:.2f} s; within {BOUND_S:.0f} s: {longest <= BOUND_S}")


if __name__ == "__main__":
    main()
