// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// Collectives that no level-5 op stands for (signatures: tvm_distir/execution/runtime/collectives/ccl.py),
// with the bits of their reference, tvm_distir/core/collectives/rooted.py: from and to one rank, in parts
// of any size; and messages.

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include "ccl/frame.h"

namespace tvm_distir {
namespace {

using tvm::ffi::Shape;
using tvm::ffi::TensorView;

// Checks one dim of every result, the same on all ranks: all throw or none does.
void CheckExtents(const Gathering& gathering, int64_t axis,
                  const std::function<int64_t(int64_t)>& expected) {
  for (int64_t to = 0; to < gathering.size(); ++to) {
    const int64_t given = gathering.of(to).out_shape[axis], wanted = expected(to);
    if (given == wanted) continue;
    RefuseCall(gathering.of(to),
               "rank " + std::to_string(gathering.rank(to)) + " expects " + std::to_string(given) +
                   " along dim " + std::to_string(axis) + ", the parts add up to " +
                   std::to_string(wanted),
               "Give the result the size of its parts.");
  }
}

void CheckOtherDims(const Request& request, int64_t axis) {
  if (SameShape(request, request.shape, request.out_shape, axis)) return;
  Dims expected = request.shape;
  expected[axis] = request.out_shape[axis];
  CheckResult(request, expected);
}

// Where a member's part of a dim begins, by the extents of all before it.
int64_t Before(const Gathering& gathering, Dims Request::*shape, int64_t axis, int64_t member) {
  int64_t sum = 0;
  for (int64_t i = 0; i < member; ++i) sum += (gathering.of(i).*shape)[axis];
  return sum;
}

// Checks that the results of all make up a dim of the operand; all ranks see the same.
void CheckSum(const Gathering& gathering, int64_t axis, const Request& operand) {
  const int64_t sum = Before(gathering, &Request::out_shape, axis, gathering.size());
  if (sum == operand.shape[axis]) return;
  RefuseCall(operand,
             "the ranks expect " + std::to_string(sum) + " along dim " + std::to_string(axis) +
                 ", the operand has " + std::to_string(operand.shape[axis]),
             "Give the results the sizes of the parts.");
}

void Broadcast(TensorView x, Shape groups, int64_t group_size, int64_t root, TensorView out) {
  Guarded("broadcast", [&](Worker* worker) {
    Call call(worker, MakeRequest(kBroadcast, root, 0, x, out), groups, group_size);
    Request& request = call.request();
    Root(request, root, group_size);
    CheckResult(request, request.shape);
    const auto piece = [&](const Gathering&, int64_t from, int64_t, Piece* made) {
      made->source = made->target = WholeBox(request, request.shape);
      return from == root;
    };
    call.Run([&](Gathering* gathering) { Exchange(gathering, {piece}); });
  });
}

void Scatter(TensorView x, Shape groups, int64_t group_size, int64_t root, int64_t dim,
             TensorView out) {
  Guarded("scatter", [&](Worker* worker) {
    const int64_t axis = Dim(MakeRequest(kScatter, root, dim, x, out), dim);
    Call call(worker, MakeRequest(kScatter, root, axis, x, out), groups, group_size);
    Request& request = call.request();
    Root(request, root, group_size);
    if (call.position() == root) {
      CheckOtherDims(request, axis);
    } else {
      request.bytes = 0;  // nobody reads the operand of another rank
    }
    const auto piece = [&](const Gathering& g, int64_t from, int64_t to, Piece* made) {
      if (from != root) return false;
      const Request& target = g.of(to);
      *made = {WholeBox(request, g.of(root).shape), WholeBox(request, target.out_shape)};
      made->source.extent = target.out_shape;
      made->source.at[axis] = Before(g, &Request::out_shape, axis, to);
      return true;
    };
    call.Run([&](Gathering* gathering) {
      CheckSum(*gathering, axis, gathering->of(root));
      Exchange(gathering, {piece, true});
    });
  });
}

void Gather(TensorView x, Shape groups, int64_t group_size, int64_t root, int64_t dim,
            TensorView out) {
  Guarded("gather", [&](Worker* worker) {
    const int64_t axis = Dim(MakeRequest(kGather, root, dim, x, out), dim);
    Call call(worker, MakeRequest(kGather, root, axis, x, out), groups, group_size);
    const Request& request = call.request();
    Root(request, root, group_size);
    if (call.position() == root) CheckOtherDims(request, axis);
    const auto piece = [&](const Gathering& g, int64_t from, int64_t to, Piece* made) {
      if (to != root) return false;
      const Request& source = g.of(from);
      *made = {WholeBox(request, source.shape), WholeBox(request, source.shape)};
      made->target.shape = g.of(root).out_shape;
      made->target.at[axis] = Before(g, &Request::shape, axis, from);
      return true;
    };
    call.Run([&](Gathering* gathering) {
      const int64_t sum = Before(*gathering, &Request::shape, axis, group_size);
      CheckExtents(*gathering, axis, [&](int64_t to) {
        return to == root ? sum : gathering->of(to).out_shape[axis];
      });
      Exchange(gathering, {piece});
    });
  });
}

// ---- messages -----------------------------------------------------------------------------------

void Send(TensorView x, int64_t tag, int64_t destination, tvm::ffi::Bytes label) {
  Guarded("send", [&](Worker* worker) {
    const Request request = MakeRequest(kBroadcast, 0, 0, x, x);
    worker->fabric->Post({tag, worker->rank, destination}, label, request.source,
                         static_cast<uint64_t>(request.bytes));
  });
}

tvm::ffi::Array<tvm::ffi::Any> Await(int64_t tag, int64_t source, tvm::ffi::String what) {
  tvm::ffi::Array<tvm::ffi::Any> found;
  Guarded("recv", [&](Worker* worker) {
    const auto [label, bytes] = worker->fabric->Await({tag, source, worker->rank}, what);
    found = {tvm::ffi::Bytes(label), static_cast<int64_t>(bytes)};
  });
  return found;
}

void Receive(int64_t tag, int64_t source, TensorView out) {
  Guarded("recv", [&](Worker* worker) {
    const Request request = MakeRequest(kBroadcast, 0, 0, out, out);
    worker->fabric->Take({tag, source, worker->rank}, request.target,
                         static_cast<uint64_t>(request.bytes));
  });
}

}  // namespace
}  // namespace tvm_distir

TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_broadcast, tvm_distir::Broadcast);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_scatter, tvm_distir::Scatter);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_gather, tvm_distir::Gather);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_send, tvm_distir::Send);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_await, tvm_distir::Await);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_recv, tvm_distir::Receive);
