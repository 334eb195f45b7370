# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .codes import CODES as CODES
from .collector import Faults as Faults
from .tree import REFUSALS as REFUSALS
from .tree import DependencyError as DependencyError
from .tree import DistIRError as DistIRError
from .tree import EngineError as EngineError
from .tree import HardwareError as HardwareError
from .tree import InfeasibleError as InfeasibleError
from .tree import InternalError as InternalError
from .tree import LevelError as LevelError
from .tree import LoweringError as LoweringError
from .tree import MeshError as MeshError
from .tree import MismatchError as MismatchError
from .tree import ModelError as ModelError
from .tree import OutputError as OutputError
from .tree import PlanError as PlanError
from .tree import PropagationError as PropagationError
from .tree import SimulationError as SimulationError
from .tree import UsageError as UsageError
from .tree import Violation as Violation
from .tree import WrongProgramError as WrongProgramError
from .tree import register_with_ffi as register_with_ffi
from .user_input import MAX_DEVICES as MAX_DEVICES
from .user_input import MAX_INT as MAX_INT
from .user_input import check_choice as check_choice
from .user_input import nearest as nearest
from .user_input import parse_float as parse_float
from .user_input import parse_int as parse_int
from .user_input import printable as printable
from .user_input import shortened as shortened
