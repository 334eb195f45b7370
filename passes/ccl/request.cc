// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0

#include "ccl/request.h"

#include <algorithm>
#include <set>
#include <sstream>

namespace tvm_distir {
namespace {

using tvm::ffi::Shape;
using tvm::ffi::TensorView;

struct KindInfo {
  const char* name;
  const char* args[2];
};
constexpr KindInfo kKinds[] = {{"all_reduce", {"op", nullptr}},
                               {"all_gather", {"dim", nullptr}},
                               {"reduce_scatter", {"dim", "op"}},
                               {"all_to_all", {"gather_dim", "split_dim"}},
                               {"collective_permute", {"shift", "wrap"}},
                               {"local_slice", {"dim", nullptr}},
                               {"partial", {"op", nullptr}},
                               {"axis_index", {nullptr, nullptr}}};
constexpr const char* kOpNames[] = {"sum", "prod", "min", "max"};

char* Data(const TensorView& tensor) {
  return static_cast<char*>(tensor.data_ptr()) + tensor.byte_offset();
}

bool IsBool(DLDataType dtype) {
  return (dtype.code == kDLUInt && dtype.bits == 1) || (dtype.code == kDLBool && dtype.bits == 8);
}

void CheckPlain(const Request& request, const TensorView& tensor, const char* name) {
  const DLDataType dtype = tensor.dtype();
  const bool whole_bytes = dtype.bits * dtype.lanes >= 8 || IsBool(dtype);
  if (tensor.device().device_type == kDLCPU && tensor.IsContiguous() &&
      tensor.ndim() <= kMaxDims && whole_bytes) {
    return;
  }
  RefuseCall(request,
             std::string(name) + " is not a contiguous CPU tensor of whole bytes and at most " +
                 std::to_string(kMaxDims) + " dims",
             kLoweringBug);
}

}  // namespace

int64_t Product(const int64_t* begin, const int64_t* end) {
  int64_t product = 1;
  for (; begin != end; ++begin) product *= *begin;
  return product;
}

int64_t ElementBytes(DLDataType dtype) { return (dtype.bits * dtype.lanes + 7) / 8; }
int64_t Elements(const Request& r) { return Product(r.shape.data(), r.shape.data() + r.ndim); }
int64_t Bytes(const Request& r) { return Elements(r) * ElementBytes(r.dtype); }

bool SameType(DLDataType a, DLDataType b) {
  return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

bool SameShape(const Request& request, const Dims& a, const Dims& b, int64_t free) {
  for (int64_t i = 0; i < request.ndim; ++i) {
    if (i != free && a[i] != b[i]) return false;
  }
  return true;
}

// ---- words --------------------------------------------------------------------------------------

const char* NameOf(int64_t kind) { return kKinds[kind].name; }

std::string CallText(const Request& request) {
  const KindInfo& info = kKinds[request.kind];
  std::ostringstream text;
  text << info.name << "(";
  for (int i = 0; i < 2 && info.args[i]; ++i) {
    text << (i ? ", " : "") << info.args[i] << "=";
    const int64_t value = request.args[i];
    if (std::string(info.args[i]) == "op" && value >= 0 && value < kReduceOpCount) {
      text << kOpNames[value];
    } else {
      text << value;
    }
  }
  text << ")";
  return text.str();
}

std::string TypeText(DLDataType dtype, int64_t ndim, const int64_t* shape) {
  std::ostringstream text;
  text << tvm::ffi::DLDataTypeToString(dtype) << "[";
  for (int64_t i = 0; i < ndim; ++i) text << (i ? ", " : "") << shape[i];
  text << "]";
  return text.str();
}

std::string RequestText(const Request& r) {
  std::ostringstream text;
  text << CallText(r) << " on " << Bytes(r) << " bytes ("
       << TypeText(r.dtype, r.ndim, r.shape.data()) << ")";
  return text.str();
}

void RefuseCall(const Request& request, const std::string& what, const std::string& remedy) {
  Refuse("DIST0611", CallText(request), what, remedy);
}

void RefuseOutside(const char* name) {
  Refuse("DIST0605", name,
         std::string("tvm_distir.ccl.") + name + " was called outside of a run of several ranks",
         "Run the module with tvm_distir.run.");
}

// ---- checks -------------------------------------------------------------------------------------

Request MakeRequest(Kind kind, int64_t first, int64_t second, const TensorView& x,
                    const TensorView& out) {
  Request request{};
  request.kind = kind;
  request.args = {first, second};
  CheckPlain(request, x, "the operand");
  CheckPlain(request, out, "the result");
  request.dtype = x.dtype();
  request.ndim = x.ndim();
  if (out.ndim() != x.ndim() || !SameType(out.dtype(), x.dtype())) {
    RefuseCall(request,
               "the operand is " + TypeText(x.dtype(), x.ndim(), x.shape().data()) +
                   ", the code expects a result " +
                   TypeText(out.dtype(), out.ndim(), out.shape().data()),
               kLoweringBug);
  }
  for (int64_t i = 0; i < request.ndim; ++i) {
    request.shape[i] = x.size(i);
    request.out_shape[i] = out.size(i);
  }
  request.bytes = Bytes(request);
  request.source = Data(x);
  request.target = Data(out);
  return request;
}

int64_t Dim(const Request& request, int64_t dim) {
  if (dim < -request.ndim || dim >= request.ndim) {
    RefuseCall(request, "there is no dim " + std::to_string(dim), kLoweringBug);
  }
  return dim < 0 ? dim + request.ndim : dim;
}

void Divide(const Request& request, Dims* shape, int64_t dim, int64_t parts) {
  const int64_t extent = (*shape)[dim];
  if (extent % parts) {
    RefuseCall(request,
               "dim " + std::to_string(dim) + " of size " + std::to_string(extent) +
                   " is not divisible by the " + std::to_string(parts) + " ranks of the group",
               "Pad it to " + std::to_string((extent / parts + 1) * parts) + " first.");
  }
  (*shape)[dim] = extent / parts;
}

void CheckResult(const Request& request, const Dims& expected) {
  if (SameShape(request, request.out_shape, expected)) return;
  RefuseCall(request,
             "the result is " + TypeText(request.dtype, request.ndim, expected.data()) +
                 ", the code expects " +
                 TypeText(request.dtype, request.ndim, request.out_shape.data()),
             kLoweringBug);
}

const Reducer& ReducerOf(const Request& request, int64_t op) {
  if (op < 0 || op >= kReduceOpCount) {
    RefuseCall(request, "unknown reduction " + std::to_string(op), kLoweringBug);
  }
  const Reducer* reducer = FindReducer(request.dtype);
  if (reducer) return *reducer;
  RefuseCall(request,
             "no native reduction of " +
                 TypeText(request.dtype, request.ndim, request.shape.data()),
             "Reduce it in another type, such as float32, or use the engine virtual.");
}

const Membership& FindMembership(Worker* worker, const Request& request, const Shape& groups,
                                 int64_t group_size) {
  std::pair<Ranks, int64_t> key(Ranks(groups.begin(), groups.end()), group_size);
  const auto found = worker->memberships.find(key);
  if (found != worker->memberships.end()) return found->second;
  const Ranks& all = key.first;
  const int64_t count = static_cast<int64_t>(all.size());
  if (group_size < 1 || group_size >= Rendezvous::kArrivals || count % group_size) {
    RefuseCall(request, "groups of " + std::to_string(group_size) + " ranks", kLoweringBug);
  }
  for (int64_t begin = 0; begin < count; begin += group_size) {
    const Ranks group(all.begin() + begin, all.begin() + begin + group_size);
    const auto mine = std::find(group.begin(), group.end(), worker->rank);
    if (mine == group.end()) continue;
    if (std::set<int64_t>(group.begin(), group.end()).size() != group.size()) {
      RefuseCall(request, "a group names a rank twice: " + RanksText(group), kLoweringBug);
    }
    const Membership made{worker->fabric->FindGroup(group),
                          static_cast<size_t>(mine - group.begin())};
    return worker->memberships.emplace(std::move(key), made).first->second;
  }
  Refuse("DIST0611", "",
         "rank " + std::to_string(worker->rank) + " takes part in " + CallText(request) +
             " but is in none of its groups (" + RanksText(all) + ")",
         "Run the function on the devices of its mesh.");
}

}  // namespace tvm_distir
