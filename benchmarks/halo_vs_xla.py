# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Bytes that a device sends for images cut by rows, against XLA:CPU with Shardy and with GSPMD.

The programs of ``images.py``: float32, 2 samples of 8 channels, 32 x 16 pixels unless said, rows
over 4 devices unless said, as are those of the result (of the targets, in training). Ours are run
on the engine ``virtual`` and compared with a single device. Bytes of a permutation are those of
its result, of other collectives by the ring formulae.
"""

from __future__ import annotations

from collectives import of_module, of_peer
from images import PROGRAMS, module_of, plan_of
from measure import parser, print_setting, table
from peers import JaxPeer

import tvm_distir as td


def main() -> None:
    """Print a table of bytes, and one of counts."""
    options = parser(__doc__, jax=True)
    options.add_argument("--only", default="", help="programs whose name holds this")
    arguments = options.parse_args()
    who = ["ours", "XLA:CPU, Shardy", "XLA:CPU, GSPMD"]
    bytes_rows, count_rows, more = [], [], []
    with JaxPeer(arguments.jax_python) as peer:
        print_setting(**peer.versions)
        for name, program in PROGRAMS.items():
            if arguments.only not in name:
                continue
            mod, plan = module_of(program), plan_of(program)
            td.verify(mod, plan).check()
            ours = of_module(td.distribute(mod, plan))
            theirs = [
                of_peer(peer, "image", **program.question(), shardy=which)
                for which in (True, False)
            ]
            all_three = [ours, *theirs]
            best = min(each.wire_bytes for each in theirs)
            share = f"{best / ours.wire_bytes:.2f}" if ours.wire_bytes else "-"
            bytes_rows.append([name, *(f"{each.wire_bytes:,}" for each in all_three), share])
            count_rows.append([name, *(each.by_kind() for each in all_three)])
            more += [name] if ours.wire_bytes > best else []
    table(["wire bytes per device", *who, "best of XLA / ours"], bytes_rows)
    table(["collectives / group size", *who], count_rows)
    print(f"{len(bytes_rows)} programs, all equal to the single device's result")
    print(f"ours sends more in {len(more)}{': ' if more else ''}{', '.join(more)}")


if __name__ == "__main__":
    main()
