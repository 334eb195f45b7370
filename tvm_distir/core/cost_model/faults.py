# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Make the errors of the files of systems, devices and networks."""

from __future__ import annotations

from tvm_distir.support import Faults, HardwareError


def wrong(place: str, what: str, remedy: str) -> HardwareError:
    """Make the error of a wrong value, of a key that is missing, or of an unknown key."""
    return HardwareError("DIST0703", what, place=place, remedy=remedy)


def no_json(place: str, what: str, remedy: str) -> HardwareError:
    """Make the error of a file that is not JSON."""
    return HardwareError("DIST0702", what, place=place, remedy=remedy)


def faults_of(place: str) -> Faults:
    """Make a collector for the faults of a file, which keep their codes."""
    return Faults(place, wrong(place, "the file has several faults", ""))
