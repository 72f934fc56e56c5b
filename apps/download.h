#pragma once
// Files over HTTP and HTTPS, through the program curl.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace tokamak {

struct Download {
  std::string url;
  std::filesystem::path to;  // takes this name when it is complete and its checksum is right
  std::string sha256;        // empty: not compared
  std::function<void(uint64_t done, uint64_t total)> progress;  // total 0: unknown
};

struct Downloaded {
  uint64_t bytes = 0, resumed_from = 0;
  std::string sha256;
};

// Continues a partial file of an earlier call (TO.part). Throws Error: kNotFound for HTTP 404,
// kUnavailable for other failures (the part is kept), kCorrupt for a wrong checksum (it is
// removed). One line each, with what to do.
Downloaded download(const Download& what);

std::string fetch_text(const std::string& url, const std::string& accept);

// The name of the server in a URL, for messages.
std::string url_host(const std::string& url);

}  // namespace tokamak
