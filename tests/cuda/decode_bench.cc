// Tests and measures the CUDA kernels on a GPU: decode_bench <folder with *.fatbin> [part ...]
// Parts: decode, decode-tiny (for compute-sanitizer), decode-large, decode-one, decode-time,
// decode-one-time, attention, attention-time, prefill, prefill-time, sample, sample-time, products,
// products-tiny, products-time, fused-time.
#include "decode_bench.h"

using namespace tokamak;
using namespace tokamak::cuda;

namespace {

int run(const std::string& folder, const std::vector<std::string>& parts) {
  Device device(0);
  fmt::print("{}: {} multiprocessors, {} bytes of shared memory, capability {}\n", device.name(),
             device.multiprocessors(), device.shared_memory_limit(), device.capability());
  Report report;
  Stream stream;
  Filler filler(read_kernels(folder + "/fill.fatbin").data());
  DecodeContext decode{device, filler, stream, read_kernels(folder + "/decode_stream.fatbin"),
                       report};
  AttentionContext attention{device, filler, stream,
                             read_kernels(folder + "/decode_attention.fatbin"), report};
  PrefillContext prefill{device, filler, stream, read_kernels(folder + "/prefill_attention.fatbin"),
                         report};
  SampleContext sample{device, filler, stream, read_kernels(folder + "/sample.fatbin"), report};
  FewRowsContext few_rows{device, filler, stream, read_kernels(folder + "/few_rows.fatbin"),
                          report};
  for (const std::string& part : parts) {
    fmt::print("== {}\n", part);
    try {
      if (part == "decode") check_decode(decode);
      if (part == "decode-tiny") check_decode_tiny(decode);
      if (part == "decode-large") check_decode_large(decode);
      if (part == "decode-one") check_decode_one(decode);
      if (part == "decode-time") time_decode(decode);
      if (part == "decode-one-time") time_decode_one(decode);
      if (part == "attention") check_attention(attention);
      if (part == "attention-time") time_attention(attention);
      if (part == "prefill") check_prefill(prefill);
      if (part == "prefill-time") time_prefill(prefill);
      if (part == "sample") check_sample(sample);
      if (part == "sample-time") time_sample(sample);
      if (part == "products") check_few_rows(few_rows, false);
      if (part == "products-tiny") check_few_rows(few_rows, true);
      if (part == "products-time") time_few_rows(few_rows);
      if (part == "fused-time") time_fused(few_rows, read_kernels(folder + "/op_layer.fatbin"));
    } catch (const Error& e) {
      report.expect(false, fmt::format("{}: {}", part, e.what()));
    }
  }
  fmt::print("{} failures\n", report.failures);
  return report.failures ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: decode_bench FOLDER [PART ...]\n");
    return 2;
  }
  std::vector<std::string> parts(argv + 2, argv + argc);
  if (parts.empty())
    parts = {"decode", "decode-large", "attention", "prefill", "sample", "products"};
  try {
    return run(argv[1], parts);
  } catch (const std::exception& e) {
    fmt::print(stderr, "decode_bench: {}\n", e.what());
    return 1;
  }
}
