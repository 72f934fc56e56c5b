#include "serve/model_registry.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "serve/fake_client.h"

namespace tokamak {
namespace {

using State = ModelRegistry::State;

// Counts the models that are loaded at the same time.
struct Shelf {
  std::atomic<int> loaded{0}, most{0}, loads{0};

  ModelEntry entry(const std::string& name) {
    ModelEntry entry;
    entry.name = name;
    entry.bytes = 1;
    entry.load = [this, name] {
      ++loads;
      int now = ++loaded;
      for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
      }
      ServedModel model;
      model.owner = std::shared_ptr<const void>(nullptr, [this](const void*) { --loaded; });
      model.client = std::make_shared<testing::FakeClient>();
      model.tokenizer = testing::byte_tokenizer();
      return model;
    };
    return entry;
  }
};

std::shared_ptr<const ServedModel> wait_for(ModelRegistry& registry, const std::string& name) {
  for (;;) {
    try {
      return registry.get(name);
    } catch (const ModelNotLoaded&) {
      std::promise<std::string> done;
      registry.when_loaded(name, [&](const std::exception* error) {
        done.set_value(error == nullptr ? "" : error->what());
      });
      if (std::string message = done.get_future().get(); !message.empty())
        fail(ErrorCode::kUnavailable, "{}", message);
    }
  }
}

void ignore(ServedModel&) {}

TEST(ModelRegistry, LoadsOnDemandAndMakesRoom) {
  Shelf shelf;
  ModelRegistry registry({shelf.entry("a"), shelf.entry("b"), shelf.entry("c")}, {.loaded = 2},
                         ignore);
  EXPECT_TRUE(registry.loaded().empty());
  EXPECT_EQ(wait_for(registry, "")->name, "a");
  EXPECT_EQ(wait_for(registry, "b")->name, "b");
  registry.get("a");  // b is now the least recently used one
  EXPECT_EQ(wait_for(registry, "c")->name, "c");
  EXPECT_EQ(registry.find("a").state, State::kLoaded);
  EXPECT_EQ(registry.find("b").state, State::kUnloaded);
  EXPECT_EQ(shelf.most, 2);
  EXPECT_THROW(registry.get("d"), Error);
}

TEST(ModelRegistry, WaitsForRequestsThatRun) {
  Shelf shelf;
  ModelRegistry registry({shelf.entry("a"), shelf.entry("b")}, {.loaded = 1}, ignore);
  auto used = wait_for(registry, "a");
  std::promise<void> loaded;
  registry.when_loaded("b", [&](const std::exception*) { loaded.set_value(); });
  auto done = loaded.get_future();
  EXPECT_EQ(done.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  EXPECT_THROW(registry.get("a"), ModelNotLoaded);  // nothing new: it is about to go
  used.reset();
  done.get();
  EXPECT_EQ(shelf.most, 1);
}

TEST(ModelRegistry, UnloadsWhatIsIdle) {
  Shelf shelf;
  ModelRegistry registry({shelf.entry("a")}, {.idle = std::chrono::milliseconds(20)}, ignore);
  auto used = wait_for(registry, "a");
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(registry.find("a").state, State::kLoaded);
  used.reset();
  for (int i = 0; i < 1000 && shelf.loaded > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(shelf.loaded, 0);
  EXPECT_EQ(wait_for(registry, "a")->name, "a");
}

TEST(ModelRegistry, FailuresAreReportedAndTriedAgain) {
  Shelf shelf;
  ModelEntry broken = shelf.entry("broken");
  int tries = 0;
  broken.load = [&, load = broken.load] {
    if (++tries == 1) fail(ErrorCode::kCorrupt, "it is damaged");
    return load();
  };
  // A fake client has 1,239 bytes.
  ModelRegistry registry({broken, shelf.entry("b")}, {.bytes = 1500}, ignore);
  try {
    wait_for(registry, "broken");
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "The model 'broken' could not be loaded: it is damaged");
  }
  EXPECT_EQ(wait_for(registry, "b")->name, "b");
  EXPECT_EQ(wait_for(registry, "broken")->name, "broken");
  EXPECT_EQ(registry.find("b").state, State::kUnloaded);
  ModelRegistry small({shelf.entry("b")}, {.bytes = 1000}, ignore);
  EXPECT_THROW(wait_for(small, "b"), Error);
}

TEST(ModelRegistry, ModelsWithoutALoaderStay) {
  Shelf shelf;
  ModelEntry fixed = shelf.entry("a");
  auto model = std::make_shared<ServedModel>(fixed.load());
  model->name = "a";
  fixed.model = model;
  fixed.load = nullptr;
  ModelRegistry registry({fixed}, {.loaded = 1}, ignore);
  EXPECT_FALSE(registry.can_unload());
  EXPECT_THROW(registry.unload("a"), Error);
  EXPECT_EQ(registry.get("a")->name, "a");
}

TEST(ModelRegistry, ManyThreads) {
  Shelf shelf;
  ModelRegistry registry({shelf.entry("a"), shelf.entry("b"), shelf.entry("c")}, {.loaded = 2},
                         ignore);
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 30; ++i) {
        std::string name(1, static_cast<char>('a' + (t * 7 + i * 5) % 3));
        EXPECT_EQ(wait_for(registry, name)->name, name);
        if (i % 10 == t) registry.unload(name);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(shelf.most, 2);
}

TEST(ModelRegistry, StoppingAnswersThoseWhoWait) {
  Shelf shelf;
  std::promise<std::string> told;
  {
    ModelRegistry registry({shelf.entry("a"), shelf.entry("b")}, {.loaded = 1}, ignore);
    auto used = wait_for(registry, "a");
    registry.when_loaded("b", [&](const std::exception* error) {
      told.set_value(error == nullptr ? "" : error->what());
    });
    registry.stop();
    used.reset();
  }
  EXPECT_EQ(told.get_future().get(), "The server is shutting down.");
  EXPECT_EQ(shelf.loaded, 0);
}

}  // namespace
}  // namespace tokamak
