# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What the busiest device must send or receive at least in a change of placement.

Whatever the program: the tensor is cut into boxes that no shard's border crosses, and each device
must receive, and send, a value of every element of a box so often.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from tvm_distir.ir import Labels, P
from tvm_distir.transform.legalize.shards import Bounds, bounds_of


def least_elements(shape: Sequence[int], mesh: Sequence[int], before: Labels, after: Labels) -> int:
    """Elements that some device sends or receives in every program, with our shards.

    - A device that wants an element without holding it, or of which it holds one of several
      terms, receives a value of it.
    - A device that alone holds a term of an element sends a value of it if another wants it.
    - Adding k terms up and handing the sum to c devices takes k + c - 1 values that travel, one
      less if a device that wants it holds a term; the busiest has at least the mean.
    """
    whole, sizes = tuple(shape), tuple(mesh)
    source, target = (bounds_of(whole, labels, sizes) for labels in (before, after))
    devices = math.prod(sizes)
    terms = math.prod(k for k, x in zip(sizes, before) if x == P)
    sent, received, total = np.zeros(devices), np.zeros(devices), 0
    cuts = [
        sorted({0, n, *source[:, :, d].ravel().tolist(), *target[:, :, d].ravel().tolist()})
        for d, n in enumerate(whole)
    ]
    for box in itertools.product(*(itertools.pairwise(c) for c in cuts)):
        elements = math.prod(stop - start for start, stop in box)
        have, want = _holders(source, box), _holders(target, box)
        if terms == 1:
            received += elements * (want & ~have)
            total += elements * int((want & ~have).sum())
            continue
        received += elements * want
        if have.sum() == terms:
            sent += elements * (have & (want.sum() > want))
        total += elements * (terms - 1 + int(want.sum()) - bool((want & have).any()))
    return max(int(sent.max()), int(received.max()), -(-total // devices))


def _holders(bounds: Bounds, box: Sequence[tuple[int, int]]) -> np.ndarray:
    """Which devices hold all of a box."""
    start, stop = np.array(box).T
    return ((bounds[0] <= start) & (bounds[1] >= stop)).all(axis=-1)
