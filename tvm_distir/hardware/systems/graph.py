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
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from annotated_types import MinLen

from tvm_distir.support import Count, NotNegative, Positive, PositiveCount, Text, read_model

from .faults import faults_of, wrong
from .routing import Routes, Routing

LARGEST = 2048
"""The most devices and switches of a graph."""

Vertex = Count | Text
Ends = tuple[Vertex, Vertex]


@dataclass(frozen=True)
class Cables:
    """Equal links: ``bandwidth_GBps`` is that of each per direction."""

    between: tuple[Ends, ...]
    bandwidth_GBps: Positive
    latency_us: NotNegative = 0.0


@dataclass(frozen=True, kw_only=True)
class _Generator:
    """A family of graphs, whose devices have links of ``bandwidth_GBps``."""

    bandwidth_GBps: Positive
    latency_us: NotNegative = 0.0

    def cables(self, rate: float, between: Iterator[Ends]) -> Cables:
        """Return links of a bandwidth and of the latency of all."""
        return Cables(tuple(between), rate, self.latency_us)


@dataclass(frozen=True, kw_only=True)
class Torus(_Generator):
    """Devices with links to their neighbours along each dim, around its end where it is over 2."""

    shape: Annotated[tuple[PositiveCount, ...], MinLen(1)]

    def made(self) -> tuple[int, tuple[Cables, ...]]:
        """Return the number of devices and the links."""
        return math.prod(self.shape), (self.cables(self.bandwidth_GBps, self._between()),)

    def _between(self) -> Iterator[Ends]:
        strides = [math.prod(self.shape[k + 1 :]) for k in range(len(self.shape))]
        for number in range(math.prod(self.shape)):
            for size, stride in zip(self.shape, strides, strict=True):
                at = number // stride % size
                if size > 2 or at + 1 < size:
                    yield number, number + ((at + 1) % size - at) * stride


@dataclass(frozen=True, kw_only=True)
class FatTree(_Generator):
    """Leaf switches of ``per_leaf`` devices in sequence, each with a link to each spine switch."""

    devices: PositiveCount
    per_leaf: PositiveCount
    spines: PositiveCount
    uplink_GBps: Positive

    def leaf(self, device: int) -> int:
        """Return the number of the leaf of a device."""
        return device // self.per_leaf

    def made(self) -> tuple[int, tuple[Cables, ...]]:
        """Return the number of devices and the links."""
        leaves = sorted({self.leaf(device) for device in range(self.devices)})
        below = ((device, f"leaf{self.leaf(device)}") for device in range(self.devices))
        above = ((f"leaf{a}", f"spine{b}") for a in leaves for b in range(self.spines))
        links = self.cables(self.bandwidth_GBps, below), self.cables(self.uplink_GBps, above)
        return self.devices, links


@dataclass(frozen=True, kw_only=True)
class RailOptimized(FatTree):
    """The same, but devices ``k``, ``k + per_leaf``, ``k + 2 per_leaf``, ... share leaf ``k``."""

    def leaf(self, device: int) -> int:
        """Return the number of the leaf of a device."""
        return device % self.per_leaf


@dataclass(frozen=True, kw_only=True)
class Dragonfly(_Generator):
    """Groups of routers that are all connected; each two groups have a link, of routers in turn."""

    groups: PositiveCount
    routers: PositiveCount
    per_router: PositiveCount
    local_GBps: Positive
    global_GBps: Positive

    def made(self) -> tuple[int, tuple[Cables, ...]]:
        """Return the number of devices and the links."""
        count = self.groups * self.routers * self.per_router
        names = [[f"router{g}.{r}" for r in range(self.routers)] for g in range(self.groups)]
        devices = (
            (d, names[d // self.per_router // self.routers][d // self.per_router % self.routers])
            for d in range(count)
        )
        local = (pair for group in names for pair in itertools.combinations(group, 2))
        far = ((names[a][(b - 1) % self.routers], names[b][a % self.routers])
               for a, b in itertools.combinations(range(self.groups), 2))  # fmt: skip
        return count, (
            self.cables(self.bandwidth_GBps, devices),
            self.cables(self.local_GBps, local),
            self.cables(self.global_GBps, far),
        )


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


def read_graph(data: Any, location: str) -> Graph:
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
    generator = getattr(file, stated[0])
    devices, links = (file.devices, file.links or ()) if file.devices else generator.made()
    graph = Graph(file.name, devices, links)
    if len(graph.vertices) > LARGEST:
        problem = f"there are {len(graph.vertices)} devices and switches"
        raise wrong(location, problem, f'Describe more than {LARGEST} by "tiers".')
    beyond = [end for end in graph.vertices if isinstance(end, int) and end >= devices]
    if beyond:
        problem = f"device {beyond[0]} is not one of {devices} devices, numbered from 0"
        raise wrong(f"{location}/links", problem, "Name switches by words.")
    lost = np.argwhere(graph.routing.hops[:devices] < 0)
    if lost.size:
        problem = f"no path leads from device {lost[0][0]} to device {lost[0][1]}"
        raise wrong(f"{location}/links", problem, "Add the links that connect them.")
    return graph


@dataclass(frozen=True)
class Graph:
    """Devices ``0`` to ``devices - 1`` and switches, with links of both directions between them."""

    name: str
    devices: int
    links: tuple[Cables, ...]

    def scaled(self, factor: float) -> Graph:
        """Return the graph with so many times the bandwidth."""
        rates = (factor * cables.bandwidth_GBps for cables in self.links)
        links = tuple(
            replace(c, bandwidth_GBps=rate) for c, rate in zip(self.links, rates, strict=True)
        )
        return replace(self, links=links)

    @cached_property
    def vertices(self) -> dict[Vertex, int]:
        """Return the number of each vertex, devices first."""
        ends = (end for cables in self.links for pair in cables.between for end in pair)
        return {end: k for k, end in enumerate(dict.fromkeys((*range(self.devices), *ends)))}

    @cached_property
    def routing(self) -> Routing:
        """Return the shortest paths to devices."""
        rates = defaultdict[tuple[int, int], float](float)
        latencies = dict(rates)
        for cables in self.links:
            for pair in cables.between:
                first, last = (self.vertices[end] for end in pair)
                for ends in ((first, last), (last, first)):
                    rates[ends] += cables.bandwidth_GBps * 1e9
                    latencies[ends] = max(latencies.get(ends, 0.0), cables.latency_us)
        return Routing(len(self.vertices), self.devices, rates, latencies)

    @cached_property
    def injection_GBps(self) -> float:
        """Return the bandwidth of all links of a device, the most of all."""
        return float(self.routing.injection.max()) / 1e9

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
