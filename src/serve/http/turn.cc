#include "serve/http/turn.h"

#include <ctime>
#include <utility>

#include "base/log.h"

namespace tokamak::http {
namespace {

std::string http_date() {
  std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  static constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                            "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  return fmt::format("{}, {:02} {} {} {:02}:{:02}:{:02} GMT", kDays[parts.tm_wday], parts.tm_mday,
                     kMonths[parts.tm_mon], parts.tm_year + 1900, parts.tm_hour, parts.tm_min,
                     parts.tm_sec);
}

// A handler may put client text into a header; it must not inject a second header.
std::string one_line(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  return out;
}

}  // namespace

Turn::Turn(Request request, Traits traits, std::function<void()> wake)
    : request_(std::move(request)), traits_(std::move(traits)), wake_(std::move(wake)) {}

void Turn::notify(std::unique_lock<std::mutex>& lock) {
  bool wake = !notified_;
  notified_ = true;
  lock.unlock();
  if (wake) wake_();
}

void Turn::begin_head() {
  if (!std::exchange(begun_, true)) unsent_ += traits_.http10 ? "HTTP/1.0 " : "HTTP/1.1 ";
}

void Turn::append_head(int status, std::string_view content_type, const Headers& headers,
                       const size_t* length) {
  auto out = std::back_inserter(unsent_);
  begin_head();
  fmt::format_to(out, "{} {}\r\nDate: {}\r\nServer: tokamak\r\n", status, status_text(status),
                 http_date());
  if (!content_type.empty()) fmt::format_to(out, "Content-Type: {}\r\n", one_line(content_type));
  if (length != nullptr) {
    if (status != 204 && status != 304) fmt::format_to(out, "Content-Length: {}\r\n", *length);
  } else if (traits_.http10) {
    traits_.keep_alive = false;
  } else {
    unsent_ += "Transfer-Encoding: chunked\r\n";
  }
  for (const auto& [name, value] : headers)
    fmt::format_to(out, "{}: {}\r\n", one_line(name), one_line(value));
  unsent_ += traits_.extra_headers;
  if (!traits_.keep_alive)
    unsent_ += "Connection: close\r\n";
  else if (traits_.http10)
    unsent_ += "Connection: keep-alive\r\n";
  unsent_ += "\r\n";
}

void Turn::respond(const Response& response) {
  std::unique_lock lock(mutex_);
  if (state_ != State::kWaiting || gone_) return;
  if (traits_.answer) {
    std::function<void()> gone, stop;  // destroyed after the lock is released
    gone.swap(on_gone_);
    stop.swap(on_stop_);
    state_ = State::kDone;
    lock.unlock();
    return traits_.answer(response);
  }
  if (traits_.websocket) {
    websocket::append_frame(unsent_, websocket::Opcode::kText, response.body);
    state_ = State::kDone;
    return notify(lock);
  }
  size_t length = response.body.size();
  append_head(response.status, response.body.empty() ? "" : response.content_type, response.headers,
              &length);
  if (!traits_.head) unsent_ += response.body;
  state_ = State::kDone;
  notify(lock);
}

void Turn::start_stream(const StreamHead& head) {
  std::unique_lock lock(mutex_);
  if (state_ != State::kWaiting || gone_) return;
  if (traits_.pieces) {
    state_ = State::kStreaming;
    return;
  }
  if (traits_.websocket)
    cutter_.start(head.content_type);
  else
    append_head(200, head.content_type, head.headers, nullptr);
  ping_ = head.ping;
  state_ = State::kStreaming;
  notify(lock);
}

void Turn::append_chunk(std::string_view bytes) {
  if (bytes.empty() || traits_.head) return;
  if (unsent_.size() + bytes.size() > traits_.max_unsent) {
    notified_ = notified_ && cut_;  // the connection may be stuck in a write: wake it now
    cut_ = true;
    return;
  }
  if (traits_.websocket) return cutter_.add(bytes, unsent_);
  if (traits_.http10) {
    unsent_ += bytes;
    return;
  }
  fmt::format_to(std::back_inserter(unsent_), "{:x}\r\n", bytes.size());
  unsent_ += bytes;
  unsent_ += "\r\n";
}

void Turn::end_pieces(std::string_view last, std::unique_lock<std::mutex>& lock) {
  std::function<void()> gone, stop;  // destroyed after the lock is released
  gone.swap(on_gone_);
  stop.swap(on_stop_);
  state_ = State::kDone;
  lock.unlock();
  traits_.pieces(last, true);
}

void Turn::write(std::string_view bytes) {
  std::unique_lock lock(mutex_);
  if (state_ != State::kStreaming || gone_) return;
  if (traits_.pieces) {
    lock.unlock();
    return traits_.pieces(bytes, false);
  }
  append_chunk(bytes);
  notify(lock);
}

void Turn::finish(std::string_view last) {
  std::unique_lock lock(mutex_);
  if (state_ != State::kStreaming || gone_) return;
  if (traits_.pieces) return end_pieces(last, lock);
  append_chunk(last);
  if (traits_.websocket)
    cutter_.finish(unsent_);
  else if (!traits_.http10 && !traits_.head)
    unsent_ += "0\r\n\r\n";
  state_ = State::kDone;
  notify(lock);
}

void Turn::abandon() {
  {
    std::unique_lock lock(mutex_);
    if (state_ == State::kDone || gone_) return;
    if (state_ ==
        State::kStreaming) {  // the missing last chunk tells the client that it is incomplete
      if (traits_.pieces) return end_pieces({}, lock);
      cut_ = true;
      state_ = State::kDone;
      notify(lock);
      return;
    }
  }
  log::error("{} {}: the handler did not answer", request_.method, request_.path);
  respond(error_response(500, "The server had an error while processing the request."));
}

void Turn::on_gone(std::function<void()> callback) {
  {
    std::lock_guard lock(mutex_);
    if (!gone_) {
      on_gone_ = std::move(callback);
      return;
    }
  }
  callback();
}

void Turn::probe() {
  std::unique_lock lock(mutex_);
  if (state_ == State::kDone || gone_ || traits_.websocket) return;
  if (state_ == State::kWaiting)
    begin_head();
  else  // lines of JSON have no pings, but may begin with a space
    append_chunk(ping_.empty() ? " " : std::string_view(ping_));
  notify(lock);
}

void Turn::on_stop(std::function<void()> callback) {
  {
    std::lock_guard lock(mutex_);
    if (!stopping_) {
      on_stop_ = std::move(callback);
      return;
    }
  }
  callback();
}

void Turn::set_stopping() {
  std::function<void()> callback;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    callback.swap(on_stop_);
  }
  if (callback) callback();
}

bool Turn::gone() const {
  std::lock_guard lock(mutex_);
  return gone_;
}

Turn::Taken Turn::take(std::string& out) {
  std::function<void()> gone, stop;  // destroyed after the lock is released: may hold the exchange
  std::lock_guard lock(mutex_);
  notified_ = false;
  out.clear();
  out.swap(unsent_);
  if (state_ == State::kDone) {
    gone.swap(on_gone_);
    stop.swap(on_stop_);
  }
  return {state_ == State::kDone, cut_, state_ == State::kStreaming, traits_.keep_alive};
}

bool Turn::overflowed() const {
  std::lock_guard lock(mutex_);
  return cut_ && state_ == State::kStreaming;
}

void Turn::ping() {
  std::unique_lock lock(mutex_);
  if (state_ != State::kStreaming || gone_ || ping_.empty()) return;
  if (traits_.websocket)
    websocket::append_frame(unsent_, websocket::Opcode::kPing, "");
  else
    append_chunk(ping_);
  notify(lock);
}

void Turn::set_gone() {
  std::function<void()> callback;
  {
    std::lock_guard lock(mutex_);
    if (gone_) return;
    gone_ = true;
    unsent_.clear();
    callback.swap(on_gone_);
  }
  if (callback) callback();
}

Exchange::Exchange(std::shared_ptr<Turn> turn) : turn_(std::move(turn)) {}
Exchange::~Exchange() { turn_->abandon(); }
const Request& Exchange::request() const { return turn_->request(); }
void Exchange::respond(Response response) { turn_->respond(response); }
void Exchange::start_stream(StreamHead head) { turn_->start_stream(head); }
void Exchange::write(std::string_view bytes) { turn_->write(bytes); }
void Exchange::finish(std::string_view last) { turn_->finish(last); }
void Exchange::on_gone(std::function<void()> callback) { turn_->on_gone(std::move(callback)); }
void Exchange::on_stop(std::function<void()> callback) { turn_->on_stop(std::move(callback)); }
bool Exchange::gone() const { return turn_->gone(); }

}  // namespace tokamak::http
