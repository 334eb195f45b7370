# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Search the fastest plan of a model on a node, and check that it computes the same.

Run it: ``python examples/search_plan.py``.
"""

from __future__ import annotations

from tvm import ir

import tvm_distir as td


def model(batch: int) -> ir.IRModule:
    """Return a small GPT for a batch."""
    return td.zoo.gpt(size="tiny", batch=batch)


def main() -> None:
    """Search on four devices of a DGX A100, and verify the best plan."""
    result = td.search(model, 4, "a100", batch=16)
    print(result)
    best = result.plans[0]
    td.verify(model(16), best.plan, engine="virtual").check()
    print(f"the best plan takes {best.time_s * 1e6:.0f} us and computes the same")


if __name__ == "__main__":
    main()
