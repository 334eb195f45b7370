// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// What tvm_distir/execution/runtime/collectives/native_library.py calls of a fabric.

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include "ccl/fabric.h"

namespace tvm_distir {
namespace {

namespace ffi = tvm::ffi;

thread_local std::unique_ptr<Worker> current_worker;

std::mutex fabrics_lock;
int64_t next_fabric = 0;
std::map<int64_t, std::shared_ptr<Fabric>> fabrics;

std::shared_ptr<Fabric> FabricOf(int64_t handle) {
  const std::lock_guard<std::mutex> guard(fabrics_lock);
  const auto found = fabrics.find(handle);
  if (found == fabrics.end()) {
    TVM_FFI_THROW(ValueError) << "there is no fabric " << handle;
  }
  return found->second;
}

int64_t Keep(std::shared_ptr<Fabric> made) {
  const std::lock_guard<std::mutex> guard(fabrics_lock);
  fabrics[next_fabric] = std::move(made);
  return next_fabric++;
}

int64_t MakeFabric(ffi::Shape ranks, double timeout_s, bool shared) {
  return Keep(std::make_shared<Fabric>(Ranks(ranks.begin(), ranks.end()), timeout_s, shared));
}

int64_t OpenFabric(int64_t descriptor) {
  return Keep(std::make_shared<Fabric>(static_cast<int>(descriptor)));
}

int64_t Descriptor(int64_t handle) { return FabricOf(handle)->descriptor(); }

void DropFabric(int64_t handle) {
  std::shared_ptr<Fabric> dropped;  // ends after the lock is free
  const std::lock_guard<std::mutex> guard(fabrics_lock);
  const auto found = fabrics.find(handle);
  if (found == fabrics.end()) return;
  dropped = std::move(found->second);
  fabrics.erase(found);
}

void Enter(int64_t handle, int64_t rank) {
  auto worker = std::make_unique<Worker>();
  worker->fabric = FabricOf(handle);
  worker->rank = rank;
  current_worker = std::move(worker);
}

void Leave() {
  if (!current_worker) return;
  current_worker->fabric->Count(current_worker->rank, std::move(current_worker->counts));
  current_worker.reset();
}

int64_t Fail(int64_t handle, int64_t rank, ffi::String error_class, ffi::String code,
             ffi::String place, ffi::String what, ffi::String remedy) {
  return FabricOf(handle)->Fail(rank, Fault{error_class, code, place, what, remedy});
}

// The rank, then the fields in the order of a Fault; empty without a failure.
ffi::Array<ffi::Any> Failure(int64_t handle) {
  const auto found = FabricOf(handle)->failure();
  if (!found) return {};
  const auto& [rank, fault] = *found;
  return {rank, ffi::String(fault.error_class), ffi::String(fault.code), ffi::String(fault.location),
          ffi::String(fault.what), ffi::String(fault.remedy)};
}

void Finish(int64_t handle, int64_t rank) { FabricOf(handle)->Finish(rank); }

int64_t Progress(int64_t handle) { return FabricOf(handle)->Progress(); }

// One [kind, groups, group size, bytes of a result, executions] per entry.
ffi::Array<ffi::Any> CountsOf(int64_t handle, int64_t rank) {
  ffi::Array<ffi::Any> all;
  for (const auto& [key, count] : FabricOf(handle)->CountsOf(rank)) {
    const auto& [kind, groups, size, bytes] = key;
    all.push_back(ffi::Array<ffi::Any>{kind, ffi::Shape(groups.begin(), groups.end()), size, bytes,
                                       count});
  }
  return all;
}

}  // namespace

Worker* CurrentWorker() { return current_worker.get(); }

}  // namespace tvm_distir

TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_make_fabric, tvm_distir::MakeFabric);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_open_fabric, tvm_distir::OpenFabric);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_descriptor, tvm_distir::Descriptor);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_drop_fabric, tvm_distir::DropFabric);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_enter, tvm_distir::Enter);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_leave, tvm_distir::Leave);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_fail, tvm_distir::Fail);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_failure, tvm_distir::Failure);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_finish, tvm_distir::Finish);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_progress, tvm_distir::Progress);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ccl_counts, tvm_distir::CountsOf);
