#pragma once
// The models of a server by name. Some may be loaded when a request needs them, and unloaded when
// others need their memory or they were not used for a while.
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "serve/served_model.h"

namespace tokamak {

// The model exists and is not loaded: see ModelRegistry::when_loaded.
class ModelNotLoaded : public Error {
 public:
  explicit ModelNotLoaded(const std::string& name)
      : Error(ErrorCode::kUnavailable,
              fmt::format("The model '{}' is not loaded; the first request that uses it loads it.",
                          name)),
        name_(name) {}
  const std::string& name() const { return name_; }

 private:
  std::string name_;
};

// A model that a server knows.
struct ModelEntry {
  std::string name;
  std::vector<std::string> aliases;
  uint64_t bytes = 0;                        // of its memory; before it was loaded, of its file
  std::shared_ptr<const ServedModel> model;  // null: not loaded yet
  // Empty: `model` is given and stays. Called on the registry's thread; may throw.
  std::function<ServedModel()> load;
};

// Limits for the models that can be loaded and unloaded; 0: none.
struct ModelLimits {
  int64_t loaded = 0;                 // models at the same time
  uint64_t bytes = 0;                 // of their memory
  std::chrono::milliseconds idle{0};  // time without requests after which a model is unloaded
};

// Owner: the API. Thread-safe. Models are loaded one after the other, on a thread of the registry's
// own. A model is in use while anyone holds it.
class ModelRegistry {
 public:
  // complete: called for each model after it is loaded.
  ModelRegistry(std::vector<ModelEntry> entries, ModelLimits limits,
                std::function<void(ServedModel&)> complete);
  ~ModelRegistry();
  void stop();  // loads nothing from now on; those who wait get an error
  ModelRegistry(const ModelRegistry&) = delete;
  ModelRegistry& operator=(const ModelRegistry&) = delete;

  bool has(const std::string& name) const;
  bool can_unload() const { return loads_; }  // some models can be loaded and unloaded
  // The model of that name (empty: the first). Throws ModelNotLoaded, or Error(kNotFound).
  std::shared_ptr<const ServedModel> get(const std::string& name);
  std::vector<std::shared_ptr<const ServedModel>> loaded() const;

  enum class State { kUnloaded, kLoading, kLoaded };
  struct Listed {
    std::string name;
    State state;
    uint64_t bytes;
    std::shared_ptr<const ServedModel> model;  // null: not loaded
  };
  std::vector<Listed> list() const;
  Listed find(const std::string& name) const;  // throws Error(kNotFound)

  // Loads the model. `then` is called on the registry's thread (at once if it is loaded), with the
  // error if it could not be loaded; the model may be unloaded again before it is used.
  using Then = std::function<void(const std::exception* error)>;
  void when_loaded(const std::string& name, Then then);
  // Takes no new requests for it; it goes when those that use it are done.
  void unload(const std::string& name);

 private:
  using Clock = std::chrono::steady_clock;
  struct Slot : ModelEntry {
    bool loading = false, leaving = false;  // leaving: unloaded as soon as it is not in use
    Clock::time_point last_use{}, waiting_since{};
    std::vector<Then> waiting;
  };
  // What a reference that was handed out needs when it goes, also after the registry.
  struct Signal {
    std::mutex mutex;
    std::condition_variable changed;
  };
  Slot& slot(const std::string& name) const;
  std::shared_ptr<const ServedModel> lend(const Slot& slot) const;
  bool can_remove() const;  // a model that must go is not in use
  void run();
  void load(std::unique_lock<std::mutex>& lock, Slot& slot);
  void remove_unused(std::unique_lock<std::mutex>& lock);
  bool make_room(const Slot& wanted);
  bool exceeded(int64_t loaded, uint64_t bytes) const;
  Slot* least_recent(const Slot* except);
  void finish(std::unique_lock<std::mutex>& lock, Slot& slot, const std::exception* error);

  const ModelLimits limits_;
  const std::function<void(ServedModel&)> complete_;
  bool loads_ = false;
  const std::shared_ptr<Signal> signal_ = std::make_shared<Signal>();
  std::mutex& mutex_ = signal_->mutex;
  std::condition_variable& changed_ = signal_->changed;
  mutable std::vector<Slot> slots_;  // fixed after the constructor
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tokamak
