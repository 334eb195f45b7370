# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Render the templates in ``assets``, and assign colours to ops."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from jinja2 import Environment

from tvm_distir.support import templates_of
from tvm_distir.support.display import units

from .model import Analysis
from .text_table import ranges, work

PALETTE = 10
"""Number of op colours; the last is shared by all remaining ops."""

COMM_PALETTE = 5

UNITS = ("forward", "backward", "weight", "begin", "end")


def render(template: str, **values: object) -> str:
    """Render a template; every value is escaped.

    Parameters
    ----------
    template : str
        Its file in ``assets``.
    **values : object
        By the names that the template uses.

    Returns
    -------
    page : str
        Ends with a newline.
    """
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    environment = templates_of(__package__, escape=True)
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.globals.update(asset=_asset, ranges=ranges, units=units, work=work)
    return environment


def _asset(name: str) -> str:
    """Read a style sheet or script."""
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def op_colours(analysis: Analysis) -> dict[str, int]:
    """Return the colour number of each op: the ops with the most time have unique colours.

    So do units of a pipeline, which the timeline shows instead of ops. Collectives have a palette
    of their own, from 100 on.
    """
    names = [*(UNITS if analysis.pipeline is not None else ())]
    names += dict.fromkeys(op.op for op in analysis.ops)
    colours = {name: min(i, PALETTE - 1) for i, name in enumerate(names)}
    kinds = dict.fromkeys(total.kind for total in analysis.collectives)
    colours.update((kind, 100 + min(i, COMM_PALETTE - 1)) for i, kind in enumerate(kinds))
    if "send" in colours:
        colours["recv"] = colours["send"]  # counted once, as a send; drawn at both ends
    return colours


def colour_legend(colours: dict[str, int]) -> list[tuple[str, int]]:
    """Return the ops with unique colours, in the order of the colours."""
    named = sorted(colours.items(), key=lambda item: (item[1], item[0]))
    return [(op, colour) for op, colour in named if colour != PALETTE - 1]
