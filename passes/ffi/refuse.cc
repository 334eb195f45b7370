// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0

#include "ffi/refuse.h"

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/string.h>

namespace tvm_distir {
namespace {

namespace ffi = tvm::ffi;
using Fields = ffi::Map<ffi::String, ffi::Any>;

std::string Text(const Fields& fields, const char* key) {
  const auto found = fields.find(key);
  if (found == fields.end()) return "";
  const auto text = (*found).second.try_cast<ffi::String>();
  return text ? std::string(*text) : "";
}

}  // namespace

std::string Fault::Text() const {
  if (code.empty()) return what;
  return code + (location.empty() ? "" : " " + location) + ": " + what +
         (remedy.empty() ? "" : " [" + remedy + "]");
}

void Raise(const Fault& fault) {
  const Fields fields{{"class", ffi::String(fault.error_class)},
                      {"code", ffi::String(fault.code)},
                      {"location", ffi::String(fault.location)},
                      {"what", ffi::String(fault.what)},
                      {"remedy", ffi::String(fault.remedy)}};
  throw ffi::Error("tvm_distir." + fault.error_class, fault.Text(), "", std::nullopt, fields);
}

Fault FaultOf(const ffi::Error& error) {
  const std::optional<ffi::ObjectRef> context = error.extra_context();
  const auto fields = context ? ffi::Any(*context).try_cast<Fields>() : std::nullopt;
  if (!fields || Text(*fields, "code").empty()) return {"", "", "", error.message(), ""};
  return {Text(*fields, "class"), Text(*fields, "code"), Text(*fields, "location"),
          Text(*fields, "what"), Text(*fields, "remedy")};
}

void Refuse(const std::string& code, const std::string& location, const std::string& what,
            const std::string& remedy) {
  Raise({"EngineError", code, location, what, remedy});
}

}  // namespace tvm_distir
