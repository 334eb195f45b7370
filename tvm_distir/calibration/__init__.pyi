# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .calibrate import Calibration as Calibration
from .calibrate import calibrate as calibrate
from .programs import program_of as program_of
from .row_files import read_rows as read_rows
from .rows import ProductRow as ProductRow
from .rows import Row as Row
from .rows import StepRow as StepRow
