#pragma once
// A copy of the prefix index for people: which prefixes are cached, and who uses them.
#include <cstdint>
#include <string>
#include <vector>

namespace tokamak {

class KvCache;

// Nodes of the index that follow each other without a branch, and are used alike, are one node.
struct PrefixTreeNode {
  int32_t parent = -1;       // index of a node before it; -1: a root, which has no tokens
  std::string salt;          // of a root
  std::vector<int32_t> ids;  // its tokens
  int64_t first = 0;         // tokens before them
  int64_t blocks = 0;        // with content, of all groups
  int64_t cached = 0;        // of them: used by no sequence
  int32_t references = 0;    // sequences that use it; the most of its blocks
  bool producing = false;    // a sequence is computing it
  int64_t ended_since = 0;   // of a cached node: sequences that ended since its last use
};

struct PrefixTree {
  int32_t unit = 0;                   // tokens that are shared as a whole
  std::vector<PrefixTreeNode> nodes;  // parents before their children
  int64_t left_out = 0;               // nodes of the index beyond the limit
};

// At most `most` nodes of the index, and about as many nodes of the tree.
PrefixTree prefix_tree(const KvCache& kv, int64_t most);

}  // namespace tokamak
