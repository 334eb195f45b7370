# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Represent an ``If`` as two calls and a choice, and restore the ``If`` at level 5.

Propagation sees ``R.where(cond, then(args), else(args))`` (:func:`.branches.lift_branches`);
:func:`.sink_conversions` moves what only one branch needs into that branch's function, so that it
runs there alone; :func:`.restore_branches` writes the ``If``.
"""

from __future__ import annotations
