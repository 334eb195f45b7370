# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Translate ``rng_bit_generator``: ThreeFry and Philox, with the bits of XLA on CPUs.

Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", define Threefry-2x32 with 20 and
Philox-4x32 with 10 rounds. The state holds a key and a counter of 64 bits each.
"""

from __future__ import annotations

import math

from tvm import relax
from tvm.relax import Expr

from tvm_distir.models.common.translation import Unsupported

from .operation_call import Converter, HloCall
from .translated_values import Tensors, constant, typed

_op = relax.op
_LOW = 0xFFFFFFFF
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_WIDTHS = ("uint8", "uint16", "uint32", "uint64")


class _Words:
    """Arithmetic of 32-bit words in tensors of ``uint64``, as bindings."""

    def __init__(self, call: HloCall) -> None:
        self._emit = call.write.emit

    def number(self, value: int) -> Expr:
        return constant(value, "uint64")

    def low(self, x: Expr) -> Expr:
        return self._emit(_op.bitwise_and(x, self.number(_LOW)))

    def high(self, x: Expr) -> Expr:
        return self._emit(_op.right_shift(x, self.number(32)))

    def add(self, x: Expr, y: Expr) -> Expr:
        return self.low(self._emit(_op.add(x, y)))

    def xor(self, x: Expr, y: Expr) -> Expr:
        return self._emit(_op.bitwise_xor(x, y))

    def product(self, x: Expr, factor: int) -> tuple[Expr, Expr]:
        """Return the high and the low word of a product."""
        wide = self._emit(_op.multiply(x, self.number(factor)))
        return self.high(wide), self.low(wide)

    def rotated(self, x: Expr, count: int) -> Expr:
        left = self._emit(_op.left_shift(x, self.number(count)))
        right = self._emit(_op.right_shift(x, self.number(32 - count)))
        return self.low(self._emit(_op.bitwise_or(left, right)))


def _generated(call: HloCall) -> Tensors:
    """Return the new state and random bits of the shape and type of the second result."""
    state, (shape, dtype) = call[0], typed(call.operation.result_types[1])
    if state.dtype != "uint64" or state.shape != (2,) or dtype not in _WIDTHS:
        raise Unsupported(f"{dtype} of a state of {state.dtype}{list(state.shape)}")
    algorithm = str(call.attribute("rng_algorithm", call.attribute("algorithm")))
    if algorithm not in _ALGORITHMS:
        raise Unsupported(f'the algorithm "{algorithm}"')
    full = call.write.full(state)
    key, counter = (call.write.slice(full, [i], [i + 1]) for i in (0, 1))
    words, used = _ALGORITHMS[algorithm](call, key, counter, shape, dtype == "uint64")
    bits = call.write.cast(words, dtype)
    after = call.write.emit(_op.add(counter, constant(used, "uint64")))
    states = call.write.emit(_op.concat([key, after], 0))
    return [call.write.value(states), call.write.value(call.write.reshape(bits, shape))]


def _threefry(
    call: HloCall, key: Expr, counter: Expr, shape: tuple[int, ...], is_wide: bool
) -> tuple[Expr, int]:
    """Return elements of ``shape`` and the number of counters used.

    A counter gives two words. They are neighbors along the first even dim, or along the largest.
    """
    do, write = _Words(call), call.write
    sizes = list(shape) or [1]
    even = [i for i, n in enumerate(sizes) if n % 2 == 0]
    dim = even[0] if even else max(range(len(sizes)), key=lambda i: (sizes[i], -i))
    half = list(sizes)
    half[dim] = -(-sizes[dim] // 2)
    count = math.prod(sizes if is_wide else half)
    counters = write.emit(_op.add(write.emit(_op.arange(0, count, 1, "uint64")), counter))
    x, y = do.low(counters), do.high(counters)
    keys = [do.low(key), do.high(key)]
    keys.append(do.xor(do.xor(*keys), do.number(_PARITY)))
    x, y = do.add(x, keys[0]), do.add(y, keys[1])
    for block in range(5):
        for rotation in _ROTATIONS[block % 2]:
            x = do.add(x, y)
            y = do.xor(do.rotated(y, rotation), x)
        x = do.add(x, keys[(block + 1) % 3])
        y = do.add(do.add(y, keys[(block + 2) % 3]), do.number(block + 1))
    if is_wide:
        high = write.emit(_op.left_shift(y, do.number(32)))
        return write.reshape(write.emit(_op.bitwise_or(x, high)), shape), count
    parts = [write.emit(_op.expand_dims(write.reshape(part, half), dim + 1)) for part in (x, y)]
    full = [n * (1 + (i == dim)) for i, n in enumerate(half)]
    words = write.reshape(write.emit(_op.concat(parts, dim + 1)), full)
    return write.slice(words, [0] * len(sizes), sizes), count


def _philox(
    call: HloCall, key: Expr, counter: Expr, shape: tuple[int, ...], is_wide: bool
) -> tuple[Expr, int]:
    """Return elements of ``shape`` and the number of counters used, each of which gives 4 words.

    XLA starts the high half of the 128-bit counter with the key.
    """
    do, write = _Words(call), call.write
    elements = math.prod(shape)
    count = -(-elements * (1 + is_wide) // 4)
    counters = write.emit(_op.add(write.emit(_op.arange(0, count, 1, "uint64")), counter))
    carry = write.cast(write.emit(_op.less(counters, counter)), "uint64")
    above = write.emit(_op.add(carry, key))
    words = [do.low(counters), do.high(counters), do.low(above), do.high(above)]
    keys = [do.low(key), do.high(key)]
    for _ in range(10):
        (high0, low0), (high1, low1) = (do.product(words[2 * i], _MULTIPLIERS[i]) for i in (0, 1))
        words = [
            *(do.xor(do.xor(high1, words[1]), keys[0]), low1),
            *(do.xor(do.xor(high0, words[3]), keys[1]), low0),
        ]
        keys = [do.add(part, do.number(step)) for part, step in zip(keys, _KEY_STEPS, strict=True)]
    if is_wide:
        shifted = [write.emit(_op.left_shift(words[i], do.number(32))) for i in (1, 3)]
        words = [write.emit(_op.bitwise_or(words[2 * i], shifted[i])) for i in (0, 1)]
    stacked = write.emit(_op.concat([write.emit(_op.expand_dims(w, 1)) for w in words], 1))
    flat = write.reshape(stacked, [count * len(words)])
    return write.reshape(write.slice(flat, [0], [elements]), shape), count


_ALGORITHMS = {"DEFAULT": _philox, "PHILOX": _philox, "THREE_FRY": _threefry}
"""The generators by name; the default is that of XLA on CPUs."""

CONVERTERS: dict[str, Converter] = {"stablehlo.rng_bit_generator": _generated}
