// tests/golden/graph: NAME.tkg is read and verified; its printed form must be NAME.out, and the
// functions derived from its step (where it has one) must be NAME.derived. TK_GOLDEN_WRITE=1
// rewrites them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/file.h"
#include "graph/graph.h"

namespace tokamak {
namespace {

void compare(const std::filesystem::path& path, const std::string& text) {
  if (std::getenv("TK_GOLDEN_WRITE")) write_text_file(path, text);
  EXPECT_EQ(read_text_file(path), text) << path;
}

TEST(GraphGolden, TextInTextOut) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(TK_GRAPH_GOLDEN)) {
    if (entry.path().extension() == ".tkg") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  ASSERT_GE(files.size(), 5u);
  for (std::filesystem::path path : files) {
    SCOPED_TRACE(path);
    Module m = parse_module(read_text_file(path));
    ASSERT_NO_THROW(verify_module(m));
    const std::string text = print_module(m);
    compare(path.replace_extension(".out"), text);
    EXPECT_EQ(print_module(parse_module(text)), text);
    if (!m.find_function("step")) continue;
    std::string derived =
        print_function(specialize_decode(m)) + '\n' + print_function(specialize_verify(m, 2));
    ASSERT_NO_THROW(verify_module(m));
    compare(path.replace_extension(".derived"), derived);
  }
}

}  // namespace
}  // namespace tokamak
