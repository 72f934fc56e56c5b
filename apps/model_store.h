#pragma once
// Models that `tokamak pull` keeps in the cache folder, and the names it knows.
#include <filesystem>
#include <string>

#include "base/value.h"

namespace tokamak {

// $TOKAMAK_CACHE/models, or models in the user's cache folder.
std::filesystem::path models_folder();

// A path as given if it exists or looks like one; otherwise the pulled model of that name, if there
// is one. A name that can be pulled fails (kNotFound) with the command to pull it.
std::string find_model(const std::string& name);

// {name: {"file": ..., "packages" or "files": ..., "sha256": ...}}: those that come with the
// program, and those of `registry` (a JSON file or its URL), which win.
Value known_models(const std::string& registry);

}  // namespace tokamak
