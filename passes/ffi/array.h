// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// Views of the int64 arrays that Python hands over.

#ifndef TVM_DISTIR_PASSES_ARRAY_H_
#define TVM_DISTIR_PASSES_ARRAY_H_

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>

#include <cstdint>
#include <vector>

namespace tvm_distir {

// A one-dimensional, contiguous int64 array in CPU memory, which the caller keeps alive.
class Int64View {
 public:
  Int64View(const tvm::ffi::TensorView& tensor, const char* name) {
    const DLDataType dtype = tensor.dtype();
    if (dtype.code != kDLInt || dtype.bits != 64 || dtype.lanes != 1) {
      TVM_FFI_THROW(TypeError) << name << " must hold int64";
    }
    if (tensor.device().device_type != kDLCPU) {
      TVM_FFI_THROW(TypeError) << name << " must lie in CPU memory";
    }
    if (tensor.ndim() != 1 || !tensor.IsContiguous()) {
      TVM_FFI_THROW(ValueError) << name << " must be contiguous and have one dim, not "
                                << tensor.ndim();
    }
    size_ = tensor.size(0);
    data_ = static_cast<int64_t*>(tensor.data_ptr()) + tensor.byte_offset() / sizeof(int64_t);
  }

  int64_t size() const { return size_; }
  int64_t& operator[](int64_t i) const { return data_[i]; }

  void CheckSize(int64_t expected, const char* name) const {
    if (size_ != expected) {
      TVM_FFI_THROW(ValueError) << name << " has " << size_ << " entries, " << expected
                                << " are needed";
    }
  }

  // Every entry must be in [low, high).
  void CheckRange(int64_t low, int64_t high, const char* name) const {
    for (int64_t i = 0; i < size_; ++i) {
      if (data_[i] < low || data_[i] >= high) {
        TVM_FFI_THROW(ValueError) << name << "[" << i << "] is " << data_[i] << ", not in [" << low
                                  << ", " << high << ")";
      }
    }
  }

 private:
  int64_t* data_ = nullptr;
  int64_t size_ = 0;
};

// The entries of an array.
inline std::vector<int64_t> Listed(const tvm::ffi::TensorView& tensor, const char* name) {
  const Int64View view(tensor, name);
  std::vector<int64_t> out(view.size());
  for (int64_t i = 0; i < view.size(); ++i) out[i] = view[i];
  return out;
}

// Writes what was found into an array of that size.
inline void Give(const std::vector<int64_t>& found, const tvm::ffi::TensorView& tensor,
                 const char* name) {
  const Int64View view(tensor, name);
  view.CheckSize(static_cast<int64_t>(found.size()), name);
  for (int64_t i = 0; i < view.size(); ++i) view[i] = found[i];
}

}  // namespace tvm_distir

#endif  // TVM_DISTIR_PASSES_ARRAY_H_
