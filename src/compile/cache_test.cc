// The compile cache under everything that can happen to a folder: other processes, a kill in the
// middle, damage, a disk that is full or may not be written.
#include "compile/cache.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/rng.h"
#include "plan/bundle_file.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

// Plans of about `kilobytes`, told apart by their model's name.
PlanSet cached_plans(const std::string& model, size_t kilobytes = 1) {
  PlanSet set;
  set.model = model;
  set.backend = "ref";
  set.symbols = {{"T", 1, 64, 1}};
  set.kernels = {{"ref.op", 1, "f32"}};
  WeightEntry c{"c", DType::kF32, {static_cast<int64_t>(kilobytes * 128)}, {}, {}, ""};
  for (size_t i = 0; i < kilobytes * 128; ++i) c.constant.push_back(static_cast<double>(i));
  set.weights = {c};
  set.vocab = 10;
  return set;
}

class CacheTest : public testing::Test {
 protected:
  void SetUp() override {
    log::set_level(log::Level::kError);  // warnings are wanted here, and many
    static int number = 0;
    folder_ = fs::temp_directory_path() / fmt::format("tk_cache_{}_{}", ::getpid(), number++);
  }
  void TearDown() override {
    log::set_level(log::Level::kInfo);
    std::error_code ec;
    fs::remove_all(folder_, ec);
  }
  fs::path entry(const std::string& key) const { return folder_ / (key + ".plans"); }
  fs::path folder_;
};

// Runs `body` in a process of its own; gives its pid.
template <class Body>
pid_t in_child(Body body) {
  pid_t pid = ::fork();
  if (pid == 0) {
    try {
      body();
    } catch (...) {
      ::_exit(1);
    }
    ::_exit(0);
  }
  return pid;
}
int status_of(pid_t pid) {
  int status = 0;
  ::waitpid(pid, &status, 0);
  return status;
}

// An entry of an older program is recompiled, and one line says so.
TEST_F(CacheTest, AnOldEntryIsCompiledAgain) {
  CompileCache cache(folder_);
  int made = 0;
  auto make = [&] {
    ++made;
    return cached_plans("m");
  };
  cache.get("k", make);
  std::fstream file(entry("k"), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(8).put(1);  // the version of the container
  file.close();
  log::set_level(log::Level::kWarn);
  testing::internal::CaptureStderr();
  cache.get("k", make);
  std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(said.substr(said.find("compile cache")),
            fmt::format("compile cache: {} is of another version of this program; compiling the "
                        "model again\n",
                        entry("k").string()));
  EXPECT_EQ(made, 2);
  testing::internal::CaptureStderr();
  cache.get("k", make);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(made, 2);
}

TEST_F(CacheTest, MakesOnceAndFindsAgain) {
  CompileCache cache(folder_);
  int made = 0;
  auto make = [&] {
    ++made;
    return cached_plans("m");
  };
  EXPECT_EQ(cache.get("k1", make).model, "m");
  EXPECT_EQ(plan_set_text(cache.get("k1", make)), plan_set_text(cached_plans("m")));
  EXPECT_EQ(made, 1);
  ::usleep(20000);  // times of files move in ticks
  cache.get("k2", make);
  EXPECT_EQ(made, 2);
  auto entries = cache.entries(true);
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].key, "k2");  // used last
  EXPECT_EQ(entries[0].model, "m");
  EXPECT_EQ(entries[0].error, "");
  EXPECT_EQ(cache.clear(), 2u);
  EXPECT_TRUE(cache.entries().empty());
}

TEST_F(CacheTest, AnyFlippedByteAndAnyTruncationIsCompiledAgain) {
  CompileCache cache(folder_);
  cache.store("k", cached_plans("m"));
  std::string bytes = read_text_file(entry("k"));
  auto damaged_then_found = [&](const std::string& damaged) {
    write_text_file(entry("k"), damaged);
    int made = 0;
    PlanSet plans = cache.get("k", [&] {
      ++made;
      return cached_plans("m");
    });
    EXPECT_EQ(plans.weights[0].constant.size(), 128u);
    EXPECT_TRUE(cache.load("k").has_value()) << "the entry was not replaced";
    return made;
  };
  Rng rng(3);
  int made = 0;
  for (int i = 0; i < 60; ++i) {
    std::string damaged = bytes;
    size_t at = rng.below(bytes.size());
    damaged[at] = static_cast<char>(damaged[at] ^ 1 << rng.below(8));
    made += damaged_then_found(damaged);
  }
  EXPECT_GT(made, 30);  // the others hit zeros between sections
  for (size_t n : {size_t{0}, size_t{1}, size_t{63}, bytes.size() / 2, bytes.size() - 1})
    EXPECT_EQ(damaged_then_found(bytes.substr(0, n)), 1) << n;
  write_text_file(entry("other"), bytes);  // a good entry under another key
  EXPECT_FALSE(cache.load("other").has_value());
}

TEST_F(CacheTest, VerifyNamesTheDamage) {
  CompileCache cache(folder_);
  cache.store("good", cached_plans("m"));
  cache.store("bad", cached_plans("m"));
  std::string bytes = read_text_file(entry("bad"));
  bytes[bytes.size() - 5] = static_cast<char>(~bytes[bytes.size() - 5]);
  write_text_file(entry("bad"), bytes);
  cache.store("old", cached_plans("m"));
  std::string old = read_text_file(entry("old"));
  old[8] = static_cast<char>(old[8] - 1);  // the version in the header
  write_text_file(entry("old"), old);
  for (const CacheEntry& e : cache.entries(true)) {
    EXPECT_EQ(e.damaged(), e.key == "bad") << e.error;
    EXPECT_EQ(e.other_version, e.key == "old") << e.error;
    EXPECT_EQ(e.error.ends_with("old.plans is of another version of this program"), e.key == "old")
        << e.error;
  }
  EXPECT_EQ(cache.remove_damaged(), 1u);  // the other version's program may still use its entry
  EXPECT_EQ(cache.entries(true).size(), 2u);
}

TEST_F(CacheTest, TheLeastRecentlyUsedGoesFirst) {
  CompileCache cache(folder_, 40 << 10);  // three of about 13 KiB
  cache.store("a", cached_plans("a", 12));
  cache.store("b", cached_plans("b", 12));
  cache.store("c", cached_plans("c", 12));
  ASSERT_EQ(cache.entries().size(), 3u);
  ::usleep(20000);
  EXPECT_TRUE(cache.load("a").has_value());
  ::usleep(20000);
  cache.store("d", cached_plans("d", 12));
  EXPECT_TRUE(cache.load("a").has_value());
  EXPECT_FALSE(cache.load("b").has_value());
  cache.store("huge",
              cached_plans("huge", 100));  // alone beyond the limit: it is what is needed now
  EXPECT_TRUE(cache.load("huge").has_value());
  EXPECT_EQ(cache.entries().size(), 1u);
}

TEST_F(CacheTest, KilledWhileWriting) {
  CompileCache cache(folder_);
  Rng rng(5);
  for (int round = 0; round < 20; ++round) {
    pid_t pid = in_child([&] {
      for (int i = 0;; ++i) cache.store(fmt::format("k{}", i % 3), cached_plans("m", 64));
    });
    ::usleep(static_cast<useconds_t>(1000 + rng.below(20000)));
    ::kill(pid, SIGKILL);
    EXPECT_TRUE(WIFSIGNALED(status_of(pid)));
    for (const CacheEntry& e : cache.entries(true)) EXPECT_EQ(e.error, "") << round;
    cache.store("mine", cached_plans("mine"));  // no lock is left behind
    EXPECT_TRUE(cache.load("mine").has_value());
  }
  cache.clear();
  size_t left = 0;
  for (const auto& file : fs::directory_iterator(folder_)) left += file.path().extension() != "";
  EXPECT_EQ(left, 0u) << "clear() leaves temporary files";
}

// A file that is not complete has no name.
TEST_F(CacheTest, AKilledWriterLeavesNothing) {
  fs::create_directories(folder_);
  for (const char* name : {"model.tkm", "model.tkm", "other.tkm"}) {
    pid_t pid = in_child([&] {
      BundleFileWriter writer(folder_ / name);
      writer.add_section("key", std::string(1 << 20, 'x'));
      ::raise(SIGKILL);
    });
    EXPECT_TRUE(WIFSIGNALED(status_of(pid)));
    EXPECT_TRUE(fs::is_empty(folder_)) << fs::directory_iterator(folder_)->path();
  }
}

// Where the file system has no unnamed files.
TEST_F(CacheTest, OpeningRemovesTheFilesOfKilledWriters) {
  fs::create_directories(folder_);
  auto temporaries = [&] {
    size_t count = 0;
    for (const auto& file : fs::directory_iterator(folder_))
      count += file.path().extension() == ".tmp";
    return count;
  };
  for (int i = 0; i < 3; ++i) {
    pid_t pid = in_child([&] {
      NewFile file(entry(fmt::format("dead{}", i)), false);
      ::raise(SIGKILL);
    });
    EXPECT_TRUE(WIFSIGNALED(status_of(pid)));
  }
  write_text_file(folder_ / "notes.tmp", "not a name that a writer gives");
  NewFile alive(entry("alive"), false);
  EXPECT_EQ(temporaries(), 5u);
  CompileCache cache(folder_);
  EXPECT_EQ(temporaries(), 2u);
  alive.commit();
  EXPECT_TRUE(fs::exists(entry("alive")));
  EXPECT_TRUE(fs::exists(folder_ / "notes.tmp"));
}

// As for a bundle, whose folder is not a cache.
TEST_F(CacheTest, AWriterRemovesWhatAKilledOneLeft) {
  fs::create_directories(folder_);
  for (const char* name : {"model.tkm", "other.tkm"})
    status_of(in_child([&] {
      NewFile file(folder_ / name, false);
      ::raise(SIGKILL);
    }));
  BundleFileWriter writer(folder_ / "model.tkm");
  writer.finish();
  std::vector<std::string> left;
  for (const auto& file : fs::directory_iterator(folder_))
    left.push_back(file.path().filename().string().substr(0, 9));
  std::sort(left.begin(), left.end());
  EXPECT_EQ(left, (std::vector<std::string>{"model.tkm", "other.tkm"}));
}

TEST_F(CacheTest, ManyProcessesAtOnce) {
  std::vector<pid_t> children;
  for (int p = 0; p < 4; ++p)
    children.push_back(in_child([&, p] {
      CompileCache cache(folder_, 200 << 10);
      Rng rng(static_cast<uint64_t>(p));
      for (int i = 0; i < 60; ++i) {
        std::string key = fmt::format("k{}", rng.below(4));
        PlanSet plans = cache.get(key, [&] { return cached_plans(key, 16 + rng.below(32)); });
        if (plans.model != key) ::_exit(2);
        if (p == 0 && i % 20 == 0) cache.clear();
      }
    }));
  for (pid_t pid : children) {
    int status = status_of(pid);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  for (const CacheEntry& e : CompileCache(folder_).entries(true)) EXPECT_EQ(e.error, "");
}

// Stands for a full disk: no file may grow beyond some kilobytes.
TEST_F(CacheTest, AFullDisk) {
  int status = status_of(in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    rlimit limit{4096, 4096};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    CompileCache cache(folder_);
    for (int i = 0; i < 3; ++i)
      if (cache.get("k", [] { return cached_plans("m", 64); }).model != "m") ::_exit(2);
    if (!cache.entries().empty()) ::_exit(3);
  }));
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST_F(CacheTest, AFolderThatCannotBe) {
  write_text_file(folder_, "a file where the folder should be");
  for (const fs::path& folder : {folder_, folder_ / "below", fs::path("/proc/tokamak")}) {
    CompileCache cache(folder);
    EXPECT_EQ(cache.get("k", [] { return cached_plans("m"); }).model, "m");
    EXPECT_TRUE(cache.entries().empty());
    EXPECT_FALSE(cache.load("k").has_value());
  }
  fs::remove(folder_);
  fs::create_directories(folder_ / "k.plans");  // a folder where an entry should be
  CompileCache cache(folder_);
  EXPECT_EQ(cache.get("k", [] { return cached_plans("m"); }).model, "m");
  EXPECT_EQ(cache.entries().size(), 0u);
}

}  // namespace
}  // namespace tokamak
