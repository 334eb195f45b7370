# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Constrain the candidates of a search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tvm_distir.core.plan import Plan
from tvm_distir.support import UsageError, check_choice

EQUAL, ANY = "equal", "any"
"""Whether all stages have meshes alike, or may have different ones."""


@dataclass(frozen=True)
class Constraints:
    """Enumerate meshes, stages and micro-batches within constraints.

    Attributes
    ----------
    axes : tuple of str
        Names of the mesh axes, major first; ``pp`` is that of pipeline stages. The others are
        names only: along any of them anything may be cut.
    most, fixed : mapping of str to int
        Largest sizes, and sizes, of axes by name.
    inside_node : tuple of str
        Axes whose groups do not leave a node.
    keep : Plan, optional
        Rules that hold; their placements go by the names of axes, others are open.
    micro_batches : tuple of int
        Samples of a micro-batch on each part of ``dp``, where there are stages.
    counts : tuple of int
        Numbers of micro-batches of a step, with or without stages; empty: by ``micro_batches``
        where there are stages, else as many as the memory requires.
    chunks : tuple of int
        Stages per rank (1: schedule ``1f1b``, more: ``interleaved``).
    recompute : tuple of str
        The policies of recomputation, tried in turn until a policy fits.
    stage_devices : str
        ``equal``, or ``any``: also pipelines whose stages have different meshes, which no plan
        to keep can be given for.
    """

    axes: tuple[str, ...] = ("dp", "tp")
    most: Mapping[str, int] = field(default_factory=dict)
    fixed: Mapping[str, int] = field(default_factory=dict)
    inside_node: tuple[str, ...] = ()
    keep: Plan | None = None
    micro_batches: tuple[int, ...] = (1, 2, 4)
    counts: tuple[int, ...] = ()
    chunks: tuple[int, ...] = (1,)
    recompute: tuple[str, ...] = ("none",)
    stage_devices: str = EQUAL

    def __post_init__(self) -> None:
        check_choice(self.stage_devices, "value", (EQUAL, ANY), "stage_devices")
        if self.stage_devices == ANY and self.keep is not None:
            problem = "a fixed plan names placements on a single mesh, and stages may have several"
            remedy = f'Remove the plan, or choose "{EQUAL}".'
            raise UsageError("DIST0151", problem, location="stage_devices", remedy=remedy)
        fixed = [name for mesh in (self.keep.meshes if self.keep else ()) for name in mesh.axes]
        for option, names in (
            ("most", self.most),
            ("fixed", self.fixed),
            ("inside_node", self.inside_node),
            ("keep", fixed),
        ):
            for name in names:
                check_choice(name, "axis", self.axes, option)
