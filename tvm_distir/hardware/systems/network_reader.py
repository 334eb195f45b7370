# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read the network of a system from JSON: nodes, tiers between them, and links to hosts.

A network is a file ``hardware/systems/data/networks/NAME.json`` of the form ::

    {"schema_version": 1, "name": "hgx-h100", "description": "...",
     "intra_node": {"name": "NVLink 4", "devices_per_node": 8, "bandwidth_GBps": 450,
                    "curves": {"nccl": [{"algorithm": "ring", "kind": "all_gather",
                                         "setup_us": 5.0, "hop_us": 1.1, "bandwidth_GBps": 196,
                                         "copied": 0.9}, ...],
                               "vllm": [...]},
                    "library": "nccl"},
     "inter_node": {"name": "InfiniBand NDR", "nics_per_node": 8, "bandwidth_per_nic_GBps": 50,
                    "latency_us": 0, "setup_us": 0, "oversubscription": 1},
     "host_link": {"name": "PCIe gen 5 x16", "bandwidth_GBps": 64},
     "constants": {"hop_us": {"value": 7.5, "source": "..."}, ...},
     "sources": {"intra_node.bandwidth_GBps": "...", ...}}

or, in the place of ``intra_node`` and ``inter_node``, with any number of tiers from the inside to
the outside, each with the size of its domain (the last has all devices)::

     "tiers": [{"name": "NVLink 5", "devices": 72, "bandwidth_GBps": 900, "curves": {...}},
               {"name": "leaf", "devices": 576, "bandwidth_GBps": 50, "rails": 72},
               {"name": "spine", "bandwidth_GBps": 50, "latency_us": 1.0, "oversubscription": 2}]

or, in the place of ``inter_node``, any links of devices, ``graph`` (see :mod:`.network_graph`).
``bandwidth_GBps`` of a tier is what a device sends into it per direction at line rate; ``rails``
are the adapters of a domain below (default: one per device). Curves are grouped by library: the
first is the default, and those of ``library`` are added. A system file may have the same keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, TypeVar

from annotated_types import MinLen

from tvm_distir.support import (
    NotNegative,
    Positive,
    PositiveCount,
    Text,
    check_version,
    nearest,
    read_json,
    read_model,
)

from .collective_algorithms import TIMED
from .constants import Constant, Constants
from .curve_checks import check_curve, needed_algorithm
from .faults import faults_of, no_json, unknown_name, wrong
from .hardware import Curve, HostLink, InterNode, IntraNode, OuterTier, Oversubscription
from .network_graph import NetworkGraph, read_graph

NETWORKS = Path(__file__).parent / "data" / "networks"
SCHEMA_VERSION = 1

File = TypeVar("File")
Libraries = Annotated[Mapping[str, tuple[Curve, ...]], MinLen(1)]


@dataclass(frozen=True, kw_only=True)
class LinkKeys:
    """The keys of a system or network that :func:`read_links` reads."""

    intra_node: Any = None
    inter_node: Any = None
    tiers: Any = None


@dataclass(frozen=True, kw_only=True)
class _NetworkFile(LinkKeys):
    """The content of a file."""

    name: Text
    description: str = ""
    graph: Any = None
    host_link: HostLink | None = None
    constants: Constants = field(default_factory=dict)
    sources: Mapping[str, Text] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _CurvedNode(IntraNode):
    """The network inside a node, with the curves of several libraries."""

    curves: Libraries = field(default_factory=dict)  # type: ignore[assignment]
    library: Text | None = None


@dataclass(frozen=True)
class _Nodes:
    """The links of a file without tiers."""

    intra_node: _CurvedNode
    inter_node: InterNode


@dataclass(frozen=True, kw_only=True)
class _InnerTier:
    """The tier inside a node."""

    name: Text
    devices: PositiveCount
    bandwidth_GBps: Positive
    curves: Libraries = field(default_factory=dict)
    library: Text | None = None


@dataclass(frozen=True, kw_only=True)
class _Tier:
    """A tier beyond; the last need not state its size."""

    name: Text
    devices: PositiveCount | None = None
    bandwidth_GBps: Positive
    latency_us: NotNegative = 0.0
    oversubscription: Oversubscription = 1.0


@dataclass(frozen=True, kw_only=True)
class _NodeTier(_Tier):
    """The tier that connects nodes."""

    rails: PositiveCount | None = None


@dataclass(frozen=True)
class Links:
    """The links of a system: the fields of :class:`.system.System` of the same names."""

    intra_node: IntraNode
    inter_node: InterNode
    outer_tiers: tuple[OuterTier, ...] = ()
    graph: NetworkGraph | None = None


@dataclass(frozen=True)
class Network:
    """A network, with which a system completes a device.

    Attributes
    ----------
    name, description : str
    links : Links
    host_link : HostLink, optional
    constants : mapping of str to Constant
        Entries of a system's ``constants`` that describe the network.
    sources : mapping of str to str
        Entries of a system's ``sources``.
    """

    name: str
    description: str
    links: Links
    host_link: HostLink | None
    constants: Mapping[str, Constant]
    sources: Mapping[str, str]


def network_names() -> tuple[str, ...]:
    """Return the names of the networks."""
    return tuple(sorted(path.stem for path in NETWORKS.glob("*.json")))


def load_network(name: str, library: str | None = None) -> Network:
    """Read a network by its name; ``library`` in the place of the one its file names.

    Raises
    ------
    HardwareError
        DIST0701 for an unknown name, DIST0703 for an unknown library.
    """
    if name not in network_names():
        raise unknown_name(name, network_names(), f"there is no network {name!r}", "network")
    path = NETWORKS / f"{name}.json"
    return read_network(read_json(path, no_json, repeated=wrong), str(path), library)


def read_network(data: Any, location: str, library: str | None = None) -> Network:
    """Read the content of a network's file."""
    content = check_version(data, location, wrong, SCHEMA_VERSION, assumed=SCHEMA_VERSION)
    file, links = read_linked(_NetworkFile, content, location, library)
    return Network(file.name, file.description, links, file.host_link, file.constants, file.sources)


def read_linked(
    model: Callable[..., File],
    content: Mapping[str, Any],
    location: str,
    library: str | None = None,
) -> tuple[File, Links]:
    """Read a file by a model with :class:`LinkKeys`, and its links; all faults are one error."""
    faults = faults_of(location)
    with faults.gathered():
        links = read_links(content, location, library)
    rest = {**content, **dict.fromkeys(vars(LinkKeys()).keys() & content.keys())}
    file = read_model(model, rest, location, wrong, faults)
    faults.raise_all()
    return file, links


def read_links(content: Mapping[str, Any], location: str, library: str | None = None) -> Links:
    """Read ``intra_node`` and ``inter_node``, or ``tiers``, of a system or network."""
    if "tiers" in content:
        both = [f'"{key}"' for key in ("intra_node", "inter_node", "graph") if key in content]
        if both:
            problem = f'"tiers" and {" and ".join(both)} both describe the links'
            raise wrong(location, problem, f'Remove {" and ".join(both)}, or "tiers".')
        return _tiers(content["tiers"], f"{location}/tiers", library)
    data = {key: content[key] for key in ("intra_node", "inter_node") if key in content}
    if isinstance(near := data.get("intra_node"), Mapping) and "curves" in near:
        data["intra_node"] = {"latency_us": 0.0, "setup_us": 0.0, **near}
    graph = read_graph(content["graph"], f"{location}/graph") if "graph" in content else None
    if graph is not None:
        if "inter_node" in content:
            raise wrong(location, '"graph" and "inter_node" both link nodes', "Remove one of them.")
        data |= graph.node_links(data.get("intra_node", {}))
    nodes = read_model(_Nodes, data, location, wrong, faults_of(location))
    curves = _curves(nodes.intra_node, f"{location}/intra_node", library)
    parts = {**vars(nodes.intra_node), "curves": curves}
    del parts["library"]
    return Links(IntraNode(**parts), nodes.inter_node, graph=graph)


def _curves(
    near: _CurvedNode | _InnerTier, location: str, library: str | None
) -> tuple[Curve, ...]:
    """Return the curves of the first library, and of the one that is chosen."""
    lists, chosen = near.curves, library or near.library
    if chosen is not None and chosen not in lists:
        raise wrong(
            f"{location}/curves", f"there are no curves of {chosen!r}", nearest(chosen, lists)
        )
    if not lists:
        return ()
    faults, first = faults_of(location), next(iter(lists))
    curves: list[Curve] = []
    for name in dict.fromkeys((first, chosen or first)):
        for number, curve in enumerate(lists[name]):
            check_curve(curve, near.bandwidth_GBps, f"{location}/curves/{name}/{number}", faults)
        curves += lists[name]
    for kind in TIMED:
        algorithm_name = needed_algorithm(kind)
        if not any(curve.kind == kind and curve.algorithm == algorithm_name for curve in curves):
            problem = f"there is no curve of {kind} by the algorithm {algorithm_name}"
            faults.add(wrong(f"{location}/curves/{first}", problem, "Add one."))
    faults.raise_all()
    return tuple(curves)


def _tiers(data: Any, location: str, library: str | None) -> Links:
    """Return the links of two or more tiers."""
    if not isinstance(data, list | tuple) or len(data) < 2:
        remedy = "List the node and what connects nodes."
        raise wrong(location, "there are fewer than two tiers", remedy)
    faults, tiers = faults_of(location), []
    models: list[Callable[..., Any]] = [_InnerTier, _NodeTier, *[_Tier] * (len(data) - 2)]
    for number, (model, entry) in enumerate(zip(models, data, strict=True)):
        at = f"{location}/{number}"
        with faults.gathered():
            tiers.append(read_model(model, entry, at, wrong, faults_of(at)))
    faults.raise_all()
    node = tiers[0]
    with faults.gathered():
        if not node.curves:
            algorithm = ", ".join(f"{kind} ({needed_algorithm(kind)})" for kind in TIMED)
            remedy = f'Give a list by library, as {{"nccl": [..]}}, with a curve of {algorithm}.'
            raise wrong(f"{location}/0/curves", "a key is missing", remedy)
        curves = _curves(node, f"{location}/0", library)
    for number, (inner, tier) in enumerate(pairwise(tiers), 1):
        at = f"{location}/{number}/devices"
        if tier.devices is None:
            if tier is not tiers[-1]:
                faults.add(wrong(at, "a key is missing", 'Give "devices".'))
        elif inner.devices and (tier.devices % inner.devices or tier.devices == inner.devices):
            problem = f"{tier.devices} devices are not several domains of {inner.devices}"
            faults.add(wrong(at, problem, "Give a larger multiple."))
    faults.raise_all()
    return _linked(tiers, curves)


def _linked(tiers: Sequence[Any], curves: tuple[Curve, ...]) -> Links:
    """Return the links of tiers that fit each other."""
    node, second, *_ = tiers
    near = IntraNode(node.name, node.devices, node.bandwidth_GBps, 0.0, 0.0, curves=curves)
    rails = second.rails or node.devices
    rate, slower = second.bandwidth_GBps * node.devices / rails, second.oversubscription
    far = InterNode(second.name, rails, rate, second.latency_us, 0.0, slower)
    outer = []
    for inner, tier in pairwise(tiers[1:]):
        timing = (tier.bandwidth_GBps, tier.latency_us, tier.oversubscription)
        outer.append(OuterTier(tier.name, inner.devices, *timing))
    return Links(near, far, tuple(outer))
