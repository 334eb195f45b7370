# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Describe a network as a graph: devices and switches, and the links between them.

The key ``graph`` of a network takes the place of ``inter_node`` ::

    {"name": "leaf and spine", "devices": 4, "links": [
      {"between": [[0, "leaf0"], [1, "leaf0"], [2, "leaf1"], [3, "leaf1"]], "bandwidth_GBps": 50},
      {"between": [["leaf0", "spine"], ["leaf1", "spine"]],
       "bandwidth_GBps": 100, "latency_us": 1}]}

Numbers are devices, and names are switches. A bandwidth is that of a link per direction; parallel
links add up. ``torus``, ``fat_tree``, ``rail_optimized`` or ``dragonfly`` (the classes of this
file) make the links in place of ``devices`` and ``links``.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import MinLen

from tvm_distir.support import Count, NotNegative, Positive, PositiveCount, Text, read_model

from .faults import faults_of, wrong
from .routing import Routes, Routing

LARGEST = 2048
"""The most devices and switches of a graph."""

Vertex = Count | Text
Ends = tuple[Vertex, Vertex]
Made = tuple[int, Sequence[tuple[float, Sequence[Ends]]]]
"""The number of devices, and the links of each bandwidth in GB/s."""


@dataclass(frozen=True)
class Cables:
    """Equal links: ``bandwidth_GBps`` is that of each per direction."""

    between: tuple[Ends, ...]
    bandwidth_GBps: Positive
    latency_us: NotNegative = 0.0


@dataclass(frozen=True, kw_only=True)
class Torus:
    """Devices with links to their neighbours along each dim, around its end where it is over 2."""

    shape: Annotated[tuple[PositiveCount, ...], MinLen(1)]
    bandwidth_GBps: Positive
    latency_us: NotNegative = 0.0

    def made(self) -> Made:
        """Return the devices and links."""
        numbers, between = np.arange(np.prod(self.shape)).reshape(self.shape), list[Ends]()
        for dim, size in enumerate(self.shape):
            ends = numbers, np.roll(numbers, -1, dim)
            first, second = ends if size > 2 else (np.delete(end, -1, dim) for end in ends)
            between += zip(first.ravel().tolist(), second.ravel().tolist(), strict=True)
        return numbers.size, [(self.bandwidth_GBps, between)]


@dataclass(frozen=True, kw_only=True)
class FatTree:
    """Leaf switches of ``per_leaf`` devices in sequence, each with a link to each spine switch."""

    devices: PositiveCount
    per_leaf: PositiveCount
    spines: PositiveCount
    bandwidth_GBps: Positive
    uplink_GBps: Positive
    latency_us: NotNegative = 0.0
    by_rail: ClassVar[bool] = False

    def made(self) -> Made:
        """Return the devices and links."""
        size = self.per_leaf
        leaves = [d % size if self.by_rail else d // size for d in range(self.devices)]
        below = [(device, f"leaf{leaf}") for device, leaf in enumerate(leaves)]
        pairs = itertools.product(sorted({*leaves}), range(self.spines))
        above = [(f"leaf{leaf}", f"spine{spine}") for leaf, spine in pairs]
        return self.devices, [(self.bandwidth_GBps, below), (self.uplink_GBps, above)]


class RailOptimized(FatTree):
    """The same, but devices ``k``, ``k + per_leaf``, ``k + 2 per_leaf``, ... share leaf ``k``."""

    by_rail: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class Dragonfly:
    """Groups of routers that are all connected; each two groups have a link, of routers in turn."""

    groups: PositiveCount
    routers: PositiveCount
    per_router: PositiveCount
    bandwidth_GBps: Positive
    local_GBps: Positive
    global_GBps: Positive
    latency_us: NotNegative = 0.0

    def made(self) -> Made:
        """Return the devices and links."""
        count, groups = self.routers, range(self.groups)
        names = [[f"router{group}.{number}" for number in range(count)] for group in groups]
        routers = [name for group in names for name in group for _ in range(self.per_router)]
        local = [pair for group in names for pair in itertools.combinations(group, 2)]
        far = [(names[a][(b - 1) % count], names[b][a % count])
               for a, b in itertools.combinations(groups, 2)]  # fmt: skip
        direct: Sequence[Ends] = [*enumerate(routers)]
        rates = self.bandwidth_GBps, self.local_GBps, self.global_GBps
        return len(routers), [*zip(rates, (direct, local, far), strict=True)]


_GENERATORS = ("torus", "fat_tree", "rail_optimized", "dragonfly")


@dataclass(frozen=True, kw_only=True)
class _GraphFile:
    """The content of ``graph``."""

    name: Text = "graph"
    devices: PositiveCount | None = None
    links: Annotated[tuple[Cables, ...], MinLen(1)] | None = None
    torus: Torus | None = None
    fat_tree: FatTree | None = None
    rail_optimized: RailOptimized | None = None
    dragonfly: Dragonfly | None = None


def read_graph(data: Any, location: str) -> NetworkGraph:
    """Read the content of ``graph``, each of whose devices must reach each other one.

    Raises
    ------
    HardwareError
        DIST0703 for an unknown, missing or wrong value, and for devices without a path.
    """
    file = read_model(_GraphFile, data, location, wrong, faults_of(location))
    stated = [key for key in ("links", *_GENERATORS) if getattr(file, key) is not None]
    if len(stated) != 1 or (file.devices is None) != (stated != ["links"]):
        problem = f"the links are stated by {', '.join(map(repr, stated)) or 'no key'}"
        remedy = f'Give "devices" and "links", or one of {", ".join(_GENERATORS)} alone.'
        raise wrong(location, problem, remedy)
    if file.devices is None:
        graph = made(getattr(file, stated[0]), file.name)
    else:
        graph = NetworkGraph(file.name, file.devices, file.links or ())
    count, named = len(graph.vertices), [end for end in graph.vertices if isinstance(end, int)]
    if count > LARGEST:
        problem = f"there are {count} devices and switches"
        raise wrong(location, problem, f'Describe more than {LARGEST} by "tiers".')
    if max(named) >= graph.devices:
        problem = f"device {max(named)} is not one of {graph.devices} devices, numbered from 0"
        raise wrong(f"{location}/links", problem, "Name switches by words.")
    lost = np.argwhere(graph.routing.hops[: graph.devices] < 0)
    if lost.size:
        problem = f"no path leads from device {lost[0][0]} to device {lost[0][1]}"
        raise wrong(f"{location}/links", problem, "Add the links that connect them.")
    return graph


def made(generator: Torus | FatTree | Dragonfly, name: str) -> NetworkGraph:
    """Return the graph of a generator."""
    devices, links = generator.made()
    cables = (Cables(tuple(ends), rate, generator.latency_us) for rate, ends in links)
    return NetworkGraph(name, devices, tuple(cables))


@dataclass(frozen=True)
class NetworkGraph:
    """Devices ``0`` to ``devices - 1`` and switches, with links of both directions between them."""

    name: str
    devices: int
    links: tuple[Cables, ...]

    def scaled(self, factor: float) -> NetworkGraph:
        """Return the graph with so many times the bandwidth."""
        links = (replace(c, bandwidth_GBps=factor * c.bandwidth_GBps) for c in self.links)
        return replace(self, links=tuple(links))

    @cached_property
    def vertices(self) -> dict[Vertex, int]:
        """Return the number of each vertex, devices first."""
        ends = (end for cables in self.links for pair in cables.between for end in pair)
        return {end: k for k, end in enumerate(dict.fromkeys((*range(self.devices), *ends)))}

    @cached_property
    def routing(self) -> Routing:
        """Return the shortest paths to devices."""
        links = [
            (self.vertices[a], self.vertices[b], cables.bandwidth_GBps * 1e9, cables.latency_us)
            for cables in self.links
            for pair in cables.between
            for a, b in (pair, pair[::-1])
        ]
        return Routing(len(self.vertices), self.devices, links)

    def node_links(self, intra_node: Mapping[str, object]) -> dict[str, Mapping[str, object]]:
        """Return the links inside a node and those out of it; alone, each device is a node."""
        rate: dict[str, object] = {"bandwidth_GBps": self.routing.injection / 1e9}
        near = {"name": self.name, "devices_per_node": 1, **rate, **intra_node}
        far = {"nics_per_node": near["devices_per_node"], "latency_us": 0.0, "setup_us": 0.0}
        far |= {"name": self.name, "bandwidth_per_nic_GBps": rate["bandwidth_GBps"]}
        return {"intra_node": near, "inter_node": far}

    def routes(self, groups: Sequence[Sequence[int]], per_node: int) -> list[Routes | None]:
        """Return the bandwidths of groups at once: see :meth:`Routing.routes`.

        Raises
        ------
        HardwareError
            DIST0703 for a device that the graph does not have.
        """
        most = max((device for group in groups for device in group), default=0)
        if most >= self.devices:
            problem = f"device {most} is used, and there are {self.devices} devices"
            raise wrong(f"network/graph ({self.name})", problem, "Choose a smaller mesh.")
        return self.routing.routes(groups, per_node)
