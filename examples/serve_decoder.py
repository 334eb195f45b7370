# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Decode tokens with a serving step: paged caches of keys and values, sharded by heads.

Run it: ``python examples/serve_decoder.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import tvm_distir as td

REQUESTS, PAGE, PAST, TOKENS = 2, 4, 12, 6


def main() -> None:
    """Decode on two devices and on one, from the same random weights."""
    sizes = f"size=tiny,batch={REQUESTS},seq=1,past={PAST},page={PAGE}"
    mod = td.load_model(f"zoo:llama?entry=serve,{sizes}").mod
    names = [str(name) for name in mod["main"].attrs["dist.param_names"]]
    rng = np.random.default_rng(0)
    inputs: dict[str, Any] = {}
    for name, param in zip(names, mod["main"].params, strict=True):
        shape = tuple(int(n) for n in param.ty.shape.values)
        inputs[name] = (rng.normal(size=shape) / 8).astype(str(param.ty.dtype))
    caches = names[3 : names.index("embed_tokens.weight")]
    inputs["pages"] = np.arange(inputs["pages"].size, dtype="int32").reshape(inputs["pages"].shape)
    texts = {}
    for mesh in ({"tp": 1}, {"tp": 2}):
        local = td.distribute(mod, td.planning.make_plan(mod, "megatron", mesh))
        state = {**inputs, **{name: np.zeros_like(inputs[name]) for name in caches}}
        state["input_ids"] = np.ones((REQUESTS, 1), dtype="int32")
        text = []
        for step in range(TOKENS):
            state["lengths"] = np.full(REQUESTS, step, dtype="int32")
            logits, *new = td.run(local, [state[name] for name in names], engine="virtual")
            state.update(zip(caches, new, strict=True))
            state["input_ids"] = logits.argmax(-1).astype("int32").reshape(REQUESTS, 1)
            text.append(state["input_ids"].ravel().tolist())
        texts[mesh["tp"]] = text
    print("tokens:", texts[2])
    print("equal:", texts[1] == texts[2])


if __name__ == "__main__":
    main()
