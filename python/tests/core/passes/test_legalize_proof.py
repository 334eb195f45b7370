# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A part of ``scripts/checks/check_redistribution.py``: transfers, and modules on two engines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.passes import redistribute_harness as h
from tests.core.passes import redistribute_whole
from tests.transforms import transfer_cases as transfers
from tvm_distir.core.collectives import tiles
from tvm_distir.core.collectives.meaning import crossing_elements
from tvm_distir.core.ir.placement import P
from tvm_distir.core.redistribution.steps import exchange_step


def test_transfers_move_each_lacking_element_once():
    """Also between meshes that share devices: what a device holds does not travel."""
    count, wrong = transfers.prove(149)
    assert not wrong
    assert count > 200


def test_a_tile_too_much_is_found(monkeypatch):
    """The harness sees a tile that travels twice, and one that a device has already."""
    plain = tiles.transfer_tiles

    def twice(*args):
        result = plain(*args)
        return (*result, result[0])

    monkeypatch.setattr(transfers, "transfer_tiles", twice)
    count, wrong = transfers.prove(1999)
    assert len(wrong) == count > 15

    def from_another(shape, src, dst):
        result = plain(shape, src, dst)
        others = {d: next((e for e in src[1] if e != d), d) for d in src[1]}
        return tuple(replace(t, src=others[t.src]) for t in result)

    monkeypatch.setattr(transfers, "transfer_tiles", from_another)
    assert transfers.prove(999)[1]


def test_counted_bytes_of_an_exchange_are_those_of_its_tiles():
    """Of the worst-off rank, in every exchange of a mesh."""
    seen = 0
    for case in h.all_cases([(2, 2, 2)], [h.UNEVEN]):
        if P in case.before or len(case.shape) != 2 or case.before == case.after:
            continue
        step = exchange_step(case.before, case.after)
        call = h.collective_of(case.shape, step, case.before, case.mesh, case.devices, "sum")
        args, sums = dict(call.args), {}
        for tile in tiles.transfer_tiles(args["shape"], args["src"], args["dst"]):
            sums[tile.dst] = sums.get(tile.dst, 0) + tile.elements * (tile.src != tile.dst)
        assert crossing_elements(call) == max(sums.values(), default=0)
        seen += 1
    assert seen == 27 * 26


@pytest.mark.parametrize("ends", list(redistribute_whole.pairs_of_meshes(3)), ids=str)
def test_modules_of_transfers_on_two_engines(ends):
    """From one mesh to another that shares some of its devices, all of them, or none."""
    assert not redistribute_whole.transfer_faults(*ends)


@pytest.mark.parametrize("cases", list(redistribute_whole.modules(3)), ids=lambda c: str(c[0].mesh))
def test_modules_of_redistributes_on_two_engines(cases):
    assert not redistribute_whole.faults(cases)
