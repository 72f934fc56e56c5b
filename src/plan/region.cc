#include "plan/region.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"

namespace tokamak {
namespace {

constexpr size_t kMaxValues = 1 << 16;

template <class... Args>
[[noreturn]] void bad(fmt::format_string<Args...> format, Args&&... args) {
  fail(ErrorCode::kCorrupt, "region: {}", fmt::format(format, std::forward<Args>(args)...));
}

// Parameters of a program have the dtype and the elements of their values.
void check_parameters(const Region& region, const std::vector<uint32_t>& values,
                      const std::vector<TensorType>& types, std::string_view kind) {
  if (values.size() != types.size())
    bad("{} {}s for a program with {}", values.size(), kind, types.size());
  for (size_t i = 0; i < types.size(); ++i) {
    const Type& value = region.values[values[i]];
    bool same = value.kind == Type::Kind::kTensor && value.tensor.dtype == types[i].dtype &&
                value.tensor.elements() == types[i].elements();
    if (!same)
      bad("{} {} of the loop program has type {}, but value {} has type {}", kind, i,
          types[i].text(), values[i], value.text());
  }
}

std::string value_list(const std::vector<uint32_t>& values) {
  std::string out;
  for (uint32_t v : values) out += fmt::format("{}%{}", out.empty() ? "" : ", ", v);
  return out;
}

}  // namespace

int Region::producer(uint32_t value) const {
  for (size_t i = 0; i < pieces.size(); ++i)
    if (std::find(pieces[i].out.begin(), pieces[i].out.end(), value) != pieces[i].out.end())
      return static_cast<int>(i);
  return -1;
}

bool Region::is_result(uint32_t value) const {
  return std::find(results.begin(), results.end(), value) != results.end();
}

const loop::Program* Region::whole_program() const {
  if (pieces.size() != 1 || pieces[0].is_anchor()) return nullptr;
  const RegionPiece& piece = pieces[0];
  if (piece.in.size() != inputs || piece.out != results) return nullptr;
  for (uint32_t i = 0; i < inputs; ++i)
    if (piece.in[i] != i) return nullptr;
  return piece.program.get();
}

void check_region(const Region& region, size_t call_inputs, size_t call_outputs) {
  if (region.values.size() > kMaxValues) bad("{} values", region.values.size());
  if (region.inputs > call_inputs) bad("{} inputs, the call has {}", region.inputs, call_inputs);
  if (region.results.size() != call_outputs)
    bad("{} results, the call has {}", region.results.size(), call_outputs);
  size_t next = region.inputs;
  if (next > region.values.size()) bad("{} inputs of {} values", next, region.values.size());
  for (const RegionPiece& piece : region.pieces) {
    for (uint32_t v : piece.in)
      if (v >= next) bad("value {} is used before it is produced", v);
    if (piece.out.empty()) bad("a piece without a result");
    for (uint32_t v : piece.out)
      if (v != next++) bad("value {} is produced out of order", v);
    if (next > region.values.size()) bad("{} values have no type", next - region.values.size());
    if (piece.is_anchor()) {
      if (piece.op.empty()) bad("an anchor without an op");
      if (!piece.attrs.is_object() && !piece.attrs.is_null())
        bad("attributes of {} must be an object", piece.op);
      continue;
    }
    check_parameters(region, piece.in, piece.program->in, "input");
    check_parameters(region, piece.out, piece.program->out, "output");
  }
  if (next != region.values.size()) bad("{} values for {}", region.values.size(), next);
  for (uint32_t v : region.results)
    if (v >= next) bad("result {} is not produced", v);
}

std::string region_text(const Region& region) {
  auto type = [&](uint32_t v) {
    return v < region.values.size() ? region.values[v].text() : std::string("?");
  };
  std::string out = "(";
  for (uint32_t v = 0; v < region.inputs; ++v)
    out += fmt::format("{}%{} : {}", v > 0 ? ", " : "", v, type(v));
  out += ") {\n";
  for (const RegionPiece& piece : region.pieces) {
    for (size_t i = 0; i < piece.out.size(); ++i)
      out += fmt::format("{}%{} : {}", i == 0 ? "  " : ", ", piece.out[i], type(piece.out[i]));
    out += fmt::format(" = {}({})", piece.is_anchor() ? piece.op : "loop", value_list(piece.in));
    if (piece.is_anchor()) {
      out += piece.attrs.size() > 0 ? " " + dump_json(piece.attrs) + "\n" : "\n";
      continue;
    }
    out += " {\n";
    const std::string text = loop::print_program(*piece.program);
    for (size_t begin = 0; begin < text.size();) {
      size_t end = std::min(text.find('\n', begin), text.size());
      out += "    " + text.substr(begin, end - begin) + "\n";
      begin = end + 1;
    }
    out += "  }\n";
  }
  return out + fmt::format("  return {}\n}}\n", value_list(region.results));
}

}  // namespace tokamak
