// Safetensors bytes -> file, and the first and last byte of every tensor. Anything but Error is a
// finding.
#include <cstdint>

#include "base/error.h"
#include "compile/import/safetensors_file.h"

using namespace tokamak;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  [[maybe_unused]] static volatile unsigned sink;
  std::shared_ptr<const SafetensorsFile> file;
  try {
    file = SafetensorsFile::parse(std::as_bytes(std::span(data, size)), "fuzz");
  } catch (const Error& e) {
    if (e.code() == ErrorCode::kInternal) throw;
    return 0;
  }
  for (const std::string& name : file->names()) {
    try {
      const TensorView* view = file->find(name);
      if (!view) __builtin_trap();
      if (!view->bytes.empty()) sink = std::to_integer<unsigned>(view->bytes.back());
      if (view->bytes.size() != dtype_bytes(view->dtype, view->elements())) __builtin_trap();
    } catch (const Error& e) {
      if (e.code() != ErrorCode::kUnsupported) throw;  // an unknown type
    }
  }
  return 0;
}
