// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// What a call of a collective asks for, its words in messages, and the checks a rank makes alone.

#ifndef TVM_DISTIR_PASSES_CCL_REQUEST_H_
#define TVM_DISTIR_PASSES_CCL_REQUEST_H_

#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>

#include <string>

#include "ccl/reduce.h"
#include "ccl/fabric.h"
#include "ffi/refuse.h"

namespace tvm_distir {

constexpr const char* kLoweringBug = "Report it: this is a bug of the lowering.";

// In the order of NATIVE_KINDS in tvm_distir/execution/runtime/collectives/native_library.py.
enum Kind : int64_t {
  kAllReduce, kAllGather, kReduceScatter, kAllToAll, kPermute, kLocalSlice, kPartial, kAxisIndex
};

int64_t Product(const int64_t* begin, const int64_t* end);
int64_t ElementBytes(DLDataType dtype);
int64_t Elements(const Request& request);
int64_t Bytes(const Request& request);
bool SameType(DLDataType a, DLDataType b);
// Whether the two shapes agree in all dims but `free` (-1: in all).
bool SameShape(const Request& request, const Dims& a, const Dims& b, int64_t free = -1);

const char* NameOf(int64_t kind);
// "all_gather(dim=0)"
std::string CallText(const Request& request);
// "float32[2, 3]"
std::string TypeText(DLDataType dtype, int64_t ndim, const int64_t* shape);
// The call, its bytes and its type.
std::string RequestText(const Request& request);

// DIST0611 at the call.
[[noreturn]] void RefuseCall(const Request& request, const std::string& what,
                             const std::string& remedy);

// Checks that both are contiguous CPU tensors of one type and number of dims.
Request MakeRequest(Kind kind, int64_t first, int64_t second, const tvm::ffi::TensorView& x,
                    const tvm::ffi::TensorView& out);
// A dim counted from the front.
int64_t Dim(const Request& request, int64_t dim);
// Divides one dim of a shape by `parts`, which must leave no rest.
void Divide(const Request& request, Dims* shape, int64_t dim, int64_t parts);
void CheckResult(const Request& request, const Dims& expected);
const Reducer& ReducerOf(const Request& request, int64_t op);

const Membership& FindMembership(Worker* worker, const Request& request,
                                 const tvm::ffi::Shape& groups, int64_t group_size);

[[noreturn]] void RefuseOutside(const char* name);

// Runs `body(worker)`; what it throws is recorded for the other ranks before it leaves.
template <typename Body>
void Guarded(const char* name, const Body& body) {
  Worker* worker = CurrentWorker();
  if (!worker) RefuseOutside(name);
  try {
    body(worker);
  } catch (const tvm::ffi::Error& error) {
    worker->fabric->Fail(worker->rank, FaultOf(error));
    throw;
  } catch (const std::exception& error) {
    worker->fabric->Fail(worker->rank, Fault{"", "", "", error.what(), ""});
    throw;
  }
}

}  // namespace tvm_distir

#endif  // TVM_DISTIR_PASSES_CCL_REQUEST_H_
