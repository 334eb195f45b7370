# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Networks that ship: laws on random shapes, measured collectives, and tiers."""

from __future__ import annotations

import csv
import dataclasses
import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tvm_distir.core.ir.operators.names import COLLECTIVES, TRANSFERS
from tvm_distir.hardware.systems.collective_algorithms import TIMED, algorithm_named
from tvm_distir.hardware.systems.network_reader import (
    load_network,
    network_names,
    read_links,
)
from tvm_distir.hardware.systems.system import System
from tvm_distir.hardware.systems.system_writer import to_data
from tvm_distir.support import HardwareError

NAMES = network_names()
MEASURED = Path(__file__).parents[4] / "benchmarks" / "measured" / "collectives_one_node.csv"
DEVICES = {
    "a100_sxm": "dgx-a100", "h100_sxm": "hgx-h100", "h200_sxm": "hgx-h200", "b200_sxm": "hgx-b200",
}  # fmt: skip
BASE = System.load("dgx-h100-megatron")


def joined(links: Any, constants: dict[str, float] | None = None) -> System:
    """A system of H100 on these links."""
    values = dict(BASE.constants)
    del values["nic_efficiency_gradients"]
    for name, value in (constants or {}).items():
        values[name] = dataclasses.replace(values[name], value=value)
    return dataclasses.replace(
        BASE,
        intra_node=links.intra_node,
        inter_node=links.inter_node,
        outer_tiers=links.outer_tiers,
        constants=values,
    )


def system_on(name: str, library: str | None = None) -> System:
    """A system of H100 on a network that ships, with its constants."""
    network = load_network(name, library)
    return joined(network.links, {key: entry.value for key, entry in network.constants.items()})


SYSTEMS = [system_on(name) for name in NAMES]


def links_of(data: dict[str, Any]) -> Any:
    return read_links(data, "test")


@pytest.mark.parametrize("name", NAMES)
def test_numbers_of_a_network_have_sources(name: str) -> None:
    network = load_network(name)
    assert network.name == name and network.description
    assert all(entry.source for entry in network.constants.values())
    keys = ["intra_node.bandwidth_GBps", "intra_node.curves", "inter_node.nics_per_node"]
    in_tiers = bool(network.links.outer_tiers) or "tiers" in network.sources
    expected = ["tiers", "tiers.curves"] if in_tiers else keys
    assert [key for key in expected if not network.sources.get(key)] == []


@pytest.mark.parametrize("kind", COLLECTIVES)
@pytest.mark.parametrize("system", SYSTEMS, ids=NAMES)
def test_more_bytes_more_devices_and_more_nodes_take_no_less(system: System, kind: str) -> None:
    rng = random.Random(kind)
    per_node = system.intra_node.devices_per_node
    sizes = np.array(sorted({0, 1, 10**11, *(int(2 ** rng.uniform(0, 36)) for _ in range(40))}))
    inside = [range(n) for n in range(1, per_node + 1)]
    nodes = (2, 3, 4, 6, 8, 16, 32, 150)
    across = [range(per_node * n) for n in nodes]
    apart = [range(0, per_node * n, per_node) for n in nodes]
    for chain in ([*inside, *across], apart):
        times = np.array([times_s(system, kind, sizes, ids) for ids in chain])
        assert (np.diff(times, axis=1) >= 0).all()
        assert (np.diff(times, axis=0) >= -1e-12 * times[1:]).all(), kind


def times_s(system: System, kind: str, sizes: Any, ids: Sequence[int]) -> Any:
    where = next(iter(system.layout([ids]).kinds))
    return system.spread_time_s(kind, sizes, where, 1) + np.zeros(len(sizes))


@pytest.mark.parametrize("system", SYSTEMS, ids=NAMES)
def test_no_collective_is_faster_than_the_line_rate_of_its_links(system: System) -> None:
    """Inside a node the bytes of the leanest algorithm; between nodes what must leave a node."""
    rng = random.Random(system.intra_node.name)
    near, far = system.intra_node, system.inter_node
    per_node = near.devices_per_node
    for _ in range(1000):
        nodes, members = rng.choice([1, 1, 2, 3, 8, 32]), rng.randint(1, per_node)
        ids = [per_node * node + k for node in range(nodes) for k in range(members)]
        payload, kind = int(2 ** rng.uniform(0, 34)), rng.choice([*COLLECTIVES, *TRANSFERS])
        if len(ids) == 1 or (kind in TRANSFERS and len(ids) > 2):
            continue
        time_s = system.collective_time_s(kind, payload, ids)
        whole = payload * len(ids) if kind == "reduce_scatter" else payload
        if nodes == 1:
            sent = whole if kind == "all_reduce" else whole * (members - 1) / members
            sent = sent if kind in TIMED else payload
            assert time_s >= sent / (near.bandwidth_GBps * 1e9), (kind, payload, ids)
            continue
        outside = (len(ids) - members) / len(ids)
        crossing = {
            "all_reduce": 2 * outside, "all_to_all": members * outside, "all_gather": outside,
            "reduce_scatter": len(ids) * outside,
        }.get(kind, 1.0)  # fmt: skip
        adapters = far.nics_per_node * far.bandwidth_per_nic_GBps * 1e9
        assert time_s >= payload * crossing / adapters * (1 - 1e-9), (kind, payload, ids)
        sharing = rng.randint(1, per_node)
        assert system.collective_time_s(kind, payload, ids, sharing) >= time_s


def measured() -> dict[tuple[str, str, str], list[tuple[int, int, float]]]:
    rows = defaultdict(list)
    with MEASURED.open() as file:
        for row in csv.DictReader(file):
            key = row["device"], row["library"], row["kind"]
            rows[key].append((int(row["ranks"]), int(row["whole_bytes"]), float(row["time_us"])))
    return rows


ROWS = measured()


@pytest.mark.parametrize("key", ROWS, ids="-".join)
def test_measured_collectives_are_met(key: tuple[str, str, str]) -> None:
    """The contract's bar is a median of 10 %; half of the rows lie within it at any size."""
    device, library, kind = key
    system = system_on(DEVICES[device], library)
    ratios = []
    for ranks, whole, time_us in ROWS[key]:
        payload = whole // ranks if kind == "reduce_scatter" else whole
        ratios.append(1e6 * system.collective_time_s(kind, payload, range(ranks)) / time_us)
    error = np.array(ratios) - 1
    assert np.median(np.abs(error)) < 0.07
    assert abs(np.median(error)) < 0.05


def test_small_sums_of_custom_kernels_take_as_long_as_in_a_graph() -> None:
    """Measured on 8 H100: 15.7 us by NCCL and 4.5 us by vLLM's kernel for 1 KiB."""
    for library, least, most in (("nccl", 14, 18), ("vllm", 4, 5), ("trtllm", 3, 4)):
        time_s = system_on("hgx-h100", library).collective_time_s("all_reduce", 1024, range(8))
        assert least < 1e6 * time_s < most, library


def test_the_fastest_algorithm_depends_on_the_size() -> None:
    """In the switch for large sums of 8 H100; by a ring of low latency for small ones."""
    near = system_on("hgx-h100").intra_node
    fastest = {}
    for size in (2**10, 2**18, 2**30):
        times = {}
        for number, curve in enumerate(near.curves):
            if curve.kind == "all_reduce":
                algorithm = algorithm_named(curve.algorithm)
                sent = algorithm.sent_bytes("all_reduce", size, 8, curve.copied)
                alpha = curve.setup_us + algorithm.steps("all_reduce", 8) * curve.hop_us
                times[number] = 1e-6 * alpha + sent / (curve.bandwidth_GBps * 1e9)
        best = min(times, key=times.__getitem__)
        fastest[size] = near.curves[best].algorithm, near.curves[best].bandwidth_GBps
        system = dataclasses.replace(BASE, intra_node=near)
        time_s = system.collective_time_s("all_reduce", size, range(8))
        assert time_s == pytest.approx(times[best], rel=1e-12)
    assert [name for name, _ in fastest.values()] == ["ring", "ring", "in_switch"]
    assert fastest[2**10][1] < fastest[2**18][1]


RING = {"setup_us": 5.0, "hop_us": 1.0, "bandwidth_GBps": 100.0}
CURVES = {
    "nccl": [
        *({"algorithm": "ring", "kind": kind, **RING} for kind in TIMED[:3]),
        {"algorithm": "direct", "kind": "all_to_all", **RING},
    ]
}
NODE = {"name": "node", "devices_per_node": 4, "bandwidth_GBps": 100.0, "curves": CURVES}
FAR = {
    "name": "leaf", "nics_per_node": 4, "bandwidth_per_nic_GBps": 10.0, "latency_us": 0.0,
    "setup_us": 0.0,
}  # fmt: skip
FIRST = {"name": "node", "devices": 4, "bandwidth_GBps": 100.0, "curves": CURVES}
PLAIN_LEAF = {"name": "leaf", "bandwidth_GBps": 10.0}
PLAIN = {"hop_us": 7.0, "nic_efficiency": 1.0}


def test_a_system_assumes_curves_of_tiers_as_those_of_a_node() -> None:
    inner = {key: value for key, value in FIRST.items() if key != "curves"}
    node = {"name": "node", "devices_per_node": 4, "bandwidth_GBps": 100.0}
    leaf = {"name": "leaf", "bandwidth_GBps": 10.0, "rails": 4}
    two = {"schema_version": 2, "name": "test", "device": "h100-sxm"}
    tiers = System.from_dict({**two, "network": {"tiers": [inner, leaf]}})
    nodes = System.from_dict({**two, "network": {"intra_node": node, "inter_node": FAR}})
    assert tiers == nodes
    assert tiers.sources["intra_node.curves"].startswith("assumed")


def test_two_tiers_are_a_node_and_what_connects_nodes() -> None:
    tiers = [FIRST, {"name": "leaf", "bandwidth_GBps": 10.0, "rails": 4}]
    assert links_of({"tiers": tiers}) == links_of({"intra_node": NODE, "inter_node": FAR})


def test_a_gather_over_nodes_takes_a_hop_per_node() -> None:
    """64 nodes of 4 and 1 MB: 5 + 3 us inside a node, 63 hops, and the bytes over 4 adapters."""
    system = joined(links_of({"intra_node": NODE, "inter_node": FAR}), PLAIN)
    time_s = system.collective_time_s("all_gather", 10**6, range(256))
    assert time_s == pytest.approx(8e-6 + 63 * 7e-6 + 10**6 * 255 / 256 / 40e9)


def three_tiers(oversubscription: float, latency_us: float = 2.0) -> System:
    tiers = [
        FIRST,
        {"name": "leaf", "devices": 16, "bandwidth_GBps": 10.0},
        {"name": "spine", "bandwidth_GBps": 10.0, "latency_us": latency_us,
         "oversubscription": oversubscription},
    ]  # fmt: skip
    return joined(links_of({"tiers": tiers}), PLAIN)


def test_an_outer_tier_adds_latency_and_its_oversubscription() -> None:
    """Four pods of four nodes of four: 12 hops inside of pods and 3 between them."""
    system = three_tiers(8.0)
    gather = system.collective_time_s("all_gather", 10**6, range(64))
    assert gather == pytest.approx(8e-6 + 12 * 7e-6 + 3 * 9e-6 + 10**6 * 63 / 64 / 20e9)
    exchange = system.collective_time_s("all_to_all", 10**8, range(64))
    assert exchange == pytest.approx(5e-6 + 63e-6 + 9e-6 + 10**8 * 16 * 48 / 64 / (160e9 / 8))
    inside = system.collective_time_s("all_gather", 10**6, range(16))
    two_tiers = joined(links_of({"intra_node": NODE, "inter_node": FAR}), PLAIN)
    assert inside == two_tiers.collective_time_s("all_gather", 10**6, range(16))
    message = system.collective_time_s("send", 10**6, (0, 63))
    assert message == pytest.approx(6e-6 + 10**6 / 100e9 + 9e-6 + 10**6 / (10e9 / 8))
    times = [three_tiers(k).collective_time_s("all_to_all", 10**8, range(64)) for k in (1, 2, 4, 8)]
    assert times == sorted(times) and times[0] < times[-1]


@pytest.mark.parametrize("system", [*SYSTEMS, three_tiers(2.0)], ids=[*NAMES, "three"])
def test_a_system_is_written_and_read_again(system: System) -> None:
    assert System.from_dict(to_data(system)) == system


@pytest.mark.parametrize("system", SYSTEMS, ids=NAMES)
def test_times_of_an_array_are_those_of_its_numbers(system: System) -> None:
    sizes = np.array([1, 4097, 10**6, 10**9], np.int64)
    per_node = system.intra_node.devices_per_node
    for ids in (range(2), range(per_node), range(2 * per_node), (0, per_node)):
        where = next(iter(system.layout([ids]).kinds))
        for kind in COLLECTIVES:
            alone = [system.collective_time_s(kind, int(size), ids) for size in sizes]
            assert times_s(system, kind, sizes, ids).tolist() == alone, (kind, where)


def changed(**curve: Any) -> dict[str, Any]:
    first = CURVES["nccl"][0] | curve
    node = NODE | {"curves": {"nccl": [first, *CURVES["nccl"][1:]]}}
    return {"intra_node": node, "inter_node": FAR}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (changed(bandwidth_GBps=101.0), "101 GB/s over links of 100 GB/s"),
        (changed(algorithm="wheel"), "not an allowed value"),
        (changed(algorithm="tree", kind="all_gather"), "does not compute all_gather"),
        (changed(copied=2.0), "curves/nccl/0/copied: 2.0 is not less than or equal to 1"),
        (changed(setup_us="5"), "curves/nccl/0/setup_us"),
        (changed(hopp_us=1.0), 'Did you mean "hop_us"?'),
        (changed(algorithm="direct"), "no curve of all_reduce by the algorithm ring"),
        ({"intra_node": NODE}, "test/inter_node: a key is missing"),
        ({"intra_node": NODE | {"library": "ncl"}, "inter_node": FAR}, 'Did you mean "nccl"?'),
        ({"intra_node": NODE | {"curves": {}}, "inter_node": FAR}, "intra_node/curves"),
        ({"intra_node": NODE, "inter_node": FAR | {"oversubscription": 0.5}}, "oversubscription"),
        (
            {"tiers": [FIRST, PLAIN_LEAF], "intra_node": NODE, "inter_node": FAR},
            '"tiers" and "intra_node" and "inter_node" both describe the links',
        ),
        ({"tiers": [FIRST, PLAIN_LEAF], "inter_node": FAR}, 'Remove "inter_node", or "tiers"'),
        ({"tiers": 3}, "fewer than two tiers"),
        ({"tiers": [FIRST, PLAIN_LEAF, PLAIN_LEAF]}, "tiers/1/devices: a key is missing"),
        ({"tiers": [FIRST]}, "fewer than two tiers"),
        (
            {"tiers": [{k: v for k, v in FIRST.items() if k != "curves"}, PLAIN_LEAF]},
            "a curve of all_reduce (ring), ",
        ),
        ({"tiers": [FIRST, FIRST | {"name": "leaf", "rails": 4}]}, "curves"),
        (
            {"tiers": [FIRST, {"name": "a", "devices": 6, "bandwidth_GBps": 1.0},
                       {"name": "b", "bandwidth_GBps": 1.0}]},
            "6 devices are not several domains of 4",
        ),
    ],
)  # fmt: skip
def test_a_wrong_network_is_named(data: dict[str, Any], said: str) -> None:
    with pytest.raises(HardwareError) as caught:
        links_of(data)
    assert caught.value.code == "DIST0703" and said in str(caught.value)


def faults_in(data: dict[str, Any]) -> dict[str, str]:
    """The remedy of each fault by its place."""
    with pytest.raises(HardwareError) as caught:
        links_of(data)
    assert {violation.code for violation in caught.value.violations} == {"DIST0703"}
    return {violation.location: violation.remedy for violation in caught.value.violations}


def test_all_faults_of_links_are_reported_with_their_places() -> None:
    data = changed(bandwith_GBps=1.0, kind="all_gahter", hop_us=-1.0)
    del data["intra_node"]["curves"]["nccl"][0]["bandwidth_GBps"]
    data["intra_node"]["curves"]["other"] = [{"algorithm": "rng", "kind": "all_reduce", **RING}]
    faults = faults_in({**data, "inter_node": {**FAR, "nics_per_node": 0}})
    curve = "test/intra_node/curves/nccl/0"
    assert set(faults) == {
        f"{curve}/bandwith_GBps",
        f"{curve}/kind",
        f"{curve}/hop_us",
        "test/intra_node/curves/other/0/algorithm",
        "test/inter_node/nics_per_node",
    }
    assert faults[f"{curve}/bandwith_GBps"] == 'Did you mean "bandwidth_GBps"?'
    assert faults[f"{curve}/kind"] == 'Did you mean "all_gather"?'
    assert faults["test/intra_node/curves/other/0/algorithm"] == 'Did you mean "ring"?'


def test_all_faults_of_curves_and_tiers_that_contradict_each_other_are_reported() -> None:
    fast = [{**curve, "bandwidth_GBps": 101.0} for curve in CURVES["nccl"][:2]]
    middle = {"name": "leaf", "devices": 6, "bandwidth_GBps": 1.0}
    first = {**FIRST, "curves": {"nccl": [*fast, {**fast[0], "algorithm": "in_switch"}]}}
    first["curves"]["nccl"][2] |= {"kind": "all_gather", "bandwidth_GBps": 1.0}
    assert list(faults_in({"tiers": [first, middle, PLAIN_LEAF]})) == [
        "test/tiers/0/curves/nccl/0/bandwidth_GBps",
        "test/tiers/0/curves/nccl/1/bandwidth_GBps",
        "test/tiers/0/curves/nccl/2/kind",
        "test/tiers/0/curves/nccl",
        "test/tiers/1/devices",
    ]
    faults = faults_in({"tiers": [FIRST, {**middle, "rail": 4}, {**PLAIN_LEAF, "rails": 4}]})
    assert faults == {
        "test/tiers/1/rail": 'Did you mean "rails"?',
        "test/tiers/2/rails": faults["test/tiers/2/rails"],
    }


def test_an_unknown_network_or_library_is_named() -> None:
    with pytest.raises(HardwareError, match="hgx-h100"):
        load_network("hgx-h10")
    with pytest.raises(HardwareError, match="trtllm"):
        load_network("hgx-h100", "trtlm")
