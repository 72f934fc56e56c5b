// Fused regions, piece by piece: loop programs and anchors by their meaning, values between them in
// buffers of the call.
#include <algorithm>

#include "backend/ref/ref_executable.h"
#include "base/error.h"
#include "loop/evaluate.h"
#include "tensor/block_formats.h"

namespace tokamak {

RefExecutable::Call RefExecutable::load_region(const KernelCall& call) const {
  const Region& region = plans_.regions.at(static_cast<size_t>(call.region));
  check_region(region, call.in.size(), call.out.size());
  Call entry{&call, nullptr, {}, {}, &region};
  auto load = [&](const CallArg& arg, const Type& type, std::vector<Argument>& to) {
    if (type.kind == Type::Kind::kTensor && arg.dtype != type.tensor.dtype)
      fail(ErrorCode::kCorrupt, "{}: its region has other arguments than the call", call.label);
    to.push_back(load_argument(arg));
  };
  for (uint32_t i = 0; i < region.inputs; ++i) load(call.in[i], region.values[i], entry.in);
  for (size_t o = 0; o < call.out.size(); ++o)
    load(call.out[o], region.values[region.results[o]], entry.out);
  entry.values.resize(region.values.size());
  for (size_t v = region.inputs; v < region.values.size(); ++v)
    for (const Dim& d : region.values[v].tensor.dims)
      entry.values[v].extents.emplace_back(d.extent, symbols_);
  for (const RegionPiece& piece : region.pieces) {
    if (piece.is_anchor() && (!find_op(piece.op) || !find_op(piece.op)->f32))
      fail(ErrorCode::kUnsupported, "{}: ref cannot run \"{}\"", call.label, piece.op);
    if (piece.is_anchor()) continue;
    for (const std::string& s : loop::program_symbols(*piece.program))
      if (std::find(symbols_.begin(), symbols_.end(), s) == symbols_.end())
        fail(ErrorCode::kCorrupt, "{}: its region uses the symbol {}, which is not declared",
             call.label, s);
  }
  return entry;
}

void RefExecutable::run_region(Call& call, std::span<const Operand<float>> in,
                               std::span<const Operand<float>> out) {
  const Region& region = *call.region;
  std::map<std::string, int64_t, std::less<>> symbols;
  for (size_t i = 0; i < symbols_.size(); ++i) symbols[symbols_[i]] = binder_.symbols()[i];
  std::vector<Operand<float>> values(in.begin(), in.end());
  values.resize(region.values.size());
  for (size_t v = region.inputs; v < values.size(); ++v) {
    RegionValue& own = call.values[v];
    if (region.values[v].kind != Type::Kind::kTensor) continue;
    own.dims.clear();
    for (const CompiledExpr& e : own.extents) own.dims.push_back(e.eval(binder_.symbols()));
    TensorRef<float>& tensor = values[v].tensor;
    tensor.dims = own.dims;
    auto n = static_cast<size_t>(tensor.elements());
    bool integers = region.values[v].tensor.dtype == DType::kI32;
    (integers ? own.i.resize(n) : own.f.resize(n));
    (integers ? static_cast<void>(tensor.i = own.i.data())
              : static_cast<void>(tensor.f = own.f.data()));
  }
  auto write = [&](uint32_t v) {  // results leave as they are computed, before others read them
    for (size_t o = 0; o < out.size(); ++o) {
      if (region.results[o] != v || region.values[v].kind != Type::Kind::kTensor) continue;
      const TensorRef<float>&from = values[v].tensor, &to = out[o].tensor;
      if (from.i) std::copy_n(from.i, from.elements(), to.i);
      if (from.f) std::copy_n(from.f, from.elements(), to.f);
    }
  };
  for (uint32_t v = 0; v < region.inputs; ++v) write(v);
  for (const RegionPiece& piece : region.pieces) {
    if (piece.is_anchor()) {
      run_anchor(call, piece, values);
    } else {
      std::vector<TensorRef<float>> from, to;
      for (uint32_t v : piece.in) from.push_back(values[v].tensor);
      for (uint32_t v : piece.out) to.push_back(values[v].tensor);
      loop::evaluate_program<float>(*piece.program, symbols, from, to);
    }
    for (uint32_t v : piece.out) {
      write(v);
      DType dtype = region.values[v].tensor.dtype;
      if (region.values[v].kind != Type::Kind::kTensor || !is_block_type(dtype)) continue;
      std::vector<float>& f = call.values[v].f;  // what the next piece reads was quantised
      std::vector<std::byte> encoded(dtype_bytes(dtype, static_cast<int64_t>(f.size())));
      encode_row(dtype, f.data(), encoded.data(), static_cast<int64_t>(f.size()));
      decode_row(dtype, encoded.data(), f.data(), static_cast<int64_t>(f.size()));
    }
  }
  store(call);
}

void RefExecutable::run_anchor(Call& call, const RegionPiece& piece,
                               std::vector<Operand<float>>& values) {
  std::vector<Operand<float>> in, out;
  for (uint32_t v : piece.in) in.push_back(values[v]);
  const OpDef& op = *find_op(piece.op);
  std::vector<std::vector<float>> rounded;
  if (op.writes_state) {  // the next version is in the place of the one before
    values[piece.out[0]] = values[piece.in[0]];
    if (piece.in[0] >= call.in.size())
      fail(ErrorCode::kUnsupported, "{}: a region that writes one state twice", call.call->label);
    round_planes(plans_.states[call.in[piece.in[0]].arg->index], in, rounded);
  }
  for (uint32_t v : piece.out) out.push_back(values[v]);
  op.f32({in, out, piece.attrs});
}

}  // namespace tokamak
