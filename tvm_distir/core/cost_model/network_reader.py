# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read the network of a system from JSON: nodes, tiers between them, and links to hosts.

A network is a file ``core/cost_model/data/networks/NAME.json`` of the form ::

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

``bandwidth_GBps`` of a tier is what a device sends into it per direction at line rate; ``rails``
are the adapters of a domain below (default: one per device). Curves are grouped by library: the
first is the default, and the curves of ``library`` are added to its. A system file may have the
same keys itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tvm_distir.support import HardwareError, JsonValue, nearest, read_json

from .collective_algorithms import ALGORITHMS, RINGED, TIMED, algorithm_named
from .hardware import Curve, HostLink, InterNode, IntraNode, OuterTier

NETWORKS = Path(__file__).parent / "data" / "networks"
SCHEMA_VERSION = 1
LINKS = ("intra_node", "inter_node", "tiers")
"""Keys of a system or network that :func:`read_links` reads."""

_TOP = (
    "schema_version", "name", "description", *LINKS, "host_link", "constants", "sources",
)  # fmt: skip
_CURVE = ("algorithm", "kind", "setup_us", "hop_us", "bandwidth_GBps", "copied")
_ALPHA_BETA = ("latency_us", "setup_us", "root_us", "share", "send_us")
_INTRA = ("name", "devices_per_node", "bandwidth_GBps", *_ALPHA_BETA, "curves", "library")
_INTER = (
    "name", "nics_per_node", "bandwidth_per_nic_GBps", "latency_us", "setup_us", "oversubscription",
)  # fmt: skip
_TIER = (
    "name", "devices", "bandwidth_GBps", "latency_us", "oversubscription", "rails", "curves",
    "library",
)  # fmt: skip
_HOST = ("name", "bandwidth_GBps", "latency_us")


@dataclass(frozen=True)
class Links:
    """The links of a system: the fields of :class:`.system.System` of the same names."""

    intra_node: IntraNode
    inter_node: InterNode
    outer_tiers: tuple[OuterTier, ...] = ()


@dataclass(frozen=True)
class Network:
    """A network, with which a system completes a device.

    Attributes
    ----------
    name, description : str
    links : Links
    host_link : HostLink, optional
    constants : mapping of str to mapping
        Entries of a system's ``constants`` that describe the network, as in the file.
    sources : mapping of str to str
        Entries of a system's ``sources``.
    """

    name: str
    description: str
    links: Links
    host_link: HostLink | None
    constants: Mapping[str, Mapping[str, object]]
    sources: Mapping[str, str]


def _wrong(place: str, what: str, remedy: str) -> HardwareError:
    return HardwareError("DIST0703", what, place=place, remedy=remedy)


def _no_json(place: str, what: str, remedy: str) -> HardwareError:
    return HardwareError("DIST0702", what, place=place, remedy=remedy)


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
        raise HardwareError(
            "DIST0701",
            f"there is no network {name!r}",
            place="network",
            remedy=f"{nearest(name, network_names())} Available: {', '.join(network_names())}.",
        )
    path = NETWORKS / f"{name}.json"
    data = JsonValue(read_json(path, _no_json, repeated=_wrong), str(path), _wrong)
    return read_network(data, library)


def read_network(data: JsonValue, library: str | None = None) -> Network:
    """Read the content of a network's file."""
    optional = ("description", *LINKS, "host_link", "constants", "sources")
    top = data.object(_TOP, optional=optional)
    top["schema_version"].version(SCHEMA_VERSION)
    sources = top["sources"].object().fields() if "sources" in top else ()
    constants = top["constants"].object().fields() if "constants" in top else ()
    return Network(
        top["name"].text(),
        top["description"].text(empty=True) if "description" in top else "",
        read_links(top, library),
        read_host(top["host_link"]) if "host_link" in top else None,
        {name: dict(entry.data) for name, entry in constants},
        {key: source.text() for key, source in sources},
    )


def read_links(top: JsonValue, library: str | None = None) -> Links:
    """Read ``intra_node`` and ``inter_node``, or ``tiers``, of a system or network."""
    if "tiers" in top:
        return _tiers(top["tiers"], library)
    for key in ("intra_node", "inter_node"):
        if key not in top:
            raise top.wrong(f'there is no entry "{key}"', 'Add it, or "tiers".')
    return Links(_intra(top["intra_node"], library), _inter(top["inter_node"]))


def _intra(data: JsonValue, library: str | None) -> IntraNode:
    optional = _INTRA[3:] if isinstance(data.data, dict) and "curves" in data.data else _INTRA[5:]
    fields = data.object(_INTRA, optional=optional)
    line_rate = fields["bandwidth_GBps"].number()
    numbers = {key: fields[key].number(least=0.0) for key in _ALPHA_BETA if key in fields}
    return IntraNode(
        name=fields["name"].text(),
        devices_per_node=fields["devices_per_node"].integer(least=1),
        bandwidth_GBps=line_rate,
        **{"latency_us": 0.0, "setup_us": 0.0, **numbers},
        curves=_curves(fields, line_rate, library),
    )


def _curves(fields: JsonValue, line_rate: float, library: str | None) -> tuple[Curve, ...]:
    """Return the curves of the first library, and of the one that is chosen."""
    if "curves" not in fields:
        return ()
    lists = dict(fields["curves"].object().fields())
    if not lists:
        raise fields["curves"].wrong("there is no library", "List the curves of a library.")
    chosen = next(iter(lists))
    names = [chosen]
    if library is not None:
        chosen = library
        if library not in lists:
            raise fields["curves"].wrong(
                f"there are no curves of {library!r}", nearest(library, lists)
            )
    elif "library" in fields:
        chosen = fields["library"].word(tuple(lists))
    names += [chosen] if chosen not in names else []
    curves = tuple(_curve(item, line_rate) for name in names for item in lists[name].items())
    for kind in TIMED:
        wanted = "ring" if kind in RINGED else "direct"
        if not any(curve.kind == kind and curve.algorithm == wanted for curve in curves):
            raise lists[names[0]].wrong(
                f"there is no curve of {kind} by the algorithm {wanted}", "Add one."
            )
    return curves


def _curve(data: JsonValue, line_rate: float) -> Curve:
    fields = data.object(_CURVE, optional=("copied",))
    name, kind = fields["algorithm"].word(ALGORITHMS.names()), fields["kind"].word(TIMED)
    if kind not in algorithm_named(name).kinds:
        raise fields["kind"].wrong(
            f"the algorithm {name} does not compute {kind}",
            f"It computes {', '.join(algorithm_named(name).kinds)}.",
        )
    bandwidth = fields["bandwidth_GBps"].number()
    if bandwidth > line_rate:
        raise fields["bandwidth_GBps"].wrong(
            f"{bandwidth:g} GB/s over links of {line_rate:g} GB/s",
            "Give what the algorithm reaches, at most the line rate.",
        )
    copied = fields["copied"].number(least=0.0) if "copied" in fields else 0.0
    if copied > 1:
        raise fields["copied"].wrong(f"{copied} of a block", "Give a fraction up to 1.")
    return Curve(
        name,
        kind,
        fields["setup_us"].number(least=0.0),
        fields["hop_us"].number(least=0.0),
        bandwidth,
        copied,
    )


def _inter(data: JsonValue) -> InterNode:
    fields = data.object(_INTER, optional=("oversubscription",))
    return InterNode(
        name=fields["name"].text(),
        nics_per_node=fields["nics_per_node"].integer(least=1),
        bandwidth_per_nic_GBps=fields["bandwidth_per_nic_GBps"].number(),
        latency_us=fields["latency_us"].number(least=0.0),
        setup_us=fields["setup_us"].number(least=0.0),
        oversubscription=_oversubscription(fields),
    )


def _oversubscription(fields: JsonValue) -> float:
    return fields["oversubscription"].number(least=1.0) if "oversubscription" in fields else 1.0


def _tiers(data: JsonValue, library: str | None) -> Links:
    """Return the links of two or more tiers."""
    items = data.items()
    if len(items) < 2:
        raise data.wrong("there are fewer than two tiers", "List the node and what connects nodes.")
    first = items[0].object(_TIER[:3] + _TIER[6:], optional=("library",))
    sizes = [first["devices"].integer(least=1)]
    line_rate = first["bandwidth_GBps"].number()
    near = IntraNode(
        first["name"].text(), sizes[0], line_rate, 0.0, 0.0,
        curves=_curves(first, line_rate, library),
    )  # fmt: skip
    others = []
    for number, item in enumerate(items[1:], 1):
        last = number == len(items) - 1
        optional = ("latency_us", "oversubscription", *(("devices",) if last else ()))
        keys = [key for key in _TIER[:6] if key != "rails" or number == 1]
        tier = item.object(keys, optional=(*optional, "rails") if number == 1 else optional)
        others.append(tier)
        if "devices" in tier:
            sizes.append(tier["devices"].integer(least=1))
            if sizes[-1] % sizes[-2] or sizes[-1] == sizes[-2]:
                raise tier["devices"].wrong(
                    f"{sizes[-1]} devices are not several domains of {sizes[-2]}",
                    "Give a larger multiple.",
                )
    rails = others[0]["rails"].integer(least=1) if "rails" in others[0] else sizes[0]
    far = InterNode(
        others[0]["name"].text(),
        rails,
        others[0]["bandwidth_GBps"].number() * sizes[0] / rails,
        _latency(others[0]),
        0.0,
        _oversubscription(others[0]),
    )
    outer = tuple(
        OuterTier(
            tier["name"].text(),
            sizes[number],
            tier["bandwidth_GBps"].number(),
            _latency(tier),
            _oversubscription(tier),
        )
        for number, tier in enumerate(others[1:], 1)
    )
    return Links(near, far, outer)


def _latency(fields: JsonValue) -> float:
    return fields["latency_us"].number(least=0.0) if "latency_us" in fields else 0.0


def read_host(data: JsonValue) -> HostLink:
    """Read the link between devices and hosts."""
    fields = data.object(_HOST, optional=("latency_us",))
    return HostLink(fields["name"].text(), fields["bandwidth_GBps"].number(), _latency(fields))
