#pragma once
// TK_FUZZER(gguf) { ... data, size ... return 0; }: the function that a fuzzer calls. With
// libFuzzer each is a program of its own; otherwise all are in one program, which replay_main.cc
// runs.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace tokamak {

using FuzzFunction = int (*)(const uint8_t* data, size_t size);

struct Fuzzer {
  Fuzzer(const char* name, FuzzFunction function);  // adds it to the list
  const char* name;
  FuzzFunction function;
};

// A finding.
inline void fail_if(bool broken) {
  if (broken) std::abort();
}

}  // namespace tokamak

#ifdef TK_FUZZ
#define TK_FUZZER(name) extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size)
#else
#define TK_FUZZER(name)                                           \
  static int fuzz_##name(const uint8_t* data, size_t size);       \
  static const tokamak::Fuzzer name##_fuzzer(#name, fuzz_##name); \
  static int fuzz_##name(const uint8_t* data, size_t size)
#endif
