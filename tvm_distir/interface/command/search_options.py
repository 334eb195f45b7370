# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Declare the options of ``tvm-distir search``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm_distir.support import UsageError, option, parse_count, parse_float, parse_mesh, shortened

from .options import WorkerOptions

if TYPE_CHECKING:
    from tvm_distir.planning import Constraints


COST, RUN = "cost", "run"
"""Stages of options that determine the costs, and of those that do not."""
_SIZES = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]iB|B|)")


def parse_size(text: str, option: str) -> int:
    """Parse a number of bytes, as ``80GiB``."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or not float(match.group(1)):
        raise UsageError(
            "DIST0152", f'"{shortened(text)}" is not a size',
            location=option, remedy=f"Give a number and a unit: {option} 80GiB.",
        )  # fmt: skip
    return int(float(match.group(1)) * _SIZES[match.group(2)])


def parse_share(text: str, option: str) -> float:
    """Read a share from 0 up to 1, as ``1%`` or ``0.01``."""
    number, percent, rest = text.strip().partition("%")
    share = parse_float(number) / (100 if percent else 1)
    if rest or not 0 <= share < 1:
        raise UsageError(
            "DIST0152", f'"{shortened(text)}" is not a share below 1',
            location=option, remedy=f"Give a share: {option} 1% or {option} 0.01.",
        )  # fmt: skip
    return share


def parse_names(text: str, _option: str = "") -> tuple[str, ...]:
    """Read names that are separated by commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _counts(text: str, option: str) -> tuple[int, ...]:
    return tuple(parse_count(word, option) for word in parse_names(text))


@dataclass(frozen=True)
class SearchOptions(WorkerOptions):
    """Options of ``search`` beside those of the step.

    Parameters
    ----------
    memory : int, optional
        Set the memory limit per device (default: of the system).
    axes : tuple of str
        Set the mesh axes, major first; pp is the axis of pipeline stages (default: dp,tp).
    max : mapping of str to int
        Set upper bounds of axis sizes.
    fixed : mapping of str to int
        Fix axis sizes.
    inside_node : tuple of str
        Keep the groups of these axes within a node.
    keep : str, optional
        Keep the rules of a plan.
    compare : str, optional
        Set the baseline: a strategy on its best mesh, or a plan.
    micro_batch_sizes : tuple of int
        Set the micro-batch sizes in samples per rank of dp, with pp (default: 1,2,4).
    chunks : tuple of int
        Set the stages per pipeline rank, with pp (default: 1).
    stage_devices : str
        Set the meshes of stages: equal (default), or any for different sizes and shapes.
    recompute : tuple of str
        Set the recomputation policies, tried in order until a plan fits (default:
        none,selective,full).
    gap : float
        Set the optimality gap of the placements of a candidate (default: 1%).
    margin : float
        Set the error margin of estimates by layer, with pp (default: 5%).
    time_limit : int, optional
        Set the time in seconds after which no further mesh is searched if there is a plan.
    top : int
        Set the number of plans to return (default: 5).
    why : bool
        Print the cost of alternative placements of the weights of the best plan.
    resume : bool
        Resume the search in -o DIR.
    folder : str, optional
        Write the table and the plans to DIR.
    micro_batches : tuple of int
        The numbers of ``--micro-batches``, an option of the step.
    """

    memory: int | None = option(COST, "80GiB", parse_size, frequent=True)
    axes: tuple[str, ...] = option(COST, "dp,tp,pp", parse_names, usual="dp,tp", frequent=True)
    max: Mapping[str, int] | None = option(COST, "tp=8", parse_mesh, frequent=True)
    fixed: Mapping[str, int] | None = option(COST, "tp=8,pp=1", parse_mesh)
    inside_node: tuple[str, ...] = option(COST, "tp", parse_names, usual="")
    keep: str | None = option(RUN, "P.json")
    compare: str | None = option(RUN, "STRATEGY|P.json", frequent=True)
    micro_batch_sizes: tuple[int, ...] = option(
        COST, "1,2,4", _counts, usual="1,2,4", frequent=True
    )
    chunks: tuple[int, ...] = option(COST, "1,2", _counts, usual="1")
    stage_devices: str = option(COST, "any", usual="equal")
    recompute: tuple[str, ...] = option(COST, "none,full", parse_names, usual="none,selective,full")
    gap: float = option(COST, "1%", parse_share, usual="1%")
    margin: float = option(COST, "5%", parse_share, usual="5%")
    time_limit: int | None = option(RUN, "S", parse_count)
    top: int = option(RUN, "K", parse_count, usual="5", frequent=True)
    why: bool = option(RUN, default=False)
    resume: bool = option(RUN, default=False)
    folder: str | None = option(RUN, "DIR", flag="-o", frequent=True)
    micro_batches: tuple[int, ...] = option("train", "M", _counts, default=())

    def constraints(self) -> Constraints:
        """Return the constraints that the options set to the search."""
        from tvm_distir.core.plan import Plan
        from tvm_distir.planning import Constraints

        copied = ("axes", "inside_node", "chunks", "recompute", "stage_devices")
        return Constraints(
            most=self.max or {},
            fixed=self.fixed or {},
            keep=Plan.load(self.keep) if self.keep else None,
            micro_batches=self.micro_batch_sizes,
            counts=self.micro_batches,
            **{name: getattr(self, name) for name in copied},
        )
