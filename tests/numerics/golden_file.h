#pragma once
// Expected logits of tiny models, as tools/make_goldens.py writes them.
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"

namespace tokamak {

struct GoldenSequence {
  std::vector<int32_t> ids, greedy;
  std::vector<int> rows;
  std::vector<std::vector<double>> logits;
};

struct Golden {
  std::string model;
  bool gguf, folder;  // which of the model's files it is for
  std::vector<GoldenSequence> sequences;
};

inline std::vector<int32_t> golden_ints(const Value& v) {
  std::vector<int32_t> out;
  for (const Value& x : v.as_array()) out.push_back(static_cast<int32_t>(x.as_int()));
  return out;
}

inline Golden read_golden(const std::filesystem::path& path) {
  Value v = parse_json(read_text_file(path), path.string());
  Golden g{v.at("model").as_string(), v.at("gguf").as_bool(), v.get_bool("folder", true), {}};
  for (const Value& s : v.at("sequences").as_array()) {
    GoldenSequence q{golden_ints(s.at("ids")), golden_ints(s.at("greedy")), {}, {}};
    for (int32_t r : golden_ints(s.at("rows"))) q.rows.push_back(r);
    for (const Value& row : s.at("logits").as_array()) {
      q.logits.emplace_back();
      for (const Value& x : row.as_array()) q.logits.back().push_back(x.as_double());
    }
    g.sequences.push_back(std::move(q));
  }
  return g;
}

inline std::vector<std::string> golden_names(const char* folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace tokamak
