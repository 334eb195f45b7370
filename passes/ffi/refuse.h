// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// Errors of the tree that tvm_distir.support.errors gives. Their fields are data on every way they go.

#ifndef TVM_DISTIR_PASSES_REFUSE_H_
#define TVM_DISTIR_PASSES_REFUSE_H_

#include <tvm/ffi/error.h>

#include <string>

namespace tvm_distir {

// The fields of an error. One that is not of our tree has no class and no code, only `what`.
struct Fault {
  std::string error_class, code, location, what, remedy;

  // "DIST0204 location: what [remedy]", or `what` alone.
  std::string Text() const;
};

// Throws it through the FFI with its fields, as tvm_distir/support/errors/ffi.py does.
[[noreturn]] void Raise(const Fault& fault);

// The fields that came with an error, or its text.
Fault FaultOf(const tvm::ffi::Error& error);

// Throws the EngineError of tvm_distir.support.errors.
[[noreturn]] void Refuse(const std::string& code, const std::string& location, const std::string& what,
                         const std::string& remedy);

}  // namespace tvm_distir

#endif  // TVM_DISTIR_PASSES_REFUSE_H_
