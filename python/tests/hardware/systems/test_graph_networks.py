# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Networks as graphs: against the prices of tiers, and against loads of links counted by hand."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

import tvm_distir as td
from tvm_distir.hardware.systems.network_graph import Dragonfly, FatTree, RailOptimized, Torus, made
from tvm_distir.hardware.systems.routing import Routes, _between
from tvm_distir.hardware.systems.system import System
from tvm_distir.hardware.systems.system_writer import to_data
from tvm_distir.support import HardwareError

LINK = 50e9
NODE = {"name": "link", "devices_per_node": 4, "bandwidth_GBps": 400}
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute", "send")


def system(network: dict[str, Any]) -> System:
    """A system of H100 on a network, whose messages between nodes take a microsecond."""
    constants = {"hop_us": {"value": 1.0, "source": "test"}}
    return System.from_dict({"schema_version": 2, "name": "s", "device": "h100-sxm",
                             "network": network, "constants": constants})  # fmt: skip


def routes(generator: Any, *groups: Any, per_node: int = 1) -> list[Routes]:
    """The routes of groups that run at once on a graph that a generator makes."""
    known = made(generator, "g").routes(groups, per_node)
    assert None not in known
    return [each for each in known if each is not None]


@pytest.mark.parametrize("oversubscription", [1, 2])
def test_a_graph_of_two_levels_has_the_price_of_two_levels(oversubscription: int) -> None:
    """Nodes of four devices with an adapter each, on a leaf per node whose uplinks are thinner."""
    far = {"name": "far", "nics_per_node": 4, "bandwidth_per_nic_GBps": 50,
           "latency_us": 4.0, "oversubscription": oversubscription}  # fmt: skip
    tiers = system({"intra_node": NODE, "inter_node": far})
    leaves = [{"between": [[d, f"leaf{d // 4}"] for d in range(32)], "bandwidth_GBps": 50,
               "latency_us": 1.0},
              {"between": [[f"leaf{n}", "core"] for n in range(8)], "latency_us": 1.0,
               "bandwidth_GBps": 200 / oversubscription}]  # fmt: skip
    graph = system({"intra_node": NODE, "graph": {"devices": 32, "links": leaves}})
    axes = [[range(32)], [range(k, k + 16) for k in (0, 16)], [range(k, k + 4) for k in (0, 4)],
            [range(k, 32, 4) for k in range(4)], [range(k, k + 8) for k in range(0, 32, 8)],
            [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 10, 11]]]  # fmt: skip
    for groups, kind, size in itertools.product(axes, KINDS, (10_000, 10**7, 10**9)):
        layouts = [each.layout([[*group] for group in groups]) for each in (tiers, graph)]
        [old, new] = [
            {each.spread_time_s(kind, size, where, layout.sharing) for where in layout.kinds}
            for each, layout in zip((tiers, graph), layouts, strict=True)
        ]
        assert sorted(new) == pytest.approx(sorted(old), rel=1e-9), (groups, kind, size)


def test_trees_of_a_switch_load_no_link_twice() -> None:
    for count in range(2, 20):
        star = FatTree(devices=count, per_leaf=count, spines=1, bandwidth_GBps=50, uplink_GBps=50)
        (group,) = routes(star, range(count))
        assert group.tree == pytest.approx(LINK) and group.ring == pytest.approx(LINK)


@pytest.mark.parametrize(("height", "width"), [(4, 4), (8, 4), (3, 6)])
def test_a_torus(height: int, width: int) -> None:
    """A ring along an axis has neighbour links in both directions; others share links."""
    torus = Torus(shape=(height, width), bandwidth_GBps=50, latency_us=0.5)
    count = height * width
    along = routes(torus, *(range(k, k + width) for k in range(0, count, width)))
    across = routes(torus, *(range(k, count, width) for k in range(width)))
    for group in (*along, *across):
        assert group.ring == pytest.approx(2 * LINK) and group.latency_us == 0.5
    (full,) = routes(torus, range(count))
    longest = max(height, width)
    if longest % 2 == 0:  # half of the devices send to the other half over the cut
        cut_links = 2 * count // longest
        assert full.exchange == pytest.approx(count / 2 * (count / 2) / count / cut_links / LINK)
    mean_hops = (
        sum(min(d, height - d) + min(e, width - e) for d in range(height) for e in range(width))
        / count
    )
    assert full.exchange >= mean_hops * count / (4 * count) / LINK * (1 - 1e-9)


@pytest.mark.parametrize(("first", "last"), [(4, 2), (2, 4), (3, 2), (1, 1)])
def test_all_devices_of_two_nodes_exchange_what_one_sends_the_other(first: int, last: int) -> None:
    """Of the node with more devices each sends, or receives, the same."""
    demands = list(_between(range(first), range(10, 10 + last), 0.5))
    for at, devices in enumerate((range(first), range(10, 10 + last))):
        parts = [sum(demand[2] for demand in demands if demand[at] == k) for k in devices]
        assert sum(parts) == pytest.approx(0.5) and min(parts) > 0
        if len(devices) == max(first, last):
            assert parts == pytest.approx([0.5 / len(devices)] * len(devices))


def test_groups_share_the_links_on_which_they_meet() -> None:
    """On a line of four, the pairs (0, 2) and (1, 3) meet on the link in the middle."""
    assert made(Torus(shape=(2, 1), bandwidth_GBps=50), "g").links[0].between == ((0, 1),)
    cables = [{"between": [[0, 1], [1, 2], [2, 3]], "bandwidth_GBps": 50}]
    graph = system({"graph": {"devices": 4, "links": cables}}).graph
    assert graph is not None
    [pair] = graph.routes([(0, 2)], 1)
    both = graph.routes([(0, 2), (1, 3)], 1)
    assert pair is not None and pair.ring == pytest.approx(LINK)
    assert [each.ring for each in both if each] == pytest.approx([LINK / 2] * 2)


def test_fat_trees_rails_and_dragonflies() -> None:
    """The uplinks of a leaf, the leaf of a rail, and the link of two groups of routers."""
    tree = {"devices": 32, "per_leaf": 8, "spines": 2, "bandwidth_GBps": 50, "uplink_GBps": 50}
    fat, rails = FatTree(**tree), RailOptimized(**tree)
    neighbours = [(k, k + 8) for k in range(8)]
    assert {each.ring for each in routes(rails, *neighbours)} == {LINK}
    shared = {each.ring for each in routes(fat, *neighbours)}
    assert sorted(shared) == pytest.approx([2 * LINK / 8])  # eight groups, two uplinks of a leaf
    rates = {"bandwidth_GBps": 50, "local_GBps": 100, "global_GBps": 25}
    (full,) = routes(Dragonfly(groups=4, routers=1, per_router=6, **rates), range(24))
    assert full.exchange == pytest.approx(6 * 6 / 24 / 25e9)  # each of six to each of six others
    dragonfly = made(Dragonfly(groups=4, routers=3, per_router=2, **rates), "g")
    _, local, far = dragonfly.links
    assert (
        dragonfly.devices == 24
        and len(local.between) == 4 * 3
        and len(far.between) == math.comb(4, 2)
    )
    ends = [end for pair in far.between for end in pair]
    assert len({*ends}) == len(ends) == 12  # a link of each router to another group


def test_a_system_with_a_graph_is_written_read_and_scaled() -> None:
    torus = system({"graph": {"torus": {"shape": [4, 2], "bandwidth_GBps": 50}}})
    assert System.from_dict(to_data(torus)) == torus
    assert torus.intra_node.devices_per_node == 1 and torus.intra_node.bandwidth_GBps == 150
    assert torus.graph is not None
    payload, ring = 10**9, [0, 2, 4, 6]
    once = torus.collective_time_s("all_gather", payload, ring)
    assert once > payload * 0.75 / (2 * LINK)
    (faster,) = torus.graph.scaled(2).routes([ring], 1)
    assert faster is not None and faster.ring == pytest.approx(4 * LINK)


def test_a_step_on_a_torus() -> None:
    """A mesh whose axes are those of the torus is faster than on one ring of all devices."""
    mod = td.zoo.gpt(size="tiny", batch=16)
    plan = td.planning.make_plan(mod, "data_parallel+megatron", {"dp": 4, "tp": 4})
    program = td.export(td.distribute(td.train_step(mod), plan))
    torus, ring = (
        system({"graph": {"torus": {"shape": shape, "bandwidth_GBps": 0.5}}})
        for shape in ([4, 4], [16])
    )
    times_s = [td.simulate(program, each).time_s for each in (torus, ring)]
    assert 0 < times_s[0] < 0.9 * times_s[1]
    with pytest.raises(HardwareError, match=r"DIST0703.*device 31 is used.*16 devices"):
        torus.layout([range(32)])


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        ({"toros": {"shape": [4]}}, "toros.*torus"),
        ({"torus": {"shape": [4]}}, "bandwidth_GBps"),
        ({"torus": {"shape": [4], "bandwidth_GBps": 1, "width": 2}}, "width"),
        ({"torus": {"shape": [64, 64], "bandwidth_GBps": 1}}, "4096 devices.*tiers"),
        ({"links": [{"between": [[0, 1]], "bandwidth_GBps": 1}]}, 'Give "devices" and "links"'),
        ({"devices": 2, "torus": {"shape": [2], "bandwidth_GBps": 1}}, "torus.*alone"),
        ({"devices": 3, "links": [{"between": [[0, 1]], "bandwidth_GBps": 1}]}, "no path.*0.*2"),
        ({"devices": 2, "links": [{"between": [[0, 2]], "bandwidth_GBps": 1}]}, "device 2 is not"),
    ],
)
def test_wrong_graphs_are_refused(graph: dict[str, Any], words: str) -> None:
    with pytest.raises(HardwareError, match=f"(?s)DIST0703.*graph.*{words}"):
        system({"graph": graph})


def test_a_graph_goes_with_no_other_description() -> None:
    torus = {"torus": {"shape": [4], "bandwidth_GBps": 50}}
    far = {"name": "far", "nics_per_node": 4, "bandwidth_per_nic_GBps": 50}
    with pytest.raises(HardwareError, match=r"DIST0703.*inter_node"):
        system({"intra_node": NODE, "inter_node": far, "graph": torus})
    bare = {**NODE, "latency_us": 1.0, "setup_us": 1.0}
    with pytest.raises(HardwareError, match=r"DIST0703.*require curves"):
        system({"intra_node": bare, "graph": torus})
    old = {**to_data(System.load("laptop-cpu")), "graph": torus}
    with pytest.raises(HardwareError, match=r'DIST0703.*"graph"'):
        System.from_dict(old)
