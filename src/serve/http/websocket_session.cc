// A connection after the handshake of a WebSocket: one message after the other is a request.
#include <fmt/format.h>

#include <chrono>
#include <iterator>
#include <string>
#include <utility>

#include "serve/http/session.h"

namespace tokamak::http {
namespace {

constexpr size_t kMaxControl = 64 << 10;  // bytes of pongs that a client has not read
constexpr std::chrono::milliseconds kCloseTime{2000};

}  // namespace

void Session::upgrade(Request request, const std::string& extra_headers) {
  if (probes_only_) return reject(too_many_connections());
  if (shared_->stopping) return reject(error_response(503, "The server is shutting down."));
  if (shared_->router.find("POST", request.path).handler == nullptr)
    return reject(error_response(
        404,
        fmt::format("{} answers no WebSocket messages; use a path that answers POST.",
                    request.path),
        "", "", "unknown_url"));
  Response answer = websocket::handshake(request);
  if (answer.status != 101) return reject(std::move(answer));
  auto out = std::back_inserter(control_);
  fmt::format_to(out, "HTTP/1.1 101 {}\r\n", status_text(101));
  for (const auto& [name, value] : answer.headers) fmt::format_to(out, "{}: {}\r\n", name, value);
  control_ += extra_headers + "\r\n";
  opened_ = std::move(request);
  opened_.method = "POST";
  opened_.body.clear();
  frames_ = std::make_unique<websocket::FrameReader>(shared_->options.max_body_bytes);
  parser_.reset();
  answered_ = true;
  next_request();
  flush_control();
  parse();
}

void Session::parse_frames() {
  using Event = websocket::FrameReader::Event;
  while (!closing_ && (phase_ == Phase::kReading || (phase_ == Phase::kBusy && !waiting_))) {
    switch (frames_->next(input_)) {
      case Event::kNeedMore:
        if (phase_ == Phase::kReading && !started_) {
          started_ = frames_->inside() || !input_.empty();
          set_busy(started_);
          const auto& options = shared_->options;
          set_deadline(started_ ? options.read_timeout : options.idle_timeout);
        }
        return account_body(frames_->held());
      case Event::kFragment:
      case Event::kPong:
        break;
      case Event::kPing:
        append_frame(control_, websocket::Opcode::kPong, frames_->payload());
        if (control_.size() > kMaxControl) return die();
        flush_control();
        break;
      case Event::kError:
        ++shared_->stats.rejected;
        return close_websocket(frames_->code());
      case Event::kClose:
        return close_websocket(frames_->code());
      case Event::kMessage:
        if (phase_ == Phase::kReading)
          dispatch_message(std::move(frames_->payload()));
        else
          waiting_ = std::move(frames_->payload());
        break;
    }
  }
}

void Session::dispatch_message(std::string body) {
  ++shared_->stats.requests;
  Request request = opened_;
  request.body = std::move(body);
  Turn::Traits traits;
  traits.websocket = true;
  Router::Match match = shared_->router.find(request.method, request.path);
  run(std::move(request), std::move(traits), match);
}

// After an answer.
void Session::next_message() {
  if (shared_->stopping) return close_websocket(websocket::kGoingAway);
  if (taken_.cut) return die();
  next_request();
  if (auto body = std::exchange(waiting_, std::nullopt)) dispatch_message(std::move(*body));
  parse();
  read_more();
}

void Session::flush_control() {
  if (writing_ || control_.empty()) return;
  if (phase_ == Phase::kBusy) return pump();
  output_ = std::exchange(control_, {});
  sent_ = 0;
  write_some();
}

// Also ends the answer in progress: the client does not want it, or broke the protocol.
void Session::close_websocket(int code) {
  if (closing_) return;
  closing_ = true;
  input_.clear();
  websocket::append_close(control_, code);
  if (auto turn = std::exchange(turn_, nullptr)) {
    ++shared_->stats.gone;
    turn->set_gone();
  }
  phase_ = Phase::kReading;
  next_ping_ = TimePoint::max();
  set_deadline(kCloseTime);
  flush_control();
}

}  // namespace tokamak::http
