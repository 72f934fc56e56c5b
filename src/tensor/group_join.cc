#include "tensor/group_join.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "tensor/block_formats.h"
#include "tensor/group_formats.h"

namespace tokamak {
namespace {

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Step {
  GroupPacking packing;
  GroupFormat format;
  int64_t n, k, scale_rows, scale_columns;
  int64_t groups() const { return divide_up(k, scale_columns); }
  int64_t words(int64_t values) const { return divide_up(values * format.bits, 32); }
};

Step read_step(const std::string& where, const RecipeStep& s) {
  auto format = group_format(s.dtype);
  size_t extents = s.b & kGroupNested ? 5 : 4;
  if (!format || s.a < 0 || s.a >= kGroupPackings || s.dims.size() != extents ||
      *std::min_element(s.dims.begin(), s.dims.end()) < 1 ||
      *std::max_element(s.dims.begin(), s.dims.end()) > INT32_MAX)
    fail(ErrorCode::kCorrupt, "{}: join_groups is not valid", where);
  Step out{static_cast<GroupPacking>(s.a), *format, s.dims[0], s.dims[1], s.dims[2], s.dims[3]};
  bool nf4 = out.packing == GroupPacking::kNf4;
  if (out.k % format->group != 0 ||
      (out.scale_columns % format->group != 0 && (nf4 || out.scale_columns < out.k)))
    fail(ErrorCode::kUnsupported,
         "{}: rows of {} values with a scale per {} do not fill groups of {}; groups must be "
         "multiples of 32",
         where, out.k, out.scale_columns, format->group);
  return out;
}

void need(const std::string& where, const GroupPart& part, std::initializer_list<DType> types,
          std::initializer_list<int64_t> dims) {
  int64_t count = 1;
  for (int64_t d : dims) count *= d;
  bool typed = std::find(types.begin(), types.end(), part.dtype) != types.end();
  if (typed && std::equal(part.dims.begin(), part.dims.end(), dims.begin(), dims.end()) &&
      part.bytes.size() == dtype_bytes(part.dtype, count))
    return;
  fail(ErrorCode::kCorrupt, "{}: tensor {} is {}[{}], expected {}[{}]", where, part.name,
       dtype_name(part.dtype), fmt::join(part.dims, ", "), dtype_name(*types.begin()),
       fmt::join(dims, ", "));
}

// Any shape with this many values.
void need_count(const std::string& where, const GroupPart& part, std::initializer_list<DType> types,
                int64_t count) {
  int64_t found = 1;
  for (int64_t d : part.dims)
    if (__builtin_mul_overflow(found, d, &found)) found = -1;
  bool typed = std::find(types.begin(), types.end(), part.dtype) != types.end();
  if (!typed || found != count || part.bytes.size() != dtype_bytes(part.dtype, count))
    fail(ErrorCode::kCorrupt, "{}: tensor {} is {}[{}], expected {} values of {}", where, part.name,
         dtype_name(part.dtype), fmt::join(part.dims, ", "), count, dtype_name(*types.begin()));
}

uint32_t word_at(const GroupPart& part, int64_t i) {
  uint32_t v;
  std::memcpy(&v, part.bytes.data() + i * 4, 4);
  return v;
}
uint8_t byte_at(const GroupPart& part, int64_t i) {
  return static_cast<uint8_t>(part.bytes[static_cast<size_t>(i)]);
}
float float_at(const GroupPart& part, int64_t i) {
  float v;
  decode_row(part.dtype, part.bytes.data() + dtype_bytes(part.dtype, i), &v, 1);
  return v;
}

// Value i of a stream of values without gaps, low bits first; word(j): its words.
template <class Word>
uint32_t bits_at(int bits, int64_t i, Word&& word) {
  int64_t at = i * bits;
  auto shift = static_cast<int>(at % 32);
  uint32_t v = word(at / 32) >> shift;
  if (shift + bits > 32) v |= word(at / 32 + 1) << (32 - shift);
  return v & ((1u << bits) - 1);
}

// The first `count` values, each xor `flip`.
template <class Word>
void unpack(int bits, int64_t count, uint8_t flip, Word&& word, uint8_t* out) {
  if (bits == 3) {
    for (int64_t i = 0; i < count; ++i) out[i] = static_cast<uint8_t>(bits_at(bits, i, word));
    return;
  }
  const int each = 32 / bits;
  const uint32_t mask = (1u << bits) - 1;
  for (int64_t i = 0; i < count; i += each) {
    uint32_t w = word(i / each);
    for (int j = 0; j < each; ++j, w >>= bits) out[i + j] = static_cast<uint8_t>((w & mask) ^ flip);
  }
}

// AWQ stores columns 0 2 4 6 1 3 5 7 of eight from the lowest nibble on.
uint32_t awq_at(uint32_t word, int64_t column) {
  int64_t c = column % 8;
  return word >> (4 * (c / 2 + c % 2 * 4)) & 15;
}

// GPTQ v1: one is subtracted from whole words of zeros, which may borrow from the next value; 3-bit
// values, which cross words, one by one.
uint32_t gptq_zero(const Step& s, const GroupPart& zeros, int64_t group, int64_t n, bool less1) {
  int bits = s.format.bits;
  int64_t row = group * s.words(s.n);
  uint32_t one = bits == 2 ? 0x55555555u : bits == 4 ? 0x11111111u : 0x01010101u;
  uint32_t add = less1 && bits != 3 ? one : 0;
  uint32_t v = bits_at(bits, n, [&](int64_t j) { return word_at(zeros, row + j) + add; });
  return less1 && bits == 3 ? (v + 1) & 7 : v;
}

// Codes, scales and zeros of one matrix, a row at a time.
class Rows {
 public:
  Rows(const Step& s, const RecipeStep& step, std::span<const GroupPart> parts)
      : s_(s),
        flags_(step.b),
        value_(static_cast<float>(step.value)),
        codes_(parts[0]),
        scales_(parts[1]) {
    size_t next = 2;
    if (flags_ & kGroupZeros) zeros_ = &parts[next++];
    if (flags_ & kGroupOrder) ++next;
    if (flags_ & kGroupNested) {
      nested_ = &parts[next];
      nested_block_ = step.dims[4];
    }
  }

  // One byte each; of 8 bits two's complement.
  void codes(int64_t n, uint8_t* out) const {
    const int64_t k = s_.k;
    const int bits = s_.format.bits;
    uint8_t flip = bits == 8 ? 0x80 : 0;
    switch (s_.packing) {
      case GroupPacking::kGptq:
        unpack(
            bits, k, flip, [&](int64_t j) { return word_at(codes_, j * s_.n + n); }, out);
        break;
      case GroupPacking::kAwq:
        for (int64_t i = 0; i < k; ++i)
          out[i] = static_cast<uint8_t>(awq_at(word_at(codes_, i * (s_.n / 8) + n / 8), n));
        break;
      case GroupPacking::kRows: {
        int64_t row = n * s_.words(k);
        unpack(
            bits, k, flip, [&](int64_t j) { return word_at(codes_, row + j); }, out);
        break;
      }
      case GroupPacking::kPlain:
        std::memcpy(out, codes_.bytes.data() + n * k, static_cast<size_t>(k));
        break;
      case GroupPacking::kNf4:
        for (int64_t i = 0; i < k; ++i) {
          int64_t at = n * k + i;
          out[i] = byte_at(codes_, at / 2) >> (at % 2 == 0 ? 4 : 0) & 15;
        }
        break;
      case GroupPacking::kTernary: {
        const int64_t rows = s_.n / 4, row = n % rows * k;
        const int shift = static_cast<int>(n / rows) * 2;
        for (int64_t i = 0; i < k; ++i) out[i] = byte_at(codes_, row + i) >> shift & 3;
      }
    }
  }

  // The scale of the group that has `column`, counted in the order of groups.
  float scale(int64_t n, int64_t column) const {
    int64_t group = column / s_.scale_columns;
    switch (s_.packing) {
      case GroupPacking::kGptq:
      case GroupPacking::kAwq:
        return float_at(scales_, group * s_.n + n);
      case GroupPacking::kRows:
        return float_at(scales_, n * s_.groups() + group);
      case GroupPacking::kPlain: {
        float v = float_at(scales_, n / s_.scale_rows * s_.groups() + group);
        return value_ != 0 ? v * value_ : v;
      }
      case GroupPacking::kTernary: {
        float v = float_at(scales_, 0);
        return value_ != 0 ? 1 / v : v;
      }
      case GroupPacking::kNf4:
        break;
    }
    int64_t at = (n * s_.k + column) / s_.scale_columns;
    if (!nested_) return float_at(scales_, at);
    float v = float_at(nested_[1], byte_at(scales_, at)) * float_at(nested_[0], at / nested_block_);
    return v + value_;
  }
  int zero(int64_t n, int64_t column) const {
    const int bits = s_.format.bits;
    int64_t group = column / s_.scale_columns;
    int middle = s_.packing == GroupPacking::kPlain || bits == 8 ? 0 : 1 << (bits - 1);
    if (s_.packing == GroupPacking::kTernary) return 1;
    if (!zeros_) return middle;
    int stored = 0;
    if (s_.packing == GroupPacking::kGptq)
      stored = static_cast<int>(gptq_zero(s_, *zeros_, group, n, flags_ & kGroupZerosLess1));
    if (s_.packing == GroupPacking::kAwq)
      stored = static_cast<int>(awq_at(word_at(*zeros_, group * (s_.n / 8) + n / 8), n));
    if (s_.packing == GroupPacking::kRows)
      stored = static_cast<int>(
          bits_at(bits, n, [&](int64_t j) { return word_at(*zeros_, j * s_.groups() + group); }));
    if (s_.packing == GroupPacking::kPlain)
      return static_cast<int8_t>(byte_at(*zeros_, n / s_.scale_rows * s_.groups() + group));
    return bits == 8 ? stored - 128 : stored;
  }

 private:
  const Step& s_;
  int64_t flags_;
  float value_;
  const GroupPart &codes_, &scales_;
  const GroupPart *zeros_ = nullptr, *nested_ = nullptr;
  int64_t nested_block_ = 1;
};

constexpr std::initializer_list<DType> kScaleTypes = {DType::kF16, DType::kBF16, DType::kF32};

}  // namespace

int64_t group_parts(const RecipeStep& step) {
  return 2 + (step.b & kGroupZeros ? 1 : 0) + (step.b & kGroupOrder ? 1 : 0) +
         (step.b & kGroupNested ? 2 : 0);
}

void check_group_parts(const std::string& where, const RecipeStep& step,
                       std::span<const GroupPart> parts) {
  Step s = read_step(where, step);
  if (static_cast<int64_t>(parts.size()) != group_parts(step))
    fail(ErrorCode::kCorrupt, "{}: {} tensors for a quantised matrix, expected {}", where,
         parts.size(), group_parts(step));
  const GroupPart *zeros = step.b & kGroupZeros ? &parts[2] : nullptr,
                  *rest = &parts[zeros ? 3 : 2];
  int64_t g = s.groups();
  switch (s.packing) {
    case GroupPacking::kGptq:
      need(where, parts[0], {DType::kI32}, {s.words(s.k), s.n});
      need(where, parts[1], kScaleTypes, {g, s.n});
      if (zeros) need(where, *zeros, {DType::kI32}, {g, s.words(s.n)});
      break;
    case GroupPacking::kAwq:
      if (s.n % 8 != 0 || s.format.bits != 4)
        fail(ErrorCode::kCorrupt, "{}: {} rows of {} bits are not packed by AWQ", where, s.n,
             s.format.bits);
      need(where, parts[0], {DType::kI32}, {s.k, s.n / 8});
      need(where, parts[1], kScaleTypes, {g, s.n});
      if (zeros) need(where, *zeros, {DType::kI32}, {g, s.n / 8});
      break;
    case GroupPacking::kRows:
      need(where, parts[0], {DType::kI32}, {s.n, s.words(s.k)});
      need(where, parts[1], kScaleTypes, {s.n, g});
      if (zeros) need(where, *zeros, {DType::kI32}, {s.words(s.n), g});
      break;
    case GroupPacking::kPlain: {
      DType type = s.format.code == GroupFormat::Code::kF8 ? DType::kF8E4M3 : DType::kI8;
      need(where, parts[0], {type}, {s.n, s.k});
      need_count(where, parts[1], kScaleTypes, divide_up(s.n, s.scale_rows) * g);
      if (zeros) need_count(where, *zeros, {DType::kI8}, divide_up(s.n, s.scale_rows) * g);
      break;
    }
    case GroupPacking::kTernary:
      if (s.n % 4 != 0 || s.format.bits != 2 || zeros)
        fail(ErrorCode::kCorrupt, "{}: {} rows of {} bits are not packed by BitNet", where, s.n,
             s.format.bits);
      need(where, parts[0], {DType::kU8}, {s.n / 4, s.k});
      need_count(where, parts[1], kScaleTypes, 1);
      break;
    case GroupPacking::kNf4: {
      need_count(where, parts[0], {DType::kU8}, s.n * s.k / 2);
      int64_t scales = divide_up(s.n * s.k, s.scale_columns);
      if (!(step.b & kGroupNested)) {
        need_count(where, parts[1], {DType::kF32}, scales);
        break;
      }
      need_count(where, parts[1], {DType::kU8}, scales);
      need_count(where, rest[0], {DType::kF32}, divide_up(scales, step.dims[4]));
      need_count(where, rest[1], {DType::kF32}, 256);
    }
  }
  if (step.b & kGroupOrder) sorted_columns(where, *rest, g);
}

std::vector<std::byte> join_groups(const std::string& where, const RecipeStep& step,
                                   std::span<const GroupPart> parts) {
  Step s = read_step(where, step);
  Rows rows(s, step, parts);
  const int group = s.format.group, bytes = s.format.bytes();
  std::vector<int32_t> order;
  if (step.b & kGroupOrder)
    order = sorted_columns(where, parts[step.b & kGroupZeros ? 3 : 2], s.groups());
  auto k = static_cast<size_t>(s.k);
  std::vector<uint8_t> stored(k), codes(k);
  std::vector<std::byte> out(static_cast<size_t>(s.n * (s.k / group) * bytes));
  auto* to = reinterpret_cast<uint8_t*>(out.data());
  for (int64_t n = 0; n < s.n; ++n) {
    rows.codes(n, order.empty() ? codes.data() : stored.data());
    for (size_t i = 0; i < order.size(); ++i) codes[i] = stored[static_cast<size_t>(order[i])];
    for (int64_t c = 0; c < s.k; c += group, to += bytes) {
      float scale = rows.scale(n, c);
      if (!s.format.wide && f16_to_f32(f32_to_f16(scale)) != scale)
        fail(ErrorCode::kCorrupt, "{}: scale {} of tensor {} is not an f16 number", where, scale,
             parts[1].name);
      write_group(s.format, scale, rows.zero(n, c), codes.data() + c, to);
    }
  }
  return out;
}

std::vector<int32_t> sorted_columns(const std::string& where, const GroupPart& order,
                                    int64_t groups) {
  auto k = static_cast<int64_t>(order.bytes.size() / 4);
  if (order.dtype != DType::kI32 || order.dims.size() != 1 || order.dims[0] != k)
    fail(ErrorCode::kCorrupt, "{}: tensor {} is {}[{}], expected one i32 per column", where,
         order.name, dtype_name(order.dtype), fmt::join(order.dims, ", "));
  std::vector<int64_t> count(static_cast<size_t>(std::max<int64_t>(groups, 0)));
  auto group_of = [&](int64_t i) { return static_cast<int32_t>(word_at(order, i)); };
  for (int64_t i = 0; i < k; ++i) {
    if (group_of(i) < 0 || group_of(i) >= groups)
      fail(ErrorCode::kCorrupt, "{}: tensor {} puts column {} into group {} of {}", where,
           order.name, i, group_of(i), groups);
    ++count[static_cast<size_t>(group_of(i))];
  }
  for (size_t g = 0; g < count.size(); ++g)
    if (count[g] * groups != k)
      fail(ErrorCode::kCorrupt, "{}: tensor {} puts {} of {} columns into group {}, expected {}",
           where, order.name, count[g], k, g, k / groups);
  std::vector<int32_t> columns(static_cast<size_t>(k));
  for (int64_t i = 0; i < k; ++i) columns[static_cast<size_t>(i)] = static_cast<int32_t>(i);
  std::stable_sort(columns.begin(), columns.end(),
                   [&](int32_t a, int32_t b) { return group_of(a) < group_of(b); });
  return columns;
}

}  // namespace tokamak
