# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read arrays of the FFI as lists."""

from __future__ import annotations

from typing import Any

from tvm_distir.support import native_function


def unpack(array: Any) -> list[Any]:
    """Return the elements of an array in a single native call.

    For hundreds of elements this takes a third of the time of ``array[:]``, which asks for one
    element after the other; for three elements it takes a quarter longer.
    """
    items: list[Any] = []
    native_function("spread")(array, lambda *some: items.extend(some))
    return items
