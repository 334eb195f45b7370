# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""OutlineRepeatedLayers where the first layer makes what all of them read."""

from __future__ import annotations

from typing import Any

from tvm.relax import op

from tests.transforms.outline_harness import Writer, calls, check_same_numbers, outlined


def _stack(w: Writer, x: Any, name: str, source: Any, count: int, last: Any) -> Any:
    """Layers, the first of which makes the mask behind its first product."""
    mask = None
    for i in range(count):
        y = w.emit(op.matmul(x, w.weight(f"{name}.{i}.up.weight")))
        y = w.emit(op.nn.relu(y))
        if mask is None:
            mask = w.emit(op.negative(source))
            mask = w.emit(op.nn.relu(mask))
        y = w.emit(op.add(y, mask))
        y = w.emit(op.subtract(y, w.weight(f"{name}.{i}.bias")))
        x = w.emit(last(w.emit(op.add(x, y)), w.weight("least")))
    return x


def test_the_first_layer_is_one_of_them():
    mod = Writer().module(lambda w: _stack(w, w.weight("x"), "h", w.weight("p"), 3, op.minimum))
    out = outlined(mod)
    assert calls(out) == {"layer": 3}
    first = [str(b.var.name) for b in out["main"].body.blocks[0].bindings][:2]
    assert first == [str(b.var.name) for b in mod["main"].body.blocks[0].bindings][2:4]
    check_same_numbers(mod, out)


def test_what_a_decoder_shares_is_made_by_the_encoder():
    """The encoder's own mask goes before the encoder, not with all that the decoder reads."""

    def write(w: Writer) -> Any:
        x = _stack(w, w.weight("x"), "encoder", w.weight("p"), 3, op.minimum)
        return _stack(w, w.weight("y"), "decoder", x, 4, op.subtract)

    mod = Writer().module(write)
    out = outlined(mod)
    assert sorted(calls(out).values()) == [3, 4]
    check_same_numbers(mod, out)
