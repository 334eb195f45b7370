# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Writes programs of JAX as StableHLO, each with inputs and with what JAX computes of them.

``python scripts/peers/jax_programs.py FOLDER [NAME ...]`` in an environment that has jax.
NAME.mlir is
the text, NAME.mlirbc the same as bytecode, NAME.npz the inputs (``in:NUMBER``) in its order and
the results (``out:NUMBER``). Locations of operations, which name files, are left out of the text;
names of arguments stay.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jax_functions as models
import numpy as np
from jax_functions import (
    BATCH,
    HEADS,
    LENGTH,
    WIDTH,
    WORDS,
    cnn,
    decode,
    depthwise,
    draw,
    gpt,
    gpt_checkpoint,
    gpt_flat,
    gpt_scan,
    gpt_weights,
    ids,
    llama,
    llama_weights,
    many,
    mlp,
    moe,
    recurrent,
)


def _cross_entropy(f: Any, p: Any, ids: Any, y: Any) -> Any:
    scores = jax.nn.log_softmax(f(p, ids))
    return -jnp.take_along_axis(scores, y[..., None], -1).mean()


def _square(f: Any, p: Any, x: Any) -> Any:
    return (f(p, x) ** 2).mean()


def _gradient(loss: Any, p: Any, *data: Any) -> Any:
    return jax.value_and_grad(loss)(p, *data)


def _adam(loss: Any, p: Any, m: Any, v: Any, t: Any, *data: Any) -> Any:
    value, g = jax.value_and_grad(loss)(p, *data)
    t = t + 1
    m = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, m, g)
    v = jax.tree.map(lambda a, b: 0.999 * a + 0.001 * b * b, v, g)
    step = 1e-3 * jnp.sqrt(1 - 0.999**t) / (1 - 0.9**t)
    p = jax.tree.map(lambda a, b, c: a - step * b / (jnp.sqrt(c) + 1e-4), p, m, v)
    return value, p, m, v, t


def _families() -> dict[str, tuple[Any, Any, tuple[Any, ...], Any]]:
    """Per family: function, weights, data, loss."""
    words = ids(), ids()
    tokens = {n: partial(_cross_entropy, f) for n, f in vars(models).items() if n in _OF_WORDS}
    image = (draw(2, 8, 8, 3),)
    experts = {"r": draw(WIDTH, 4), "w1": draw(4, WIDTH, 24), "w2": draw(4, 24, WIDTH)}
    layers = [(draw(16, 32), draw(32)), (draw(32, 32), draw(32)), (draw(32, 8), draw(8))]
    small = {"c1": draw(3, 3, 3, 8), "c2": draw(3, 3, 8, 16), "w": draw(16, 10)}
    wide = {"d": draw(3, 3, 1, 6), "e": draw(6, 8)}
    cell = {"w": draw(8, WIDTH), "u": draw(WIDTH, WIDTH)}
    return {
        "mlp": (mlp, layers, (draw(8, 16),), partial(_square, mlp)),
        "cnn": (cnn, small, image, partial(_square, cnn)),
        "gpt": (gpt, gpt_weights(), words, tokens["gpt"]),
        "gpt_scan": (gpt_scan, gpt_weights(True), words, tokens["gpt_scan"]),
        "gpt_checkpoint": (gpt_checkpoint, gpt_weights(), words, tokens["gpt_checkpoint"]),
        "llama": (llama, llama_weights(), words, tokens["llama"]),
        "moe": (moe, experts, (draw(16, WIDTH),), partial(_square, moe)),
        "depthwise": (depthwise, wide, (draw(2, 8, 8, 6),), partial(_square, depthwise)),
        "recurrent": (recurrent, cell, (draw(5, 4, 8),), partial(_square, recurrent)),
    }


_OF_WORDS = ("gpt", "gpt_scan", "gpt_checkpoint", "llama")


def programs() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Per name a function of JAX and its arguments."""
    matches: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {}
    for name, (f, p, data, loss) in _families().items():
        zero = jax.tree.map(jnp.zeros_like, p)
        matches[name] = f, (p, data[0])
        matches[f"{name}_gradient"] = partial(_gradient, loss), (p, *data)
        matches[f"{name}_adam"] = partial(_adam, loss), (p, zero, zero, jnp.float32(0), *data)
    half = jax.tree.map(lambda a: a.astype(jnp.bfloat16), gpt_weights())
    matches["gpt_flat"] = gpt_flat, (gpt_weights(), ids())
    matches["gpt_half"] = gpt, (half, ids())
    cells = {n: draw(WIDTH, WIDTH) for n in "qkv"} | {"wte": draw(WORDS, WIDTH)}
    cache = tuple(draw(BATCH, LENGTH, HEADS, WIDTH // HEADS) for _ in range(2))
    token = jnp.asarray([3, 1, 4, 1], jnp.int32)
    matches["decode"] = decode, (cells, cache, token, jnp.int32(5))
    matches["many"] = many, ({"w": draw(16, 8)}, draw(8, 16))
    return matches


def shortened(text: str) -> str:
    """A text without locations but those that are names."""
    lines = [line for line in text.splitlines() if not line.startswith("#loc")]
    return re.sub(r" loc\((?:#loc\d*|unknown|\"[^\"]*\"\(#loc\d+\))\)", "", "\n".join(lines)) + "\n"


def bytecode(text: str) -> bytes:
    """A text as bytecode that later versions of StableHLO read."""
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    module = ir.Module.parse(text, mlir.make_ir_context())
    return bytes(stablehlo.serialize_portable_artifact(module, VERSION))


VERSION = "1.1.0"
"""Of StableHLO, the oldest that has gathers of batches, for which bytecode is written."""


def write(folder: Path, name: str, f: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Write one program with its inputs and results."""
    lowered = jax.jit(f).lower(*args)
    remaining = sorted(lowered._lowering.compile_args["kept_var_idx"])
    text = lowered.as_text(debug_info=True)
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(args)]
    results = [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(f)(*args))]
    stored = {f"in:{i}": leaves[index] for i, index in enumerate(remaining)}
    stored |= {f"out:{i}": array for i, array in enumerate(results)}
    (folder / f"{name}.mlir").write_text(shortened(text), encoding="utf-8")
    try:
        (folder / f"{name}.mlirbc").write_bytes(bytecode(shortened(text)))
    except ValueError as error:  # operations of CHLO have no portable bytecode
        print(f"{name}: without bytecode, {error}")
    wide = {k: a.astype("float32") if a.dtype == jnp.bfloat16 else a for k, a in stored.items()}
    np.savez_compressed(folder / f"{name}.npz", **wide)


def main() -> None:
    """Write all programs, or those that are named."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    expected = sys.argv[2:]
    for name, (f, args) in programs().items():
        if not expected or name in expected:
            write(folder, name, f, args)


if __name__ == "__main__":
    main()
