// Safetensors bytes -> file, and the first and last byte of every tensor. Anything but Error is a
// finding.
#include <cstdint>

#include "base/error.h"
#include "compile/import/safetensors_file.h"
#include "tests/fuzz/fuzzer.h"

using namespace tokamak;

TK_FUZZER(safetensors) {
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
      fail_if(!view);
      if (!view->bytes.empty()) sink = std::to_integer<unsigned>(view->bytes.back());
      fail_if(view->bytes.size() != dtype_bytes(view->dtype, view->elements()));
    } catch (const Error& e) {
      if (e.code() != ErrorCode::kUnsupported) throw;  // an unknown type
    }
  }
  return 0;
}
