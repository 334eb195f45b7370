# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir systems``: list systems, or the numbers of some with their sources."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from tvm_distir.support import lists_by_key

from .terminal import print_result

if TYPE_CHECKING:
    from tvm_distir.support import DataTable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command."""
    parser.add_argument(
        "systems", metavar="SYSTEM", nargs="*", help="The name of a system, or a JSON file."
    )
    parser.set_defaults(registers=True)


def run(arguments: argparse.Namespace) -> int:
    """Print the table of all systems, or the numbers of those that are named."""
    from tvm_distir.hardware import System

    if arguments.systems:
        print_result("\n".join(System.load(name).to_text() for name in arguments.systems))
    else:
        print_result("\n".join([*_overview().to_lines(), "", *_aliases(), ""]))
    return 0


def _aliases() -> list[str]:
    """Return lines of further names of systems."""
    from tvm_distir.hardware import system_aliases

    names = lists_by_key((name, alias) for alias, name in system_aliases().items())
    return ["further names", *(f"  {name}: {', '.join(known)}" for name, known in names.items())]


def _overview() -> DataTable:
    """Return a row per system.

    The peak is that of dense matrix products of bfloat16; rates of links are per device and
    direction, as data sheets state them.
    """
    from tvm_distir.hardware import System, sourced_numbers, system_names
    from tvm_distir.support import Column, DataTable

    columns = (
        Column("name", "system"), Column("device", "device"),
        Column("bfloat16_TFLOPs", "bfloat16 TFLOP/s", _number),
        Column("memory_GiB", "memory GiB", _number), Column("memory_GBps", "GB/s", _number),
        Column("devices_per_node", "per node", str), Column("node_GBps", "node GB/s", _number),
        Column("between_GBps", "between GB/s", _number), Column("watts", "watts", _number),
        Column("assumed", "assumed", str),
    )  # fmt: skip
    rows = []
    for name in system_names():
        system = System.load(name)
        near, far = system.intra_node, system.inter_node
        numbers = sourced_numbers(system)
        rows.append([
            name, system.device.name, system.peak_flops_per_s("bfloat16") / 1e12,
            system.device.memory_capacity_GiB, system.device.memory_bandwidth_GBps,
            near.devices_per_node, near.bandwidth_GBps,
            far.nics_per_node * far.bandwidth_per_nic_GBps / near.devices_per_node,
            system.device.watts, f"{sum(x.is_assumed for x in numbers)} of {len(numbers)}",
        ])  # fmt: skip
    return DataTable(f"{len(rows)} systems", columns, rows)


def _number(value: float | None) -> str:
    """Format a number with four digits."""
    return "-" if value is None else f"{value:.4g}"
