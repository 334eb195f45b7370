// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// Errors of the tree that tvm_distir.errors gives.

#ifndef TVM_DISTIR_PASSES_REFUSE_H_
#define TVM_DISTIR_PASSES_REFUSE_H_

#include <string>

namespace tvm_distir {

// Throws the RuntimeError_ of tvm_distir.errors.
[[noreturn]] void Refuse(const std::string& code, const std::string& place, const std::string& what,
                         const std::string& remedy);

}  // namespace tvm_distir

#endif  // TVM_DISTIR_PASSES_REFUSE_H_
