# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Groups of live buffers do not depend on the order in which the buffers are found."""

from __future__ import annotations

import itertools

from tvm_distir.performance.memory.account import Label, LiveBuffer, holders


def test_groups_of_equal_size_have_one_order() -> None:
    buffers = [
        LiveBuffer(Label("lv", maker, function, unit), role, 512)
        for maker, function, unit, role in (
            ("add", "mlp_backward", "B0", 0),
            ("add", "mlp_backward_1", "B0", 0),
            ("add", "mlp_backward", "B1", 0),
            ("multiply", "mlp_backward", "B0", 1),
        )
    ]
    expected = holders(buffers)
    assert len(expected) == 4
    assert all(holders(order) == expected for order in itertools.permutations(buffers))
