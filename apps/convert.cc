// tokamak convert: a model in another format, or in other element types.
#include "compile/convert/convert.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <map>

#include "apps/terminal.h"
#include "apps/verbs.h"
#include "base/error.h"
#include "base/json.h"

namespace tokamak {
namespace {

constexpr size_t kWorst = 5;  // tensors that the report names

struct ConvertFlags {
  ConvertOptions options;
  std::string in, out, type, output_type;
  bool json = false;
};

std::optional<DType> parse_type(const std::string& name) {
  if (name.empty()) return std::nullopt;
  std::string lower = name;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::optional<DType> type = dtype_from_name(lower);
  if (!type)
    fail(ErrorCode::kInvalidArgument, "unknown type {}: use f32, f16, bf16, q8_0, q4_0, q4_k ...",
         name);
  return type;
}

std::vector<const ConvertedTensor*> worst_of(const ConvertReport& report) {
  std::vector<const ConvertedTensor*> list;
  for (const ConvertedTensor& t : report.tensors)
    if (t.nmse > 0) list.push_back(&t);
  std::stable_sort(list.begin(), list.end(),
                   [](const auto* a, const auto* b) { return a->nmse > b->nmse; });
  list.resize(std::min(list.size(), kWorst));
  return list;
}

Value to_json(const ConvertReport& report, const ConvertFlags& f) {
  Value tensors = Value::array();
  for (const ConvertedTensor& t : report.tensors)
    tensors.push(Value::Object{{"name", t.name},
                               {"from", std::string(dtype_name(t.from))},
                               {"to", std::string(dtype_name(t.to))},
                               {"shape", Value(Value::Array(t.dims.begin(), t.dims.end()))},
                               {"bytes_in", t.bytes_in},
                               {"bytes_out", t.bytes_out},
                               {"nmse", t.nmse}});
  return Value::Object{{"in", f.in},
                       {"out", f.out},
                       {"architecture", report.architecture},
                       {"from", report.from},
                       {"to", report.to},
                       {"bytes_in", report.bytes_in},
                       {"bytes_out", report.bytes_out},
                       {"tensors", std::move(tensors)}};
}

void print_report(const ConvertReport& report, const ConvertFlags& f) {
  auto mb = [](uint64_t bytes) { return static_cast<double>(bytes) / 1e6; };
  fmt::print("{} ({}, {}): {} tensors, {:.1f} MB -> {:.1f} MB\n\n", f.out, report.architecture,
             report.to, report.tensors.size(), mb(report.bytes_in), mb(report.bytes_out));
  struct Share {
    size_t tensors = 0;
    uint64_t bytes_in = 0, bytes_out = 0;
    double worst = 0;
  };
  std::map<std::string, Share> kinds;
  for (const ConvertedTensor& t : report.tensors) {
    Share& share = kinds[fmt::format("{} -> {}", dtype_name(t.from), dtype_name(t.to))];
    ++share.tensors;
    share.bytes_in += t.bytes_in;
    share.bytes_out += t.bytes_out;
    share.worst = std::max(share.worst, t.nmse);
  }
  fmt::print("  {:<18} {:>8} {:>12} {:>12} {:>12}\n", "types", "tensors", "MB read", "MB written",
             "worst NMSE");
  for (const auto& [name, s] : kinds)
    fmt::print("  {:<18} {:>8} {:>12.1f} {:>12.1f} {:>12.2e}\n", name, s.tensors, mb(s.bytes_in),
               mb(s.bytes_out), s.worst);
  std::vector<const ConvertedTensor*> worst = worst_of(report);
  if (!worst.empty()) fmt::print("\n  largest errors:\n");
  for (const ConvertedTensor* t : worst)
    fmt::print("    {:<44} {:<8} NMSE {:.2e}\n", t->name, dtype_name(t->to), t->nmse);
}

void convert(ConvertFlags& f) {
  f.options.in = f.in;
  f.options.out = f.out;
  f.options.type = parse_type(f.type);
  f.options.output_type = parse_type(f.output_type);
  ConvertReport report;
  {
    std::atomic<bool> stop = false;
    InterruptScope interrupt([&] { stop = true; });
    ProgressBar bar("converting");
    f.options.progress = [&](uint64_t done, uint64_t total) {
      bar.update(done, total);
      return !stop;
    };
    try {
      report = convert_model(f.options);
    } catch (const Error& e) {
      if (e.code() != ErrorCode::kCancelled) throw;
    }

    if (interrupt.interrupted()) {
      fmt::print(stderr, "interrupted; nothing was written\n");
      end_by_interrupt();
    }
  }
  if (f.json)
    fmt::print("{}\n", dump_json(to_json(report, f)));
  else
    print_report(report, f);
}

}  // namespace

void add_convert_verb(CLI::App& app) {
  auto flags = std::make_shared<ConvertFlags>();
  CLI::App* verb = app.add_subcommand(
      "convert", "write a model as GGUF or safetensors, also in other element types");
  verb->add_option("IN", flags->in, "a .gguf file, or a folder with config.json")->required();
  verb->add_option("OUT", flags->out, "a .gguf file, or a folder for safetensors")->required();
  verb->add_option("--type", flags->type,
                   "type of matrices: f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q2_k to q6_k, "
                   "iq4_nl, iq4_xs, tq1_0, tq2_0 or mxfp4 (default: as in IN)");
  verb->add_option("--output-type", flags->output_type,
                   "type of the matrix that gives logits (default: at least q6_k)");
  verb->add_option("--threads", flags->options.threads, "threads (default: all cores)")
      ->check(CLI::Range(0, 1024));
  verb->add_flag("--force", flags->options.overwrite, "overwrite OUT");
  verb->add_flag("--json", flags->json, "print sizes and errors of all tensors as JSON");
  verb->footer(
      "The tokenizer, the chat template and all hyper-parameters are carried over. Quantising\n"
      "loses precision: the report gives the squared error of each tensor relative to its values.\n"
      "Norms, biases and routers stay f32. Quantising a quantised model adds both errors.\n\n"
      "Examples:\n  tokamak convert SmolLM2-135M-Instruct model.gguf --type q4_k\n"
      "  tokamak convert model.f16.gguf model.q8.gguf --type q8_0\n"
      "  tokamak convert model.gguf folder --type bf16");
  verb->callback([flags] { convert(*flags); });
}

}  // namespace tokamak
