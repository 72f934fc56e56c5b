#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tokamak {

struct GgufPre {
  std::vector<std::string> regexes;  // applied one after the other; matches and gaps are words
  bool ignore_merges = false;
  bool add_bos = false;    // if the file does not say
  std::string normalizer;  // "NFC" or ""
};

// nullopt: an unknown name.
std::optional<GgufPre> find_gguf_pre(std::string_view name);

// The name of this splitting; "" if GGUF has none. `add_bos` is not compared: files say it.
std::string gguf_pre_name(const GgufPre& pre);
extern const std::string_view kGgufGpt2Words;  // what ByteLevel with use_regex splits by

}  // namespace tokamak
