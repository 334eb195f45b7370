// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0

#ifndef TVM_DISTIR_PASSES_DUAL_API_H_
#define TVM_DISTIR_PASSES_DUAL_API_H_

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>

#include <memory>

#include "solver/dual.h"

namespace tvm_distir {

// What Python does with the bounds of one problem: a round, which gives the bound and the best cost;
// dropping states; their excess; the best labelling; offering another one; resuming from messages;
// writing the messages down.
tvm::ffi::Array<tvm::ffi::Function> DualFunctions(const std::shared_ptr<Dual>& dual);

}  // namespace tvm_distir

#endif  // TVM_DISTIR_PASSES_DUAL_API_H_
