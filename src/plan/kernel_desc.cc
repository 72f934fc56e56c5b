#include "plan/kernel_desc.h"

#include <algorithm>

namespace tokamak {
namespace {

std::string_view trim(std::string_view s) {
  while (!s.empty() && s.front() == ' ') s.remove_prefix(1);
  while (!s.empty() && s.back() == ' ') s.remove_suffix(1);
  return s;
}

// Cuts the part before `separator` off the front of `rest`.
std::string_view cut(std::string_view& rest, char separator) {
  const size_t at = std::min(rest.find(separator), rest.size());
  std::string_view part = trim(rest.substr(0, at));
  rest.remove_prefix(std::min(at + 1, rest.size()));
  return part;
}

bool slot_takes(std::string_view slot, DType dtype) {
  if (slot == "*") return true;
  while (!slot.empty())
    if (cut(slot, '|') == dtype_name(dtype)) return true;
  return false;
}

}  // namespace

bool kernel_matches(const KernelDesc& desc, std::string_view op,
                    std::span<const DType> input_dtypes) {
  std::string_view rest = trim(desc.pattern);
  if (rest == "*") return true;
  if (rest.empty() || rest.back() != ')') return false;
  rest.remove_suffix(1);
  if (cut(rest, '(') != op) return false;
  for (DType dtype : input_dtypes) {
    if (trim(rest) == "...") return true;
    if (trim(rest).empty()) return false;  // more inputs than the kernel knows
    if (!slot_takes(cut(rest, ','), dtype)) return false;
  }
  return true;
}

}  // namespace tokamak
