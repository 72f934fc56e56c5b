#include "backend/cuda/emulator/simt_host.h"

#include <map>
#include <memory>
#include <vector>

#include "base/error.h"
#include "tensor/block_formats.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

// tk_switch_stack(save, to): saves the registers that a call must preserve on the current stack and
// its top in *save, and goes on where the stack `to` was left. Much cheaper than swapcontext, which
// also saves the signal mask.
extern "C" void tk_switch_stack(void** save, void* to);
#if defined(__aarch64__)
asm(R"(
.text
.balign 16
.global tk_switch_stack
.type tk_switch_stack, %function
tk_switch_stack:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size tk_switch_stack, .-tk_switch_stack
)");
#elif defined(__x86_64__)
asm(R"(
.text
.balign 16
.global tk_switch_stack
.type tk_switch_stack, @function
tk_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size tk_switch_stack, .-tk_switch_stack
)");
#else
#error "the emulator of the CUDA kernels knows aarch64 and x86-64"
#endif

namespace tokamak::cuda {

Dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace simt {
namespace {

constexpr size_t kStackBytes = 64 << 10;
constexpr unsigned kMaxThreads = 1024, kLanes = 32;

std::map<std::string_view, HostKernel>& registry() {
  static std::map<std::string_view, HostKernel> kernels;
  return kernels;
}

enum class State : uint8_t { kReady, kAtWarp, kAtBlock, kDone };

struct Fiber {
  std::unique_ptr<std::byte[]> stack;
  void* top = nullptr;  // of its stack, while it does not run
  State state = State::kDone;
  uint64_t published = 0;  // how often; odd and even ones use different halves of the buffer
  void* fake_stack = nullptr;
};

// The machine: fibers are made once and reused by all blocks.
struct Machine {
  void* scheduler = nullptr;
  const void* scheduler_stack = nullptr;
  size_t scheduler_stack_bytes = 0;
  void* scheduler_fake_stack = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers;
  unsigned current = 0;
  KernelBody body = nullptr;
  const void* args = nullptr;
  std::unique_ptr<std::byte[]> shared;
  std::vector<std::byte> exchange;  // [half][thread][kExchangeBytes]
  struct Computed {                 // from what the lanes of a warp published last
    uint64_t published = 0;
    float values[kExchangeBytes / sizeof(float)];
  };
  Computed computed[kMaxThreads / kLanes];
};

Machine& machine() {
  static Machine m;
  return m;
}

// Gives control back to the scheduler.
void leave() {
  Machine& m = machine();
  Fiber& f = *m.fibers[m.current];
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&f.fake_stack, m.scheduler_stack, m.scheduler_stack_bytes);
#endif
  tk_switch_stack(&f.top, m.scheduler);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(f.fake_stack, &m.scheduler_stack, &m.scheduler_stack_bytes);
#endif
}

void fiber_main() {
  Machine& m = machine();
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(nullptr, &m.scheduler_stack, &m.scheduler_stack_bytes);
#endif
  for (;;) {
    m.body(m.args);
    m.fibers[m.current]->state = State::kDone;
    leave();
  }
}

void enter(unsigned index) {
  Machine& m = machine();
  Fiber& f = *m.fibers[index];
  m.current = index;
  threadIdx = {index, 0, 0};
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&m.scheduler_fake_stack, f.stack.get(), kStackBytes);
#endif
  tk_switch_stack(&m.scheduler, f.top);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(m.scheduler_fake_stack, nullptr, nullptr);
#endif
}

// A stack that looks as if fiber_main had called tk_switch_stack before its first instruction.
void* first_frame(std::byte* stack) {
  auto end = reinterpret_cast<uintptr_t>(stack + kStackBytes) / 16 * 16;
  auto entry = reinterpret_cast<uintptr_t>(&fiber_main);
#if defined(__aarch64__)
  auto* frame = reinterpret_cast<uintptr_t*>(end - 160);
  frame[11] = entry;  // x30
#else
  auto* frame = reinterpret_cast<uintptr_t*>(end - 64);
  frame[6] = entry;  // where ret goes; the stack is then as after a call
#endif
  return frame;
}

void need_fibers(unsigned count) {
  Machine& m = machine();
  while (m.fibers.size() < count) {
    auto f = std::make_unique<Fiber>();
    f->stack = std::make_unique<std::byte[]>(kStackBytes);
    f->top = first_frame(f->stack.get());
    m.fibers.push_back(std::move(f));
  }
  m.exchange.resize(size_t{kMaxThreads} * 2 * kExchangeBytes);
}

// Runs a warp until its lanes are done or wait for the block.
void run_warp(unsigned first) {
  Machine& m = machine();
  for (;;) {
    unsigned waiting = 0;
    for (unsigned i = first; i < first + kLanes; ++i) {
      if (m.fibers[i]->state == State::kReady) enter(i);
      if (m.fibers[i]->state == State::kAtWarp) ++waiting;
    }
    if (waiting == 0) return;
    TK_CHECK(waiting == kLanes, "a warp: {} of 32 lanes wait for each other", waiting);
    for (unsigned i = first; i < first + kLanes; ++i) m.fibers[i]->state = State::kReady;
  }
}

void run_block(unsigned threads) {
  Machine& m = machine();
  for (unsigned i = 0; i < threads; ++i) m.fibers[i]->state = State::kReady;
  for (;;) {
    unsigned waiting = 0;
    for (unsigned first = 0; first < threads; first += kLanes) run_warp(first);
    for (unsigned i = 0; i < threads; ++i) waiting += m.fibers[i]->state == State::kAtBlock;
    if (waiting == 0) return;
    TK_CHECK(waiting == threads, "a block: {} of {} threads wait at a barrier", waiting, threads);
    for (unsigned i = 0; i < threads; ++i) m.fibers[i]->state = State::kReady;
  }
}

std::byte* exchange_slot(unsigned thread, uint64_t half) {
  return machine().exchange.data() + (half * kMaxThreads + thread) * kExchangeBytes;
}

}  // namespace

Registration::Registration(const HostKernel& kernel) { registry().emplace(kernel.name, kernel); }

const HostKernel* find_kernel(std::string_view name) {
  auto it = registry().find(name);
  return it == registry().end() ? nullptr : &it->second;
}

void run_grid(const HostKernel& kernel, const void* args, Dim3 grid, unsigned threads,
              size_t shared_bytes) {
  TK_CHECK(threads > 0 && threads <= kernel.max_threads && threads % kLanes == 0, "{}: {} threads",
           kernel.name, threads);
  Machine& m = machine();
  need_fibers(threads);
  m.body = kernel.body;
  m.args = args;
  m.shared = std::make_unique<std::byte[]>(shared_bytes);
  gridDim = grid;
  blockDim = {threads, 1, 1};
  try {
    for (unsigned z = 0; z < grid.z; ++z)
      for (unsigned y = 0; y < grid.y; ++y)
        for (unsigned x = 0; x < grid.x; ++x) {
          blockIdx = {x, y, z};
          run_block(threads);
        }
  } catch (...) {
    m.fibers.clear();  // some are in the middle of the kernel
    for (Machine::Computed& c : m.computed) c.published = 0;
    throw;
  }
}

void wait_block() {
  machine().fibers[machine().current]->state = State::kAtBlock;
  leave();
}
void wait_warp() {
  machine().fibers[machine().current]->state = State::kAtWarp;
  leave();
}
std::byte* dynamic_shared() { return machine().shared.get(); }

void publish(const void* value, size_t bytes) {
  Machine& m = machine();
  Fiber& f = *m.fibers[m.current];
  ++f.published;
  std::memcpy(exchange_slot(m.current, f.published % 2), value, bytes);
  wait_warp();
}

const std::byte* published(unsigned lane) {
  Machine& m = machine();
  return exchange_slot(m.current / kLanes * kLanes + lane, m.fibers[m.current]->published % 2);
}

const float* computed_once(void (*compute)(float* values)) {
  Machine& m = machine();
  Machine::Computed& now = m.computed[m.current / kLanes];
  const uint64_t published_now = m.fibers[m.current]->published;
  if (now.published != published_now) {
    now.published = published_now;
    compute(now.values);
  }
  return now.values;
}

}  // namespace simt

// Lane 4g + t has of a the rows g and g + 8, of b the column g, and of both the pairs of k at 2t
// and 2t + 8; of c the columns 2t and 2t + 1.
namespace {

// What a lane brings to a product, and the products of all lanes in the order in which they are
// added: k of 2t, 2t + 1, 2t + 8, 2t + 9 for t = 0..3.
struct Fragments {
  uint32_t a[4], b[2];
  float c[4];
};
constexpr unsigned kProducts = 16, kColumns = 8;

// The results of all lanes, four each.
template <float (*value)(uint16_t)>
void mma_warp(float* out) {
  double a[16][kProducts], b[kProducts][kColumns];
  Fragments lanes[32];
  for (unsigned lane = 0; lane < 32; ++lane) {
    std::memcpy(&lanes[lane], simt::published(lane), sizeof(Fragments));
    const unsigned row = lane / 4, t = lane % 4;
    for (unsigned half = 0; half < 2; ++half)
      for (unsigned high = 0; high < 2; ++high) {
        const unsigned at = 4 * t + 2 * half + high, shift = 16 * high;
        auto number = [shift](uint32_t v) {
          return static_cast<double>(value(static_cast<uint16_t>(v >> shift)));
        };
        a[row][at] = number(lanes[lane].a[2 * half]);
        a[row + 8][at] = number(lanes[lane].a[2 * half + 1]);
        b[at][row] = number(lanes[lane].b[half]);  // its column
      }
  }
  for (unsigned row = 0; row < 16; ++row) {
    double sums[kColumns];
    auto place = [row](unsigned column) {
      return std::pair(row % 8 * 4 + column / 2, row / 8 * 2 + column % 2);
    };
    for (unsigned column = 0; column < kColumns; ++column) {
      auto [lane, i] = place(column);
      sums[column] = lanes[lane].c[i];
    }
    for (unsigned at = 0; at < kProducts; ++at)
      for (unsigned column = 0; column < kColumns; ++column)
        sums[column] += a[row][at] * b[at][column];
    for (unsigned column = 0; column < kColumns; ++column) {
      auto [lane, i] = place(column);
      out[lane * 4 + i] = static_cast<float>(sums[column]);
    }
  }
}

template <float (*value)(uint16_t)>
void mma_host(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const Fragments mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}, {c[0], c[1], c[2], c[3]}};
  simt::publish(&mine, sizeof mine);
  std::memcpy(c, simt::computed_once(mma_warp<value>) + threadIdx.x % 32 * 4, sizeof c);
}

// Element (row, column) of matrix m of those whose rows the lanes have published.
uint16_t matrix_element(unsigned m, unsigned row, unsigned column) {
  const uint16_t* at;
  std::memcpy(&at, simt::published(m * 8 + row), sizeof at);
  return at[column];
}

}  // namespace

void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma_host<bf16_to_f32>(c, a, b0, b1);
}
void mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma_host<f16_to_f32>(c, a, b0, b1);
}
void load_matrices(uint32_t (&r)[4], const void* row) {
  simt::publish(&row, sizeof row);
  const unsigned lane = threadIdx.x % 32;
  for (unsigned m = 0; m < 4; ++m)
    r[m] = matrix_element(m, lane / 4, lane % 4 * 2) |
           uint32_t{matrix_element(m, lane / 4, lane % 4 * 2 + 1)} << 16;
}
void load_matrices_transposed(uint32_t (&r)[4], const void* row) {
  simt::publish(&row, sizeof row);
  const unsigned lane = threadIdx.x % 32;
  for (unsigned m = 0; m < 4; ++m)
    r[m] = matrix_element(m, lane % 4 * 2, lane / 4) |
           uint32_t{matrix_element(m, lane % 4 * 2 + 1, lane / 4)} << 16;
}

}  // namespace tokamak::cuda
