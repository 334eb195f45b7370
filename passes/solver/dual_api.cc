// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0

#include "solver/dual_api.h"

#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>

#include <cstdint>
#include <utility>

#include "ffi/array.h"
#include "solver/arguments.h"

namespace tvm_distir {
namespace {

using tvm::ffi::Array;
using tvm::ffi::Function;
using tvm::ffi::Shape;
using tvm::ffi::TensorView;

constexpr int64_t kMostBits = 62;

}  // namespace

Array<Function> DualFunctions(const std::shared_ptr<Dual>& dual) {
  return {Function::FromTyped([dual]() {
            dual->Round();
            return Shape({dual->bound(), dual->best()});
          }),
          Function::FromTyped([dual]() {
            dual->Prune();
            Ints out;
            for (int64_t v = 0; v < dual->size(); ++v) {
              const Ints& states = dual->states(v);
              out.push_back(static_cast<int64_t>(states.size()));
              out.insert(out.end(), states.begin(), states.end());
            }
            return Shape(out.begin(), out.end());
          }),
          Function::FromTyped([dual]() {
            Ints out;
            for (int64_t v = 0; v < dual->size(); ++v) {
              const Ints& excess = dual->excess(v);
              out.insert(out.end(), excess.begin(), excess.end());
            }
            return Shape(out.begin(), out.end());
          }),
          Function::FromTyped([dual]() {
            return Shape(dual->labels().begin(), dual->labels().end());
          }),
          Function::FromTyped([dual](int64_t cost, const TensorView& labels_in) {
            const Int64View view(labels_in, "labels");
            view.CheckSize(dual->size(), "labels");
            dual->Offer(cost, Listed(view));
          }),
          Function::FromTyped([dual](const TensorView& messages_in) {
            const Ints messages = Listed(Int64View(messages_in, "messages"));
            const size_t needed = dual->Messages().size();
            if (messages.size() != needed || messages[0] < 0 || messages[0] > kMostBits) {
              TVM_FFI_THROW(ValueError) << "the messages belong to another problem";
            }
            dual->Resume(messages);
          }),
          Function::FromTyped([dual](const TensorView& out_in) {
            const Int64View out(out_in, "out");
            const Ints messages = dual->Messages();
            out.CheckSize(static_cast<int64_t>(messages.size()), "out");
            for (size_t i = 0; i < messages.size(); ++i) out[i] = messages[i];
          })};
}

}  // namespace tvm_distir
