// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// The version of the interface between this library and tvm_distir/native.

#include <tvm/ffi/function.h>

#include <cstdint>

namespace tvm_distir {

// Raise it together with ABI_VERSION in tvm_distir/support/native/loader.py whenever the arguments or the
// meaning of an exported function change.
constexpr int64_t kAbiVersion = 16;

static int64_t AbiVersion() { return kAbiVersion; }

}  // namespace tvm_distir

TVM_FFI_DLL_EXPORT_TYPED_FUNC(abi_version, tvm_distir::AbiVersion);
