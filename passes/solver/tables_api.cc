// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// What Python calls: one set of tables is a list of functions that share it.

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include <cstdint>
#include <memory>

#include "solver/dual_api.h"
#include "solver/session.h"

namespace tvm_distir {
namespace {

using tvm::ffi::Array;
using tvm::ffi::Function;
using tvm::ffi::TensorView;

// A function that calls a method of the session and keeps the session alive.
template <typename R, typename... Args>
Function Bound(const std::shared_ptr<Session>& session, R (Session::*method)(Args...)) {
  return Function::FromTyped(
      [session, method](Args... args) -> R { return (session.get()->*method)(args...); });
}

Array<Function> NewTables() {
  const auto session = std::make_shared<Session>();
  return {Bound(session, &Session::Intern),
          Bound(session, &Session::InternRows),
          Bound(session, &Session::Add),
          Bound(session, &Session::ShapeOf),
          Bound(session, &Session::EntriesOf),
          Bound(session, &Session::Eliminate),
          Bound(session, &Session::Decode),
          Bound(session, &Session::Evaluate),
          Bound(session, &Session::EliminateAll),
          Bound(session, &Session::Restrict),
          Bound(session, &Session::Optimise),
          Function::FromTyped([session](const TensorView& domains, const TensorView& factors,
                                        int64_t most) {
            return DualFunctions(session->NewDual(domains, factors, most));
          }),
          Function::FromTyped([session]() { session->Forget(); }),
          Function::FromTyped([session]() { return session->Counts(); })};
}

}  // namespace
}  // namespace tvm_distir

TVM_FFI_DLL_EXPORT_TYPED_FUNC(tables, tvm_distir::NewTables);
