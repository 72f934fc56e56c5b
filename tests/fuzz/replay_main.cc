// Runs a fuzzer without libFuzzer: every file of its corpus, then deterministic mutations of them.
//   gguf_fuzz --mutations 2000 [--seed 1] corpus-folder-or-file ...
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
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

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

std::vector<Bytes> read_corpus(const std::vector<std::string>& places) {
  std::vector<std::filesystem::path> files;
  for (const auto& place : places) {
    if (std::filesystem::is_directory(place)) {
      for (const auto& entry : std::filesystem::recursive_directory_iterator(place)) {
        if (entry.is_regular_file()) files.push_back(entry.path());
      }
    } else {
      files.emplace_back(place);
    }
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

  void run(const Bytes& x) {
    if (file_ < 0 || pwrite(file_, x.data(), x.size(), 0) != static_cast<ssize_t>(x.size()) ||
        ftruncate(file_, static_cast<off_t>(x.size())) != 0) {
      std::cerr << "replay: cannot write " << path_ << "\n";
      std::exit(2);
    }
    LLVMFuzzerTestOneInput(x.data(), x.size());
  }

  void remove() {
    close(file_);
    std::filesystem::remove(path_);
  }

 private:
  std::string path_;
  int file_;
};

}  // namespace

int main(int argc, char** argv) {
  size_t mutations = 0;
  uint64_t seed = 1;
  std::vector<std::string> places;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--mutations" && i + 1 < argc) {
      mutations = std::stoul(argv[++i]);
    } else if (arg == "--seed" && i + 1 < argc) {
      seed = std::stoull(argv[++i]);
    } else {
      places.push_back(arg);
    }
  }
  const auto corpus = read_corpus(places);
  if (corpus.empty()) {
    std::cerr << "replay: no inputs; a fuzzer needs a corpus\n";
    return 2;
  }
  LastInput last(std::filesystem::path(argv[0]).filename().string() + "-last-input");
  for (const auto& x : corpus) last.run(x);
  Mutator mutator(seed);
  for (size_t i = 0; i < mutations; ++i) {
    last.run(mutator.mutate(corpus[i % corpus.size()], corpus[mutator.below(corpus.size())]));
  }
  last.remove();
  std::cout << "replay: " << corpus.size() << " inputs, " << mutations << " mutations\n";
  return 0;
}
