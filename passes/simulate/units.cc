// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0

#include "simulate/units.h"

#include "simulate/run.h"
#include "simulate/summarise.h"

namespace tvm_distir {
namespace simulate {

Ran RunUnits(Functions* functions, const Units& units) {
  Exact exact;
  const auto summary = [functions](int64_t id) -> const Summary<int64_t>& {
    return functions->Summarised(id).summary;
  };
  return Run<Exact>(&exact, *functions, summary, units).Go();
}

}  // namespace simulate
}  // namespace tvm_distir
