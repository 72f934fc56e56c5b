#pragma once
// Which rows of a step belong to a sequence, and where its state is.
#include "backend/cuda/ops/args.h"
#include "backend/cuda/ops/simt.cuh"

namespace tokamak::cuda {

// The rows of a sequence in this step. The block after the last sequence has the rows that belong
// to none; those and rows of sequences without tokens are padding.
struct SequenceRows {
  int first, end;
  bool padding, begins;
  float* state;
  TK_DEVICE SequenceRows(const SequencesArgs& s, int sequence) {
    const bool rest = sequence == s.sequences;
    first = s.q_start[sequence];
    end = rest ? s.rows : s.q_start[sequence + 1];
    const int length = rest ? 0 : s.kv_len[sequence];
    padding = length <= 0;
    begins = length == end - first;
    const int64_t block = padding ? 0 : s.view.table[int64_t{sequence} * s.view.stride];
    state = reinterpret_cast<float*>(s.plane.base + block * s.plane.block_bytes);
  }
};

}  // namespace tokamak::cuda
