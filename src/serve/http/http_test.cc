#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "base/error.h"
#include "serve/http/server.h"
#include "serve/http/turn.h"

namespace tokamak::http {
namespace {

Handler answer(std::string text) {
  return [text](ExchangePtr exchange) {
    Response response;
    response.body = text + exchange->request().parameter;
    exchange->respond(std::move(response));
  };
}

TEST(Router, FindsExactPathsPrefixesAndMethods) {
  Router router;
  router.add("GET", "/v1/models", answer("list"));
  router.add("GET", "/v1/models/{id...}", answer("one"));
  router.add("POST", "/v1/models", answer("post"));
  EXPECT_NE(router.find("GET", "/v1/models").handler, nullptr);
  EXPECT_EQ(router.find("GET", "/v1/models").handler, router.find("HEAD", "/v1/models").handler);
  EXPECT_EQ(router.find("GET", "/v1/models/a/b").parameter, "a/b");
  EXPECT_EQ(router.find("GET", "/v1/models/").allow, "");
  Router::Match wrong = router.find("PUT", "/v1/models");
  EXPECT_EQ(wrong.handler, nullptr);
  EXPECT_EQ(wrong.allow, "GET, HEAD, POST, OPTIONS");
  EXPECT_EQ(router.find("GET", "/v1").allow, "");
  EXPECT_THROW(router.add("GET", "/{a}/b", answer("")), Error);
}

struct TurnTest : ::testing::Test {
  std::shared_ptr<Turn> make(Turn::Traits traits = {}) {
    traits.max_unsent = 1000;
    return std::make_shared<Turn>(Request{}, traits, [this] { ++wakes; });
  }
  std::string taken(Turn& turn) {
    std::string out;
    last = turn.take(out);
    return out;
  }
  int wakes = 0;
  Turn::Taken last;
};

TEST_F(TurnTest, AnswersOnceAndWakesOncePerTake) {
  auto turn = make();
  Response response;
  response.body = "hello";
  turn->respond(response);
  turn->respond(response);
  EXPECT_EQ(wakes, 1);
  std::string out = taken(*turn);
  EXPECT_TRUE(out.starts_with("HTTP/1.1 200 OK\r\n"));
  EXPECT_TRUE(out.ends_with("Content-Length: 5\r\n\r\nhello"));
  EXPECT_TRUE(last.done && last.keep_alive && !last.cut);
  EXPECT_EQ(taken(*turn), "");
}

TEST_F(TurnTest, StreamsInChunks) {
  auto turn = make();
  turn->write("too early");
  turn->start_stream({});
  EXPECT_NE(taken(*turn).find("Transfer-Encoding: chunked"), std::string::npos);
  turn->write("0123456789abcdef");
  turn->write("");
  turn->ping();
  EXPECT_EQ(taken(*turn), "10\r\n0123456789abcdef\r\n8\r\n: ping\n\n\r\n");
  EXPECT_TRUE(last.streaming && !last.done);
  turn->finish("last");
  turn->write("too late");
  turn->probe();
  EXPECT_EQ(taken(*turn), "4\r\nlast\r\n0\r\n\r\n");
  EXPECT_TRUE(last.done);
}

TEST_F(TurnTest, AStreamWithoutAConnection) {
  std::string got;
  int ends = 0;
  Turn::Traits traits;
  traits.pieces = [&](std::string_view bytes, bool end) {
    got += bytes;
    ends += end;
  };
  auto turn = std::make_shared<Turn>(Request{}, traits, [] {});
  turn->start_stream({});
  turn->write("a");
  turn->finish("b");
  turn->write("c");
  EXPECT_EQ(got, "ab");
  EXPECT_EQ(ends, 1);
  {
    auto dropped = std::make_shared<Exchange>(std::make_shared<Turn>(Request{}, traits, [] {}));
    dropped->start_stream({});
  }
  EXPECT_EQ(ends, 2);  // also without an end
}

TEST_F(TurnTest, LaggingFurtherThanAllowedCutsTheStream) {
  auto turn = make();
  turn->start_stream({});
  for (int i = 0; i < 100; ++i) turn->write("0123456789");
  taken(*turn);
  EXPECT_TRUE(last.cut);
}

TEST_F(TurnTest, GoneIsToldOnceAndAtOnceToLateListeners) {
  auto turn = make();
  int gone = 0;
  turn->on_gone([&] { ++gone; });
  turn->set_gone();
  turn->set_gone();
  EXPECT_EQ(gone, 1);
  turn->on_gone([&] { gone += 10; });
  EXPECT_EQ(gone, 11);
  turn->respond({});
  EXPECT_EQ(taken(*turn), "");
}

TEST_F(TurnTest, AForgottenExchangeIsA500) {
  auto turn = make();
  { Exchange exchange(turn); }
  EXPECT_TRUE(taken(*turn).starts_with("HTTP/1.1 500 "));
  auto stream = make();
  {
    Exchange exchange(stream);
    exchange.start_stream({});
  }
  taken(*stream);
  EXPECT_TRUE(last.cut && last.done);
}

TEST_F(TurnTest, HeadersStayOnOneLine) {
  auto turn = make();
  Response response;
  response.headers = {{"X-A", "b\r\nX-C: d"}};
  turn->respond(response);
  EXPECT_EQ(taken(*turn).find("\r\nX-C"), std::string::npos);
}

std::string ask(int port, const std::string& request) {
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  std::string out;
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
      send(fd, request.data(), request.size(), MSG_NOSIGNAL) >= 0) {
    char chunk[4096];
    for (ssize_t n; (n = recv(fd, chunk, sizeof chunk, 0)) > 0;)
      out.append(chunk, static_cast<size_t>(n));
  }
  close(fd);
  return out;
}

constexpr const char* kClose = " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

ServerOptions free_port(int io_threads) {
  ServerOptions options;
  options.port = 0;
  options.io_threads = io_threads;
  return options;
}

TEST(Server, AnswersFromOtherThreadsAndSurvivesThrowingHandlers) {
  Router router;
  std::atomic<int> answered{0};
  std::vector<std::thread> helpers;
  std::mutex mutex;
  router.add("GET", "/later/{n...}", [&](ExchangePtr exchange) {
    std::lock_guard lock(mutex);
    helpers.emplace_back([exchange, &answered] {
      exchange->start_stream({});
      for (int i = 0; i < 50; ++i) exchange->write(exchange->request().parameter);
      exchange->finish();
      ++answered;
    });
  });
  router.add("GET", "/throw", [](ExchangePtr) { throw std::runtime_error("no"); });
  router.add("GET", "/forget", [](ExchangePtr) {});
  Server server(free_port(2));
  server.start(std::move(router));
  std::vector<std::thread> clients;
  std::atomic<int> good{0};
  for (int c = 0; c < 8; ++c)
    clients.emplace_back([&, c] {
      for (int i = 0; i < 10; ++i) {
        std::string out = ask(server.port(), "GET /later/" + std::to_string(c) + kClose);
        good += out.ends_with("\r\n0\r\n\r\n") && out.starts_with("HTTP/1.1 200 ");
      }
    });
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(good, 80);
  EXPECT_TRUE(ask(server.port(), std::string("GET /throw") + kClose).starts_with("HTTP/1.1 500 "));
  EXPECT_TRUE(ask(server.port(), std::string("GET /forget") + kClose).starts_with("HTTP/1.1 500 "));
  server.stop(std::chrono::seconds(5));
  for (std::thread& helper : helpers) helper.join();
  EXPECT_EQ(answered, 80);
  EXPECT_EQ(server.stats().connections, 0);
  EXPECT_EQ(ask(server.port(), std::string("GET /throw") + kClose), "");
}

TEST(Server, StopTellsHeldExchangesThatTheirClientIsGone) {
  Router router;
  std::atomic<int> gone{0};
  std::vector<ExchangePtr> held;
  std::mutex mutex;
  router.add("GET", "/hold", [&](ExchangePtr exchange) {
    exchange->on_gone([&] { ++gone; });
    std::lock_guard lock(mutex);
    held.push_back(exchange);
  });
  Server server(free_port(1));
  server.start(std::move(router));
  std::vector<std::thread> clients;
  for (int i = 0; i < 3; ++i)
    clients.emplace_back(
        [&] { EXPECT_EQ(ask(server.port(), std::string("GET /hold") + kClose), ""); });
  while (true) {
    std::lock_guard lock(mutex);
    if (held.size() == 3) break;
  }
  server.stop(std::chrono::milliseconds(50));
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(gone, 3);
  held[0]->respond({});  // discarded
}

TEST(Server, SaysWhenThePortIsTaken) {
  Server first(free_port(1));
  first.start({});
  ServerOptions options;
  options.port = first.port();
  try {
    Server second(options);
    FAIL() << "two servers on one port";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("already in use"), std::string::npos);
  }
  for (const char* host : {"not a host name", "[127.0.0.1", "[]"}) {
    options.host = host;
    EXPECT_THROW(Server{options}, Error) << host;
  }
}

TEST(Server, AddressesMayHaveBrackets) {
  ServerOptions options = free_port(1);
  options.host = "[127.0.0.1]";  // IPv6 is not everywhere
  Server server(options);
  server.start({});
  EXPECT_NE(server.port(), 0);
}

TEST(Server, StartsAndStopsManyTimes) {
  for (int i = 0; i < 20; ++i) {
    Server server(free_port(2));
    Router router;
    router.add("GET", "/", answer("x"));
    server.start(std::move(router));
    std::thread client([&] { ask(server.port(), std::string("GET /") + kClose); });
    if (i % 2 == 0) client.join();
    server.stop(std::chrono::milliseconds(i % 3));
    if (i % 2 != 0) client.join();
  }
}

}  // namespace
}  // namespace tokamak::http
