// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// The packed functions of messages from rank to rank.

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include "ccl/request.h"

namespace tvm_distir {
namespace {

using tvm::ffi::TensorView;

void Send(TensorView x, int64_t tag, int64_t destination, tvm::ffi::Bytes label) {
  Guarded("send", [&](Worker* worker) {
    const Request request = MakeRequest(kPermute, 0, 0, x, x);
    worker->fabric->Post({tag, worker->rank, destination}, label, request.source,
                         static_cast<uint64_t>(request.bytes));
  });
}

tvm::ffi::Array<tvm::ffi::Any> Await(int64_t tag, int64_t source, tvm::ffi::String what) {
  tvm::ffi::Array<tvm::ffi::Any> message;
  Guarded("recv", [&](Worker* worker) {
    const auto [label, bytes] = worker->fabric->Await({tag, source, worker->rank}, what);
    message = {tvm::ffi::Bytes(label), static_cast<int64_t>(bytes)};
  });
  return message;
}

void Receive(int64_t tag, int64_t source, TensorView out) {
  Guarded("recv", [&](Worker* worker) {
    const Request request = MakeRequest(kPermute, 0, 0, out, out);
    worker->fabric->Take({tag, source, worker->rank}, request.target,
                         static_cast<uint64_t>(request.bytes));
  });
}

}  // namespace
}  // namespace tvm_distir

TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_send, tvm_distir::Send);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_await, tvm_distir::Await);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_recv, tvm_distir::Receive);
