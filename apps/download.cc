#include "apps/download.h"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "apps/child_process.h"
#include "base/error.h"
#include "base/sha256.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

// Exit codes of curl.
constexpr int kHttpError = 22, kWriteError = 23, kNoRanges = 33, kBadResume = 36;

std::vector<std::string> curl_args(const std::string& url) {
  return {"--silent", "--fail",  "--location",  "--retry",   "2", "--connect-timeout",
          "20",       "--proto", "=http,https", "--globoff", url};
}

[[noreturn]] void fail_download(const std::string& url, int exit_code, const std::string& status,
                                uint64_t kept) {
  if (exit_code == kHttpError && status == "404")
    fail(ErrorCode::kNotFound, "{}: not found (HTTP 404); check the name or the URL", url);
  if (exit_code == kHttpError)
    fail(ErrorCode::kUnavailable, "{}: the server answered HTTP {}", url, status);
  if (exit_code == kWriteError)
    fail(ErrorCode::kResourceExhausted,
         "cannot write the download from {}: the disk is full, or the cache folder is read-only "
         "(TOKAMAK_CACHE names another one); {} bytes are kept",
         url_host(url), kept);
  std::string part =
      kept > 0 ? fmt::format("; {} bytes are kept, and the same command continues", kept) : "";
  fail(ErrorCode::kUnavailable,
       "cannot download from {} (curl: {}); check the network{}. Without one, copy the model from "
       "another machine and give its path",
       url_host(url), exit_code, part);
}

ChildResult curl(std::vector<std::string> args) {
  try {
    return try_child("curl", std::move(args));
  } catch (const Error&) {
    fail(ErrorCode::kUnavailable, "downloads need the program curl; install it");
  }
}

uint64_t size_of(const fs::path& path) {
  std::error_code ec;
  uintmax_t size = fs::file_size(path, ec);
  return ec ? 0 : size;
}

// From the headers of the last answer; 0: the server does not say.
uint64_t remote_size(const std::string& url) {
  std::vector<std::string> args = curl_args(url);
  args.insert(args.begin(), "--head");
  std::string headers = curl(args).output;
  std::transform(headers.begin(), headers.end(), headers.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  constexpr std::string_view kLength = "content-length:";
  size_t at = headers.rfind(kLength);
  return at == std::string::npos
             ? 0
             : std::strtoull(headers.c_str() + at + kLength.size(), nullptr, 10);
}

// Reports the growth of a file while curl writes it.
class SizeWatch {
 public:
  SizeWatch(const Download& what, const fs::path& part) {
    if (!what.progress) return;
    uint64_t total = remote_size(what.url);
    thread_ = std::thread([this, &what, part, total] {
      while (!stop_) {
        what.progress(size_of(part), total);
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
      }
    });
  }
  ~SizeWatch() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace

std::string url_host(const std::string& url) {
  size_t begin = url.find("://");
  begin = begin == std::string::npos ? 0 : begin + 3;
  return url.substr(begin, url.find('/', begin) - begin);
}

std::string fetch_text(const std::string& url, const std::string& accept) {
  std::vector<std::string> args = curl_args(url);
  args.insert(args.begin(), {"--header", "Accept: " + accept, "--write-out", "\n%{http_code}"});
  ChildResult result = curl(args);
  size_t end = result.output.rfind('\n');
  std::string status = end == std::string::npos ? "" : result.output.substr(end + 1);
  if (result.exit_code != 0) fail_download(url, result.exit_code, status, 0);
  return result.output.substr(0, end);
}

Downloaded download(const Download& what) {
  fs::path part = what.to;
  // Without a checksum nothing would show that the rest comes from another file of the same name.
  if (what.sha256.empty())
    part += "." + sha256_hex(what.url.substr(0, what.url.find_first_of("?#"))).substr(0, 8);
  part += ".part";
  fs::create_directories(what.to.parent_path());
  Downloaded done;
  done.resumed_from = size_of(part);
  ChildResult result;
  for (bool again = true; again;) {
    again = false;
    std::vector<std::string> args = curl_args(what.url);
    args.insert(args.begin(),
                {"--continue-at", "-", "--output", part.string(), "--write-out", "%{http_code}"});
    {
      SizeWatch watch(what, part);
      result = curl(args);
    }
    bool stale = result.exit_code == kNoRanges || result.exit_code == kBadResume;
    if (stale && done.resumed_from > 0) {  // the server cannot continue: from the beginning
      fs::remove(part);
      done.resumed_from = 0;
      again = true;
    }
  }
  bool complete = result.exit_code == kHttpError && result.output == "416";  // nothing is left
  if (result.exit_code != 0 && !(complete && size_of(part) > 0))
    fail_download(what.url, result.exit_code, result.output, size_of(part));
  done.bytes = size_of(part);
  done.sha256 = sha256_file(part);
  if (!what.sha256.empty() && done.sha256 != what.sha256) {
    fs::remove(part);
    fail(ErrorCode::kCorrupt,
         "{}: the checksum is {}, expected {}; the download was removed, try again", what.url,
         done.sha256, what.sha256);
  }
  fs::rename(part, what.to);
  return done;
}

}  // namespace tokamak
