# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .claims import claimed_collectives as claimed_collectives
from .compare import TOLERANCES as TOLERANCES
from .compare import OutputReport as OutputReport
from .compare import coarsest_float as coarsest_float
from .draw import draw_inputs as draw_inputs
from .inputs import InputSpec as InputSpec
from .inputs import input_specs as input_specs
from .report import VerifyReport as VerifyReport
from .verifying import verify as verify
