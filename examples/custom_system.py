# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Describe a cluster by its data sheet, and see which network a training step needs.

Run it: ``python examples/custom_system.py``.
"""

from __future__ import annotations

from typing import Any

import tvm_distir as td

CLUSTER: dict[str, Any] = {
    "schema_version": 2,
    "name": "my-cluster",
    "device": {
        "name": "accelerator",
        "memory_capacity_GiB": 64,
        "memory_bandwidth_GBps": 1600,
        "matmul_TFLOPs": {"bfloat16": 200, "default": 25},
    },
    "network": {
        "intra_node": {"name": "link", "devices_per_node": 4, "bandwidth_GBps": 150},
        "inter_node": {"name": "fabric", "nics_per_node": 4, "bandwidth_per_nic_GBps": 25},
    },
    "price_per_device_hour_usd": 2.0,
}


def main() -> None:
    """Predict a step with adapters of 12.5, 25 and 50 GB/s."""
    network: dict[str, Any] = CLUSTER["network"]
    for rate in (12.5, 25, 50):
        far = {**network["inter_node"], "bandwidth_per_nic_GBps": rate}
        data = {**CLUSTER, "network": {**network, "inter_node": far}}
        analysis = td.analyze(
            "zoo:gpt?size=gpt2,layers=4,dtype=bfloat16",
            strategy="data_parallel",
            mesh={"dp": 8},
            batch=64,
            train={"optimizer": "adamw"},
            system=td.System.from_dict(data),
        )
        print(f"{rate:4} GB/s per adapter: {analysis.time_s * 1e3:.1f} ms per step")


if __name__ == "__main__":
    main()
