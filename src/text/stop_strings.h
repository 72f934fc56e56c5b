#pragma once
// Finds stop strings in streamed text, and holds back text that may become one.
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tokamak {

// Owner: one generated sequence; one thread at a time. The match that ends first wins, of those the
// one that starts first. Linear time (one automaton over all stop strings).
class StopStrings {
 public:
  struct Result {
    std::string text;      // may be sent now
    bool stopped = false;  // a stop string was found; later text is dropped
  };

  // Empty strings are ignored. include_stop: the stop string itself is sent too.
  explicit StopStrings(std::vector<std::string> stops = {}, bool include_stop = false);

  Result push(std::string_view text);
  std::string finish();  // the text held back
  bool stopped() const { return stopped_ >= 0; }
  const std::string& matched() const;  // the stop string found; "" if none
  void reset();

 private:
  void build();
  struct State {
    int fail = 0, depth = 0, match = -1;  // match: the longest stop string that ends here
    std::vector<std::pair<unsigned char, int>> next;
  };
  int step(int state, unsigned char byte) const;

  std::vector<std::string> stops_;
  std::vector<State> states_;
  bool include_stop_;
  int state_ = 0;
  int stopped_ = -1;
  std::string held_;
};

}  // namespace tokamak
