# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define a system: its devices, its network, and the time that work takes on them."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy.typing as npt

from tvm_distir.core.collectives import check_kind
from tvm_distir.core.ops import TENSOR_CLASSES, VIEW
from tvm_distir.support import DataTable, Displayed, HardwareError, UsageError, memoized

from .constants import Constant, value_of
from .efficiency import LIKE
from .faults import SLOWEST, unequal
from .hardware import Device, HostLink, InterNode, IntraNode, OuterTier, of_dtype
from .kernel_tables import KernelSizes, KernelTable, KernelTables, load_tables
from .links import far_time_s, near_time_s
from .network import GroupLayout, Groups, GroupTopology, layout_of, spread
from .network_graph import NetworkGraph
from .rates import Rate, RooflineTime, law_rate, rate
from .stage_systems import LINKS, joined
from .system_display import draw_system, system_headline, system_tables
from .system_reader import load, parse
from .tiers import Crossing, curve_time_s, tiered_time_s

Amount = TypeVar("Amount", float, npt.NDArray[Any])
Systems: TypeAlias = "System | str | Path | Sequence[System | str | Path]"
"""A system, its name or path, or a list of those of the stages of a pipeline."""


@dataclass(frozen=True)
class Roofline:
    """The time of a kernel and its bound: ``compute``, ``memory``, ``launch`` or ``view``."""

    time_s: float
    bound_by: str


@dataclass(frozen=True)
class System(Displayed):
    """A hardware system, described as data.

    Attributes
    ----------
    name, description : str
    device : Device
        The device; of several types of devices the slowest one, as :mod:`.stage_systems` says.
    intra_node : IntraNode
    inter_node : InterNode
    sources : mapping of str to str
        The source of each number, by its key.
    kernels : str
        Name of the profile that groups ops into kernels (``tvm_distir/performance/fusion/data``).
    constants : mapping of str to Constant
        The constants of :data:`.constants.MEANINGS`, for the model of fused kernels, host and
        network; where there are none, each op is timed by a roofline.
    host_link : HostLink, optional
        None: what waits in the host's memory cannot be priced.
    outer_tiers : tuple of OuterTier
        The tiers beyond ``inter_node``, from the inside to the outside.
    graph : NetworkGraph, optional
        The links between devices of different nodes, from which ``inter_node`` is made then.
    kernel_tables : str
        The name or file of tables of measured kernels (:mod:`.kernel_tables`); empty: none.
    stages : tuple of System
        Of unequal devices, the systems of equal numbers of pipeline stages, in order.

    Examples
    --------
    >>> h100 = td.System.load("h100")
    >>> h100.intra_node.devices_per_node, h100.device.memory_bandwidth_GBps
    (8, 3350.0)
    """

    name: str
    description: str
    device: Device
    intra_node: IntraNode
    inter_node: InterNode
    sources: Mapping[str, str] = field(default_factory=dict)
    kernels: str = "eager"
    constants: Mapping[str, Constant] = field(default_factory=dict)
    host_link: HostLink | None = None
    outer_tiers: tuple[OuterTier, ...] = ()
    kernel_tables: str = ""
    graph: NetworkGraph | None = None
    stages: tuple[System, ...] = ()

    @staticmethod
    def load(name_or_path: str | Path) -> System:
        """Read a system by its name, or from a JSON file.

        Names are those of the files in ``hardware/systems/data``, their aliases in
        ``data/aliases/systems.json``, which the system has as its name then, and those that other
        packages offer by the entry point group ``tvm_distir.systems``. Several, joined by ``,``,
        are those of the stages of a pipeline.

        Raises
        ------
        HardwareError
            DIST0701 for a name that is none, DIST0702 for a file that is no JSON, DIST0703 for an
            unknown, missing or wrong value, DIST0706 for devices that are not to be joined.
        DependencyError
            DIST0114 where another package offers the name and has no such system.
        """
        names = str(name_or_path).split(",")
        if not os.path.exists(name_or_path):  # else its name has a comma
            if not all(name.strip() for name in names):
                raise HardwareError(
                    "DIST0701", f'a name is missing in "{name_or_path}"', location="system",
                    remedy='Name a system, or one for each stage of a pipeline: "h100,a100".',
                )  # fmt: skip
            if len(names) > 1:
                return System.required(names)
        return load(name_or_path, System)

    @staticmethod
    def resolve(system: Systems | None) -> System | None:
        """Return the system that is given, by name or path too, or None for none."""
        return None if system is None else System.required(system)

    @staticmethod
    def required(system: Systems | None, equal_for: str = "") -> System:
        """Return the system that is given, by name or path too, or joined of a list of stages.

        ``equal_for``: what has no answer on unequal devices, as the error says.

        Raises
        ------
        UsageError
            DIST0155 for what is no system.
        HardwareError
            The errors of :meth:`load`; DIST0706 for unequal devices with ``equal_for``.
        """
        if isinstance(system, (str, Path)):
            system = System.load(system)
        elif isinstance(system, (list, tuple)) and system:
            system = joined([System.required(stage) for stage in system], "system")
        if not isinstance(system, System):
            problem = f"the argument is of type {type(system).__name__}, and a system is required"
            remedy = 'Give a System, or the name or path of one, such as "h100".'
            raise UsageError("DIST0155", problem, location="system", remedy=remedy)
        if equal_for and system.stages:
            remedy = 'Name one of them; "analyze --strategy pipeline" predicts a plan of several.'
            problem = f"{equal_for} is for equal devices, unlike {system.name}"
            raise unequal("system", problem, remedy)
        return system

    @staticmethod
    def from_dict(data: Mapping[str, Any], location: str = "system") -> System:
        """Make a system of the content of its JSON file. Errors as in :meth:`load`."""
        return parse(data, location, System)

    def priced(self, price_per_device_hour_usd: float) -> System:
        """Return the system with another price.

        Parameters
        ----------
        price_per_device_hour_usd : float
            Dollars for a device and an hour, from which reports compute the cost of a step.

        Raises
        ------
        UsageError
            DIST0152 for what is no positive number.
        """
        price: Any = price_per_device_hour_usd
        is_number = isinstance(price, Real) and not isinstance(price, bool)
        if not is_number or not 0 < float(price) < math.inf:
            problem = f"{price!r} is not a positive number of dollars"
            remedy = "Give the price of a device and an hour, such as 2.5."
            raise UsageError("DIST0152", problem, location="price", remedy=remedy)
        return replace(self, device=replace(self.device, price_per_hour=float(price)))

    @property
    def has_one_network(self) -> bool:
        """Return whether all devices are on the same network."""
        links = [[getattr(stage, part) for part in LINKS] for stage in self.stages]
        return all(each == links[0] for each in links)

    def of_ranks(self, sizes: Sequence[int]) -> list[System]:
        """Return the system of each rank of a pipeline, whose numbers of devices are ``sizes``.

        Raises
        ------
        HardwareError
            DIST0706 where unequal devices have no equal numbers of equal ranks.
        """
        count, parts = len(sizes), len(self.stages)
        if not parts:
            return [self] * count
        if count % parts or len(set(sizes)) > 1:
            what = "equal numbers of pipeline ranks of equal size"
            has = f"the step has {count} of {' and '.join(map(str, sorted(set(sizes))))} devices"
            example = f'such as "--strategy pipeline --mesh pp={parts}"'
            remedy = f"Give a plan with a multiple of {parts} ranks, {example}. {SLOWEST}"
            raise unequal("system", f"{parts} types of devices require {what}; {has}", remedy)
        return [self.stages[rank * parts // count] for rank in range(count)]

    def _headline(self) -> str:
        return system_headline(self)

    def _tables(self) -> list[DataTable]:
        return system_tables(self)

    def _draw(self, axes: Any) -> None:
        draw_system(self, axes)

    @property
    def memory_capacity_bytes(self) -> int:
        """Return the memory of a device."""
        return int(self.device.memory_capacity_GiB * 2**30)

    @property
    def memory_bandwidth_bytes_per_s(self) -> float:
        """Return the peak memory bandwidth of a device."""
        return self.device.memory_bandwidth_GBps * 1e9

    def peak_flops_per_s(self, dtype: str, kernel_class: str = "matmul") -> float:
        """Return the peak of a device for a kernel class and dtype.

        A dtype that the system does not list takes the entry of its family (``float8`` for
        ``float8_e4m3fn``), else ``default``.
        """
        device = self.device
        peaks = device.matmul_TFLOPs if kernel_class in TENSOR_CLASSES else device.vector_TFLOPs
        return of_dtype(peaks, dtype) * 1e12

    def rate(self, kernel_class: str, dtype: str, sustained: bool = True) -> Rate:
        """Return the rate of the FLOPs and bytes of a kernel class, and its launch overhead.

        ``sustained``: of a kernel in a step, whose power is limited. False: of one by itself, as
        tables of measured kernels have it; only devices with ``kernel_times`` make a difference.
        """
        peak = self.peak_flops_per_s(dtype, kernel_class)
        if self.device.kernel_times:
            return law_rate(self.device, kernel_class, dtype, peak, sustained)
        if self.constants:
            return rate(self.constants, kernel_class, peak, self.memory_bandwidth_bytes_per_s)
        known = self.device.efficiency
        efficiency = known.get(LIKE.get(kernel_class, kernel_class), known["memory"])
        bandwidth = self.memory_bandwidth_bytes_per_s * efficiency.bandwidth
        floor_s = self.device.launch_floor_us * 1e-6
        return Rate(peak * efficiency.flops, bandwidth, math.inf, 0.0, 0.0, floor_s, 0.0)

    def constant(self, name: str) -> float:
        """Return the value of a constant; 0 where the system has none."""
        return value_of(self.constants, name) if self.constants else 0.0

    @cached_property
    def tables(self) -> KernelTables | None:
        """Return the tables of measured kernels.

        Raises
        ------
        HardwareError
            As :func:`.kernel_tables.load_tables`.
        """
        return load_tables(self.kernel_tables, self.device) if self.kernel_tables else None

    def table(self, kernel_class: str, sizes: KernelSizes | None) -> KernelTable | None:
        """Return the table that has kernels of a class and of the dtype of some sizes."""
        if sizes is None or self.tables is None:
            return None
        return self.tables.of(sizes.kernel or kernel_class, sizes.dtype)

    def spent_s(
        self,
        flops: Any,
        moved_bytes: Any,
        kernel_class: str,
        dtype: str,
        sizes: KernelSizes | None = None,
    ) -> tuple[RooflineTime[Any], Rate]:
        """Return the seconds of kernels, and the rate that gives them.

        Parameters
        ----------
        flops, moved_bytes : float, or float64 array
        kernel_class, dtype : str
        sizes : KernelSizes, optional
            The sizes of products and attention, by which tables of measured kernels are read.
        """
        table = self.table(kernel_class, sizes)
        if table is not None and sizes is not None:
            return table.spent_s(flops, moved_bytes, sizes.sizes), table.rate
        kernel_rate = self.rate(kernel_class, dtype)
        return kernel_rate.spent_s(flops, moved_bytes), kernel_rate

    def roofline(
        self,
        flops: int,
        moved_bytes: int,
        kernel_class: str,
        dtype: str,
        sizes: KernelSizes | None = None,
    ) -> Roofline:
        """Return the time of a kernel.

        ``max(flops / (e_f peak), bytes / (e_b bandwidth), launch floor)``; a view costs nothing.
        With constants as :class:`.constants.KernelTimeModel` says, on a device with
        ``kernel_times`` as :class:`.hardware.PowerLaw` does, and with tables of measured kernels
        as :mod:`.kernel_tables` does for kernels of known ``sizes``.

        Notes
        -----
        Williams, Waterman, Patterson, *Roofline*, CACM 2009.
        """
        if kernel_class == VIEW:
            return Roofline(0.0, VIEW)
        duration, kernel_rate = self.spent_s(
            float(flops), float(moved_bytes), kernel_class, dtype, sizes
        )
        time_s = float(duration.total)
        if duration.busy < kernel_rate.floor_s or duration.busy < kernel_rate.gap_s:
            return Roofline(time_s, "launch")
        return Roofline(time_s, "compute" if duration.bound >= 0 else "memory")

    def layout(self, groups: Groups) -> GroupLayout:
        """Return how groups that run a collective concurrently are distributed over the nodes."""
        if self.graph is None:
            return layout_of(groups, self.intra_node.devices_per_node, self._domains)
        return self._routed(tuple(tuple(map(int, group)) for group in groups))

    @memoized
    def _routed(self, groups: tuple[tuple[int, ...], ...]) -> GroupLayout:
        """Return the layout of groups with their paths through the graph."""
        per_node, graph = self.intra_node.devices_per_node, self.graph
        routes = graph.routes(groups, per_node) if graph is not None else [None] * len(groups)
        spreads = tuple(
            replace(spread(group, per_node), routes=paths)
            for group, paths in zip(groups, routes, strict=True)
        )
        return GroupLayout(spreads, 1, frozenset(spreads))

    @property
    def _domains(self) -> tuple[int, ...]:
        return tuple(tier.devices for tier in self.outer_tiers)

    def node_bandwidth_bytes_per_s(
        self, per_node: int, sharing: int, gradients: bool = False
    ) -> float:
        """Return the bandwidth out of a node for a group with ``per_node`` members on it.

        All adapters divided by the groups that share them; a single device drives its part only.
        ``gradients``: of sums of gradients behind a step.
        """
        net = self.inter_node
        per_device = math.ceil(net.nics_per_node / self.intra_node.devices_per_node) * per_node
        adapters = min(net.nics_per_node / sharing, per_device)
        rate = adapters * net.bandwidth_per_nic_GBps * 1e9 * self._reached(gradients)
        return rate / net.oversubscription

    def _reached(self, gradients: bool) -> float:
        """Return the fraction of the line rate between nodes that collectives reach."""
        if not self.constants:
            return 1.0
        return self.constant("nic_efficiency_gradients" if gradients else "nic_efficiency")

    def host_copy_time_s(self, size_bytes: Amount) -> Amount:
        """Return the seconds of a copy between a device and its host, or of many, either way.

        Raises
        ------
        HardwareError
            DIST0704 where the system does not say what connects them.
        """
        link = self.host_link
        if link is None:
            what = "does not describe the link between devices and their host"
            problem = f'the system "{self.name}" {what}'
            how = 'Add "host_link": {"name": .., "bandwidth_GBps": ..} to its file'
            remedy = f"{how}, or leave out offload= of the schedule and --offload-optimizer."
            raise HardwareError("DIST0704", problem, location="host_link", remedy=remedy)
        return 1e-6 * link.latency_us + size_bytes / (link.bandwidth_GBps * 1e9)

    def collective_time_s(
        self, kind: str, payload_bytes: int, ranks: Sequence[int], sharing: int = 1
    ) -> float:
        """Return the seconds of a collective over a group of devices.

        Parameters
        ----------
        kind : str
            The kind, from :data:`~.names.COLLECTIVES` or :data:`~.names.TRANSFERS`.
        payload_bytes : int
            Bytes of a rank's *result*; of a transfer, what crosses.
        ranks : sequence of int
            Device ids of the group; they say which members share a node.
        sharing : int
            The number of groups, this group included, that leave a node at the same time
            (:func:`.network.nic_sharing`).
        """
        (where,) = self.layout([ranks]).spreads
        return self.spread_time_s(kind, payload_bytes, where, sharing)

    def spread_time_s(
        self, kind: str, payload_bytes: Amount, where: GroupTopology, sharing: int,
        gradients: bool = False,
    ) -> Amount:  # fmt: skip
        """Return the seconds of a collective over a group with the topology ``where``.

        See :mod:`.tiers` for nodes with curves, :mod:`.links` for others; ``gradients`` as in
        :meth:`node_bandwidth_bytes_per_s`. Of an array of payloads the seconds of each, as of the
        numbers alone.
        """
        check_kind(kind)
        if where.ranks <= 1:
            return 0.0 * payload_bytes
        near = self.intra_node
        time_s: Amount
        if where.nodes == 1:
            factor = self.constant("collective_factor") if self.constants else 1.0
            inside_s = curve_time_s if near.curves else near_time_s
            time_s = factor * inside_s(near, kind, payload_bytes, where.ranks)
            return time_s
        bandwidth = self.node_bandwidth_bytes_per_s(where.per_node, sharing, gradients)
        if near.curves:
            crossings = self._crossings(where, bandwidth, gradients)
            time_s = tiered_time_s(near, kind, payload_bytes, where, crossings)
            return time_s
        hop_us = self.constant("hop_us") if self.constants else None
        time_s = far_time_s(near, self.inter_node, kind, payload_bytes, where, bandwidth, hop_us)
        return time_s

    def _crossings(
        self, where: GroupTopology, node_bandwidth: float, gradients: bool
    ) -> list[Crossing]:
        """Return the tiers that a group crosses, given what it sends out of a node."""
        hop_us = self.constant("hop_us")
        reached = self._reached(gradients)
        if (routes := where.routes) is not None:
            timing = routes.ring * reached, hop_us + routes.latency_us
            more = routes.tree * reached, routes.exchange / reached
            return [Crossing(where.nodes, where.per_node, *timing, *more)]
        hop = hop_us + self.inter_node.latency_us
        crossings = [Crossing(where.nodes, where.per_node, node_bandwidth, hop)]
        for tier, (domains, members) in zip(self.outer_tiers, where.outer, strict=True):
            if domains > 1:
                rate = members * tier.bandwidth_GBps * 1e9 * reached / tier.oversubscription
                crossings.append(Crossing(domains, members, rate, hop_us + tier.latency_us))
        return crossings
