# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Give results their text, their HTML in notebooks, their data frame and their figure."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tvm_distir.support.plugins.extras import optional_module

from .tables import DataTable

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


class Displayed:
    """Mixin of results that are shown: as text, in notebooks, as a data frame and as a figure.

    A subclass defines :meth:`_headline`, :meth:`_tables` and :meth:`_draw`.
    """

    def _headline(self) -> str:
        """Return what the result is, in a line or a few."""
        raise NotImplementedError

    def _tables(self) -> Sequence[DataTable]:
        """Return the tables; the first is that of :meth:`to_pandas`."""
        raise NotImplementedError

    def _draw(self, axes: Axes) -> None:
        """Draw the result on axes of matplotlib."""
        raise NotImplementedError

    def to_text(self) -> str:
        """Return the result as tables of text, ending with a newline."""
        lines = [self._headline()]
        for table in self._tables():
            if table.rows:
                lines += ["", *table.to_lines()]
        return "\n".join(lines) + "\n"

    def __str__(self) -> str:
        return self.to_text().rstrip("\n")

    def _repr_html_(self) -> str:
        """Return what notebooks show."""
        head = html.escape(self._headline()).replace("\n", "<br>")
        return f"<p>{head}</p>" + "".join(x.to_html() for x in self._tables() if x.rows)

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a ``pandas.DataFrame``, with units in the names of columns.

        Raises
        ------
        DependencyError
            DIST0111 without pandas (extra ``notebook``).
        """
        return self._tables()[0].to_pandas()

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw the result with matplotlib.

        Parameters
        ----------
        axes : matplotlib.axes.Axes, optional
            Where to draw; None for a figure of its own.

        Returns
        -------
        axes : matplotlib.axes.Axes

        Raises
        ------
        DependencyError
            DIST0111 without matplotlib (extra ``notebook``).
        """
        if axes is None:
            pyplot = optional_module("matplotlib.pyplot", "plot", "notebook")
            _, axes = pyplot.subplots(layout="constrained")
        self._draw(axes)
        return axes
