// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// The collectives that compiled level-5 code calls (signatures: tvm_distir/execution/runtime/collectives/ccl.py), with
// the bits of their reference, tvm_distir/core/collectives/meaning.py.

#include <tvm/ffi/function.h>

#include <cstring>

#include "ccl/frame.h"

namespace tvm_distir {
namespace {

using tvm::ffi::Shape;
using tvm::ffi::TensorView;

void AllReduce(TensorView x, Shape groups, int64_t group_size, int64_t op, TensorView out) {
  Guarded("all_reduce", [&](Worker* worker) {
    Call call(worker, MakeRequest(kAllReduce, op, 0, x, out), groups, group_size);
    const Reducer& reducer = ReducerOf(call.request(), op);
    CheckResult(call.request(), call.request().shape);
    call.Run([&](Gathering* gathering) {
      ReduceForAll(gathering, reducer, static_cast<ReduceOp>(op));
    });
  });
}

void AllGather(TensorView x, Shape groups, int64_t group_size, int64_t dim, TensorView out) {
  Guarded("all_gather", [&](Worker* worker) {
    Call call(worker, MakeRequest(kAllGather, dim, 0, x, out), groups, group_size);
    const Request& request = call.request();
    const int64_t axis = Dim(request, dim);
    Dims whole = request.shape;
    whole[axis] *= group_size;
    CheckResult(request, whole);
    const Box shard = WholeBox(request, request.shape);
    const auto piece = [&](const Gathering&, int64_t from, int64_t, Piece* made) {
      *made = {shard, shard};
      made->target.shape = whole;
      made->target.at[axis] = from * request.shape[axis];
      return true;
    };
    call.Run([&](Gathering* gathering) { Exchange(gathering, {piece}); });
  });
}

void ReduceScatter(TensorView x, Shape groups, int64_t group_size, int64_t dim, int64_t op,
                   TensorView out) {
  Guarded("reduce_scatter", [&](Worker* worker) {
    Call call(worker, MakeRequest(kReduceScatter, dim, op, x, out), groups, group_size);
    const Request& request = call.request();
    const Reducer& reducer = ReducerOf(request, op);
    const int64_t axis = Dim(request, dim);
    Dims part = request.shape;
    Divide(request, &part, axis, group_size);
    CheckResult(request, part);
    const auto piece = [&](const Gathering&, int64_t, int64_t to, Piece* made) {
      *made = {WholeBox(request, request.shape), WholeBox(request, part)};
      made->source.extent = part;
      made->source.at[axis] = to * part[axis];
      return true;
    };
    call.Run([&](Gathering* gathering) {
      ExchangeReduced(gathering, {piece, true}, reducer, static_cast<ReduceOp>(op));
    });
  });
}

void AllToAll(TensorView x, Shape groups, int64_t group_size, int64_t gather_dim,
              int64_t split_dim, TensorView out) {
  Guarded("all_to_all", [&](Worker* worker) {
    Call call(worker, MakeRequest(kAllToAll, gather_dim, split_dim, x, out), groups, group_size);
    const Request& request = call.request();
    const int64_t gathered = Dim(request, gather_dim), split = Dim(request, split_dim);
    Dims part = request.shape;
    Divide(request, &part, split, group_size);
    Dims result = part;
    result[gathered] *= group_size;
    CheckResult(request, result);
    const auto piece = [&](const Gathering&, int64_t from, int64_t to, Piece* made) {
      *made = {WholeBox(request, request.shape), WholeBox(request, result)};
      made->source.extent = made->target.extent = part;
      made->source.at[split] = to * part[split];
      made->target.at[gathered] = from * part[gathered];
      return true;
    };
    call.Run([&](Gathering* gathering) { Exchange(gathering, {piece, true}); });
  });
}

void CollectivePermute(TensorView x, Shape groups, int64_t group_size, int64_t shift,
                       int64_t wrap, TensorView out) {
  Guarded("collective_permute", [&](Worker* worker) {
    Call call(worker, MakeRequest(kPermute, shift, wrap, x, out), groups, group_size);
    const Request& request = call.request();
    CheckResult(request, request.shape);
    const auto piece = [&](const Gathering&, int64_t from, int64_t to, Piece* made) {
      made->source = made->target = WholeBox(request, request.shape);
      return wrap ? (to - shift - from) % group_size == 0 : to - shift == from;
    };
    call.Run([&](Gathering* gathering) {
      const int64_t from = gathering->position() - shift;
      if (!wrap && (from < 0 || from >= group_size) && request.bytes > 0) {
        std::memset(request.target, 0, request.bytes);
      }
      Exchange(gathering, {piece});
    });
  });
}

// ---- without traffic -----------------------------------------------------------------------------

void LocalSlice(TensorView x, Shape groups, int64_t group_size, int64_t dim, TensorView out) {
  Guarded("local_slice", [&](Worker* worker) {
    const Request request = MakeRequest(kLocalSlice, dim, 0, x, out);
    const Membership& place = FindMembership(worker, request, groups, group_size);
    const int64_t axis = Dim(request, dim);
    Dims part = request.shape;
    Divide(request, &part, axis, group_size);
    CheckResult(request, part);
    Box from = WholeBox(request, request.shape);
    from.extent = part;
    from.at[axis] = part[axis] * static_cast<int64_t>(place.position);
    CopyBox(request.target, WholeBox(request, part), request.source, from);
  });
}

void Partial(TensorView x, Shape groups, int64_t group_size, int64_t op, TensorView out) {
  Guarded("partial", [&](Worker* worker) {
    const Request request = MakeRequest(kPartial, op, 0, x, out);
    const Membership& place = FindMembership(worker, request, groups, group_size);
    const Reducer& reducer = ReducerOf(request, op);
    CheckResult(request, request.shape);
    if (place.position > 0) {
      reducer.fill_neutral(static_cast<ReduceOp>(op), Elements(request), request.target);
    } else if (request.target != request.source && request.bytes > 0) {
      std::memcpy(request.target, request.source, request.bytes);
    }
  });
}

void AxisIndex(Shape groups, int64_t group_size, TensorView out) {
  Guarded("axis_index", [&](Worker* worker) {
    const Request request = MakeRequest(kAxisIndex, 0, 0, out, out);
    if (request.ndim > 0 || !SameType(request.dtype, DLDataType{kDLInt, 64, 1})) {
      RefuseCall(request,
                 "the result is int64[], the code expects " +
                     TypeText(request.dtype, request.ndim, request.shape.data()),
                 kLoweringBug);
    }
    const int64_t position =
        static_cast<int64_t>(FindMembership(worker, request, groups, group_size).position);
    std::memcpy(request.target, &position, sizeof(position));
  });
}

}  // namespace
}  // namespace tvm_distir

TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_all_reduce, tvm_distir::AllReduce);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_all_gather, tvm_distir::AllGather);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_reduce_scatter, tvm_distir::ReduceScatter);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_all_to_all, tvm_distir::AllToAll);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_collective_permute, tvm_distir::CollectivePermute);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_local_slice, tvm_distir::LocalSlice);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_partial, tvm_distir::Partial);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_axis_index, tvm_distir::AxisIndex);
