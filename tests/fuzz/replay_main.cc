// Runs fuzzers without libFuzzer: every file of their corpus, then deterministic mutations of them.
//   fuzz_replay --mutations 2000 [--seed 1] tests/fuzz/corpus      all fuzzers
//   fuzz_replay gguf FILE                                          one of them, on one input
// After a crash, the input is in ./gguf_fuzz-last-input.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/fuzz/fuzzer.h"

namespace {

using Bytes = std::vector<uint8_t>;

Bytes read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    std::cerr << "replay: cannot read " << path << "\n";
    std::exit(2);
  }
  return Bytes(std::istreambuf_iterator<char>(in), {});
}

std::vector<Bytes> read_corpus(const std::filesystem::path& place) {
  std::vector<std::filesystem::path> files;
  if (std::filesystem::is_directory(place)) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(place))
      if (entry.is_regular_file()) files.push_back(entry.path());
  } else {
    files.push_back(place);
  }
  std::sort(files.begin(), files.end());
  std::vector<Bytes> corpus;
  for (const auto& f : files) corpus.push_back(read_file(f));
  return corpus;
}

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : rng_(seed) {}

  Bytes mutate(Bytes x, const Bytes& other) {
    for (size_t n = 1 + below(4); n > 0; --n) mutate_once(x, other);
    return x;
  }

  size_t below(size_t n) { return n == 0 ? 0 : rng_() % n; }

 private:
  // Extreme values for sizes, counts and offsets, which a parser must not trust.
  void overwrite_number(Bytes& x) {
    static constexpr uint64_t kNasty[] = {0,          1,          0x7f,        0x80,
                                          0xff,       0x7fff,     0xffff,      0x7fffffff,
                                          0x80000000, 0xffffffff, 0x100000000, 0x7fffffffffffffff,
                                          ~0ull - 31, ~0ull};
    const uint64_t value = kNasty[below(std::size(kNasty))];
    const size_t width = size_t{1} << below(4);
    if (x.size() >= width) std::memcpy(x.data() + below(x.size() - width + 1), &value, width);
  }

  void splice(Bytes& x, const Bytes& other) {
    const size_t from = below(other.size());
    const size_t n = below(std::min<size_t>(other.size() - from, 64) + 1);
    x.insert(x.begin() + static_cast<std::ptrdiff_t>(below(x.size() + 1)),
             other.begin() + static_cast<std::ptrdiff_t>(from),
             other.begin() + static_cast<std::ptrdiff_t>(from + n));
  }

  void mutate_once(Bytes& x, const Bytes& other) {
    switch (below(6)) {
      case 0:
        if (!x.empty()) x[below(x.size())] ^= static_cast<uint8_t>(1u << below(8));
        break;
      case 1:
        if (!x.empty()) x[below(x.size())] = static_cast<uint8_t>(rng_());
        break;
      case 2:
        overwrite_number(x);
        break;
      case 3:
        x.resize(below(x.size() + 1));
        break;
      case 4:
        splice(x, other);
        break;
      default: {
        const size_t at = below(x.size());
        const size_t n = below(std::min<size_t>(x.size() - at, 32) + 1);
        const auto first = x.begin() + static_cast<std::ptrdiff_t>(at);
        x.erase(first, first + static_cast<std::ptrdiff_t>(n));
      }
    }
  }

  std::mt19937_64
      rng_;  // its sequence is fixed by the standard, so runs are reproducible everywhere
};

// The current input, for inspection after a crash. The file stays open: closing a truncated file
// makes the file system wait for the disk.
class LastInput {
 public:
  explicit LastInput(std::string path)
      : path_(std::move(path)), file_(open(path_.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0644)) {}

  void run(tokamak::FuzzFunction function, const Bytes& x) {
    if (file_ < 0 || pwrite(file_, x.data(), x.size(), 0) != static_cast<ssize_t>(x.size()) ||
        ftruncate(file_, static_cast<off_t>(x.size())) != 0) {
      std::cerr << "replay: cannot write " << path_ << "\n";
      std::exit(2);
    }
    function(x.data(), x.size());
  }

  void remove() {
    close(file_);
    std::filesystem::remove(path_);
  }

 private:
  std::string path_;
  int file_;
};

std::map<std::string, tokamak::FuzzFunction>& fuzzers() {
  static std::map<std::string, tokamak::FuzzFunction> all;
  return all;
}

struct Settings {
  size_t mutations = 0;
  uint64_t seed = 1;
};

// `place`: the folder of the corpus, or one input.
void replay(const std::string& name, tokamak::FuzzFunction function,
            const std::filesystem::path& place, const Settings& settings) {
  const auto corpus = read_corpus(place);
  if (corpus.empty()) {
    std::cerr << "replay: no inputs in " << place << "; a fuzzer needs a corpus\n";
    std::exit(2);
  }
  LastInput last(name + "_fuzz-last-input");
  for (const auto& x : corpus) last.run(function, x);
  Mutator mutator(settings.seed);
  for (size_t i = 0; i < settings.mutations; ++i) {
    const Bytes& other = corpus[mutator.below(corpus.size())];
    last.run(function, mutator.mutate(corpus[i % corpus.size()], other));
  }
  last.remove();
  std::cout << name << ": " << corpus.size() << " inputs, " << settings.mutations << " mutations"
            << std::endl;
}

}  // namespace

tokamak::Fuzzer::Fuzzer(const char* name, FuzzFunction function) : name(name), function(function) {
  fuzzers()[name] = function;
}

int main(int argc, char** argv) {
  Settings settings;
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--mutations" && i + 1 < argc) {
      settings.mutations = std::stoul(argv[++i]);
    } else if (arg == "--seed" && i + 1 < argc) {
      settings.seed = std::stoull(argv[++i]);
    } else {
      words.push_back(arg);
    }
  }
  if (words.size() == 1) {
    for (const auto& [name, function] : fuzzers())
      replay(name, function, std::filesystem::path(words[0]) / name, settings);
  } else if (words.size() == 2 && fuzzers().count(words[0]) > 0) {
    replay(words[0], fuzzers()[words[0]], words[1], settings);
  } else {
    std::cerr << "usage: fuzz_replay [--mutations N] [--seed N] CORPUS | NAME FOLDER_OR_FILE\n";
    return 2;
  }
  return 0;
}
