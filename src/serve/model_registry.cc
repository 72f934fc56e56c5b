#include "serve/model_registry.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace tokamak {
namespace {

constexpr std::chrono::milliseconds kIdleCheck{200};  // how often idle models are looked for

bool has_name(const ModelEntry& entry, const std::string& name) {
  return entry.name == name ||
         std::find(entry.aliases.begin(), entry.aliases.end(), name) != entry.aliases.end();
}

double mebibytes(uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

Error stopping_error() { return {ErrorCode::kUnavailable, "The server is shutting down."}; }

}  // namespace

ModelRegistry::ModelRegistry(std::vector<ModelEntry> entries, ModelLimits limits,
                             std::function<void(ServedModel&)> complete)
    : limits_(limits), complete_(std::move(complete)) {
  TK_CHECK(!entries.empty());
  for (ModelEntry& entry : entries) {
    TK_CHECK(entry.model != nullptr || entry.load);
    loads_ = loads_ || entry.load;
    Slot slot;
    static_cast<ModelEntry&>(slot) = std::move(entry);
    slot.last_use = Clock::now();
    slots_.push_back(std::move(slot));
  }
  for (Slot& slot : slots_)
    if (slot.model != nullptr) {
      auto model = std::make_shared<ServedModel>(*slot.model);
      complete_(*model);
      slot.bytes = model->client->memory().total();
      slot.model = std::move(model);
    }
  if (loads_) thread_ = std::thread([this] { run(); });
}

ModelRegistry::~ModelRegistry() { stop(); }

void ModelRegistry::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

ModelRegistry::Slot& ModelRegistry::slot(const std::string& name) const {
  if (name.empty()) return slots_[0];
  for (Slot& slot : slots_)
    if (has_name(slot, name)) return slot;
  fail(ErrorCode::kNotFound, "The model '{}' does not exist.", name);
}

// Releasing the last copy of the result wakes the registry.
std::shared_ptr<const ServedModel> ModelRegistry::lend(const Slot& slot) const {
  if (!slot.load) return slot.model;
  return {slot.model.get(), [signal = signal_, held = slot.model](const ServedModel*) mutable {
            held.reset();
            {
              std::lock_guard lock(signal->mutex);
            }  // the registry either waits already or will see it
            signal->changed.notify_all();
          }};
}

bool ModelRegistry::has(const std::string& name) const {
  return std::any_of(slots_.begin(), slots_.end(),
                     [&](const Slot& slot) { return has_name(slot, name); });
}

std::shared_ptr<const ServedModel> ModelRegistry::get(const std::string& name) {
  Slot& found = slot(name);
  std::lock_guard lock(mutex_);
  if (found.model == nullptr || found.leaving) throw ModelNotLoaded(found.name);
  found.last_use = Clock::now();
  return lend(found);
}

std::vector<std::shared_ptr<const ServedModel>> ModelRegistry::loaded() const {
  std::vector<std::shared_ptr<const ServedModel>> out;
  std::lock_guard lock(mutex_);
  for (const Slot& slot : slots_)
    if (slot.model != nullptr) out.push_back(lend(slot));
  return out;
}

std::vector<ModelRegistry::Listed> ModelRegistry::list() const {
  std::vector<Listed> out;
  for (const Slot& slot : slots_) out.push_back(find(slot.name));
  return out;
}

ModelRegistry::Listed ModelRegistry::find(const std::string& name) const {
  const Slot& found = slot(name);
  std::lock_guard lock(mutex_);
  const bool loaded = found.model != nullptr && !found.leaving;
  return {found.name,
          loaded                                    ? State::kLoaded
          : found.loading || !found.waiting.empty() ? State::kLoading
                                                    : State::kUnloaded,
          found.bytes, loaded ? lend(found) : nullptr};
}

void ModelRegistry::when_loaded(const std::string& name, Then then) {
  Slot& found = slot(name);
  const Error stopping = stopping_error();
  const std::exception* error = &stopping;
  {
    std::lock_guard lock(mutex_);
    if (!stopping_ && (found.model == nullptr || found.leaving)) {
      if (found.waiting.empty()) found.waiting_since = Clock::now();
      found.waiting.push_back(std::move(then));
      changed_.notify_all();
      return;
    }
    if (!stopping_) error = nullptr;
  }
  then(error);
}

void ModelRegistry::unload(const std::string& name) {
  Slot& found = slot(name);
  if (!found.load)
    fail(ErrorCode::kUnsupported, "The model '{}' cannot be unloaded: it is not loaded on demand.",
         found.name);
  std::lock_guard lock(mutex_);
  found.leaving = found.model != nullptr;
  changed_.notify_all();
}

bool ModelRegistry::exceeded(int64_t loaded, uint64_t bytes) const {
  return (limits_.loaded > 0 && loaded > limits_.loaded) ||
         (limits_.bytes > 0 && bytes > limits_.bytes);
}

ModelRegistry::Slot* ModelRegistry::least_recent(const Slot* except) {
  Slot* best = nullptr;
  for (Slot& slot : slots_)
    if (&slot != except && slot.model != nullptr && slot.load && !slot.leaving &&
        (best == nullptr || slot.last_use < best->last_use))
      best = &slot;
  return best;
}

// Chooses models to unload so that `wanted` fits: before it is loaded, and again when its size is
// known. True: there is room now.
bool ModelRegistry::make_room(const Slot& wanted) {
  int64_t loaded = 1, leaving = 0;
  uint64_t bytes = wanted.bytes, freed = 0;
  for (const Slot& slot : slots_) {
    if (slot.model == nullptr || !slot.load || &slot == &wanted) continue;
    ++loaded;
    bytes += slot.bytes;
    leaving += slot.leaving;
    freed += slot.leaving ? slot.bytes : 0;
  }
  if (!exceeded(loaded, bytes)) return true;
  while (exceeded(loaded - leaving, bytes - freed)) {
    Slot* victim = least_recent(&wanted);
    if (victim == nullptr) return leaving == 0;  // larger than the limit, or room will be free soon
    victim->leaving = true;
    ++leaving;
    freed += victim->bytes;
  }
  return false;
}

// Unloads the chosen models, and those that have been idle for too long.
void ModelRegistry::remove_unused(std::unique_lock<std::mutex>& lock) {
  std::vector<std::shared_ptr<const ServedModel>> removed;
  const auto now = Clock::now();
  for (Slot& slot : slots_) {
    if (slot.model == nullptr || !slot.load) continue;
    // References are only given out under the lock, so a count of 1 does not change here.
    const bool used = slot.model.use_count() > 1;
    if (used) slot.last_use = now;
    if (limits_.idle.count() > 0 && now - slot.last_use >= limits_.idle) slot.leaving = true;
    if (!slot.leaving || used) continue;
    log::info("{} is unloaded ({:.0f} MiB)", slot.name, mebibytes(slot.bytes));
    removed.push_back(std::exchange(slot.model, nullptr));
    slot.leaving = false;
  }
  if (removed.empty()) return;
  lock.unlock();
  removed.clear();  // stops engines
  lock.lock();
}

void ModelRegistry::finish(std::unique_lock<std::mutex>& lock, Slot& slot,
                           const std::exception* error) {
  std::vector<Then> waiting = std::exchange(slot.waiting, {});
  lock.unlock();
  for (const Then& then : waiting) then(error);
  waiting.clear();
  lock.lock();
}

void ModelRegistry::load(std::unique_lock<std::mutex>& lock, Slot& slot) {
  slot.loading = true;
  lock.unlock();
  std::shared_ptr<ServedModel> model;
  std::exception_ptr failure;
  const auto start = Clock::now();
  try {
    model = std::make_shared<ServedModel>(slot.load());
    model->name = slot.name;
    model->aliases = slot.aliases;
    complete_(*model);
    const uint64_t bytes = model->client->memory().total();
    if (limits_.bytes > 0 && bytes > limits_.bytes) {
      model.reset();
      fail(ErrorCode::kUnavailable,
           "it needs {:.0f} MiB, which is more than the {:.0f} MiB for models", mebibytes(bytes),
           mebibytes(limits_.bytes));
    }
    log::info("{} is loaded ({:.0f} MiB, {:.1f} s)", slot.name, mebibytes(bytes),
              std::chrono::duration<double>(Clock::now() - start).count());
    lock.lock();
    slot.bytes = bytes;
  } catch (...) {
    failure = std::current_exception();
    lock.lock();
  }
  slot.loading = false;
  slot.last_use = Clock::now();
  slot.model = std::move(model);
  if (failure == nullptr) {
    make_room(slot);
    return finish(lock, slot, nullptr);
  }
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& e) {
    const Error error(ErrorCode::kUnavailable,
                      fmt::format("The model '{}' could not be loaded: {}", slot.name, e.what()));
    log::error("{}", error.what());
    finish(lock, slot, &error);
  }
}

bool ModelRegistry::can_remove() const {
  return std::any_of(slots_.begin(), slots_.end(), [](const Slot& slot) {
    return slot.leaving && slot.model != nullptr && slot.model.use_count() == 1;
  });
}

void ModelRegistry::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    remove_unused(lock);
    Slot* wanted = nullptr;  // has waited longest
    bool idle = false;
    for (Slot& slot : slots_) {
      if (!slot.waiting.empty() && slot.model == nullptr &&
          (wanted == nullptr || slot.waiting_since < wanted->waiting_since))
        wanted = &slot;
      idle = idle || (limits_.idle.count() > 0 && slot.model != nullptr && slot.load);
    }
    if (stopping_) break;
    if (wanted != nullptr && make_room(*wanted)) {
      load(lock, *wanted);
    } else if (can_remove()) {
      continue;
    } else if (idle) {
      changed_.wait_for(lock, std::min(kIdleCheck, limits_.idle));
    } else {
      changed_.wait(lock);
    }
  }
  const Error error = stopping_error();
  for (Slot& slot : slots_) finish(lock, slot, &error);
}

}  // namespace tokamak
