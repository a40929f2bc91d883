// Runs blocks of a CUDA kernel on a CPU. Every thread is a fiber, and barriers, exchanges within a
// warp and polls switch between them. Warps run in a random order. Stores for other blocks arrive
// at random times. So do bulk copies, but in every second launch they arrive only when a thread
// waits for them. Code that forgets to wait therefore fails.
//
// The engine does not detect races between plain stores and loads of threads that never wait for
// each other, since threads run one at a time. It says nothing about speed, or about the code that
// a compiler for GPUs makes of the source.
#include "engine.h"
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>
#include <ucontext.h>
#include <unordered_map>
#include <vector>

Index threadIdx, blockIdx, gridDim, blockDim;
unsigned char *emulated_shared;

namespace {

// ---- stacks

const size_t STACK = 256 << 10;
#if defined(__x86_64__)
// Saves the registers that a function must preserve on the stack that it leaves.
asm(R"(
.text
emulated_switch:
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
)");
extern "C" void emulated_switch(void **leave, void *enter) asm("emulated_switch");
struct Stack {
    void *at = nullptr;
    void begin(unsigned char *memory, void (*entry)()) {
        void **top = (void **)(memory + STACK) - 2;
        *top = (void *)entry;
        memset(top - 6, 0, 6 * sizeof(void *));
        at = top - 6;
    }
    static void change(Stack &leave, Stack &enter) { emulated_switch(&leave.at, enter.at); }
};
#else
struct Stack {
    ucontext_t context;
    void begin(unsigned char *memory, void (*entry)()) {
        getcontext(&context);
        context.uc_stack.ss_sp = memory, context.uc_stack.ss_size = STACK, context.uc_link = nullptr;
        makecontext(&context, entry, 0);
    }
    static void change(Stack &leave, Stack &enter) { swapcontext(&leave.context, &enter.context); }
};
#endif
unsigned char *stack_memory(size_t i) {
    static std::vector<unsigned char *> all;
    while (all.size() <= i) {
        void *p = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) perror("a thread's stack"), abort();
        mprotect(p, 4096, PROT_NONE);
        all.push_back((unsigned char *)p);
    }
    return all[i];
}

// ---- threads, warps, blocks

struct Copy16 {
    unsigned char *to;
    const void *from;
    bool inside;
    void run() const {
        if (inside) memcpy(to, from, 16);
        else memset(to, 0, 16);
    }
};
struct Thread {
    Stack stack;
    bool done = false;
    std::vector<std::vector<Copy16>> copies; // copies by group
};
struct SyncPoint {
    unsigned arrived = 0, generation = 0;
};
// Operands of mma: (rows, K) of the first, (columns, K) of the second.
struct Operands {
    float first[16][16], second[8][16];
};
struct Warp {
    unsigned alive;              // lanes that have not returned
    unsigned idle = 0, polls = 0; // lanes in a row that wait, lanes that have polled
    unsigned lane = 0;           // runs when the warp is next
    SyncPoint sync;
    uint64_t given[2][32];
    Operands operands[2];
};
struct NamedBarrier : SyncPoint {
    unsigned expected = 0;
};
struct MBarrier {
    unsigned count, pending, phase;
    long long bytes;
};
struct Block {
    Index index;
    unsigned alive;
    unsigned char *shared;
    SyncPoint all;
    NamedBarrier named[16];
    std::unordered_map<unsigned char *, MBarrier> mbarriers;
};
// Bulk copies and stores that arrive some time later.
struct BulkCopy {
    void *to;
    const void *from;
    unsigned bytes, block;
    unsigned char *barrier;
    void run() const;
};
struct WordStore {
    void *to;
    uint64_t value;
    unsigned bytes;
    void run() const { memcpy(to, &value, bytes); }
};

const EmulatedLaunch *launch;
std::vector<Thread> threads;
std::vector<Warp> warps;
std::vector<Block> blocks;
std::vector<unsigned> alive_warps;
std::vector<BulkCopy> copies;
std::vector<WordStore> stores;
Stack outside;
unsigned current, clock_now;
bool copies_are_late; // in this launch copies end only when a thread waits for them
uint64_t random_state = 0x9E3779B97F4A7C15ull, turns;
std::chrono::steady_clock::time_point started;

unsigned random_below(unsigned n) {
    random_state ^= random_state << 13, random_state ^= random_state >> 7, random_state ^= random_state << 17;
    return (unsigned)((random_state >> 32) * n >> 32);
}
unsigned warps_of_block() { return (launch->n_threads + 31) / 32; }
// blocks begin with a warp
unsigned thread_of(unsigned warp, unsigned lane) { return warp * 32 + lane; }
Warp &warp() { return warps[current / 32]; }
unsigned block_number() { return current / 32 / warps_of_block(); }
Block &block() { return blocks[block_number()]; }

[[noreturn]] void give_up(const char *why) {
    fflush(stdout);
    fprintf(stderr, "%s: %s (block %u %u %u, thread %u)\n", launch->name, why, blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x);
    abort();
}

template <class T> void run_one(std::vector<T> &of, size_t i) {
    const T it = of[i];
    of[i] = of.back();
    of.pop_back();
    it.run();
}
template <class T> void run_some(std::vector<T> &of) {
    for (size_t n = (of.size() + 3) / 4; n > 0; n--) run_one(of, random_below(of.size()));
}

void enter(unsigned to) {
    const unsigned from = current;
    if (to == from) return;
    current = to;
    warp().lane = to % 32;
    threadIdx.x = to - block_number() * warps_of_block() * 32;
    if (from / 32 / warps_of_block() != block_number()) blockIdx = block().index, emulated_shared = block().shared;
    Stack::change(threads[from].stack, threads[to].stack);
}
unsigned next_lane(unsigned w, unsigned lane) {
    for (unsigned i = 1; i <= 32; i++)
        if (const unsigned at = thread_of(w, (lane + i) % 32); !threads[at].done) return at;
    give_up("a warp without threads");
}
void leave_warp() {
    if (random_below(4) == 0) {
        run_some(stores);
        if (!copies_are_late) run_some(copies);
    }
    if (++turns % (1 << 20) == 0) {
        static const char *limit = getenv("INGLE_EMULATED_SECONDS");
        if (std::chrono::steady_clock::now() - started > std::chrono::seconds(limit ? atoi(limit) : 300)) give_up("does not end");
    }
    const unsigned w = alive_warps[random_below(alive_warps.size())], at = thread_of(w, warps[w].lane);
    enter(w == current / 32 || threads[at].done ? next_lane(w, warps[w].lane) : at);
}
// The thread has to wait, so another lane runs, and another warp when `asked` counts all lanes.
void give_way(unsigned &asked) {
    if (++asked >= warp().alive) asked = 0, leave_warp();
    else enter(next_lane(current / 32, current % 32));
}
template <class Ready> void wait_until(Ready ready) {
    while (!ready()) give_way(warp().idle);
    warp().idle = 0;
}
void release(SyncPoint &at) { at.arrived = 0, at.generation++; }
void arrive_and_wait(SyncPoint &at, const unsigned &alive) {
    const unsigned mine = at.generation;
    if (++at.arrived == alive) release(at), warp().idle = 0;
    else wait_until([&] { return at.generation != mine; });
}

void run_thread() {
    launch->kernel(launch->arguments);
    Thread &mine = threads[current];
    mine.done = true;
    Warp &w = warp();
    Block &b = block();
    w.alive--, b.alive--;
    if (w.alive > 0 && w.sync.arrived == w.alive) release(w.sync);
    if (b.alive > 0 && b.all.arrived == b.alive) release(b.all);
    if (w.alive > 0) enter(next_lane(current / 32, current % 32));
    alive_warps.erase(std::find(alive_warps.begin(), alive_warps.end(), current / 32));
    if (!alive_warps.empty()) leave_warp();
    Stack::change(mine.stack, outside);
}

void run_blocks(const std::vector<Index> &indices) {
    const unsigned n_warps = warps_of_block();
    threads.resize(indices.size() * n_warps * 32);
    warps.assign(indices.size() * n_warps, Warp());
    blocks.assign(indices.size(), Block());
    alive_warps.clear();
    static std::vector<unsigned char *> memory;
    for (unsigned b = 0; b < indices.size(); b++) {
        if (memory.size() <= b) memory.push_back((unsigned char *)aligned_alloc(1024, 256 << 10));
        // Memory that no thread has written is NaN, in halves and in f32.
        memset(memory[b], 0xff, launch->shared_bytes);
        blocks[b].index = indices[b], blocks[b].alive = launch->n_threads, blocks[b].shared = memory[b];
        for (unsigned i = 0; i < n_warps * 32; i++) {
            Thread &t = threads[b * n_warps * 32 + i];
            t.done = i >= launch->n_threads, t.copies.clear();
            if (!t.done) t.stack.begin(stack_memory(b * n_warps * 32 + i), run_thread);
        }
        for (unsigned w = 0; w < n_warps; w++) {
            warps[b * n_warps + w].alive = std::min(32u, launch->n_threads - 32 * w);
            alive_warps.push_back(b * n_warps + w);
        }
    }
    current = 0, threadIdx = {0, 0, 0}, blockIdx = blocks[0].index, emulated_shared = blocks[0].shared;
    copies_are_late = random_below(2);
    Stack::change(outside, threads[0].stack);
    while (!copies.empty()) run_some(copies);
    emulated_fence();
}

// ---- mbarriers

MBarrier &mbarrier(Block &of, unsigned char *at) {
    const auto found = of.mbarriers.find(at);
    if (found == of.mbarriers.end()) give_up("an mbarrier that was not initialised");
    return found->second;
}
void turn(MBarrier &b) {
    if (b.pending == 0 && b.bytes == 0) b.pending = b.count, b.phase ^= 1;
}
void BulkCopy::run() const {
    memcpy(to, from, bytes);
    MBarrier &b = mbarrier(blocks[block], barrier);
    b.bytes -= bytes;
    turn(b);
}

// ---- halves

float product(const float *a, const float *b) {
    typedef float Eight __attribute__((vector_size(32)));
    Eight x[2], y[2];
    memcpy(x, a, sizeof x), memcpy(y, b, sizeof y);
    const Eight sums = x[0] * y[0] + x[1] * y[1];
    float sum = 0;
    for (int i = 0; i < 8; i++) sum += sums[i];
    return sum;
}
// Operands of all lanes; kept until the warp's next product but one.
const Operands &give_operands(const unsigned *a, const unsigned *b) {
    Warp &w = warp();
    Operands &all = w.operands[w.sync.generation & 1];
    const unsigned g = current % 32 / 4, t = current % 4;
    for (unsigned i = 0; i < 8; i++) all.first[g + i / 2 % 2 * 8][2 * t + i % 2 + i / 4 * 8] = half_value(a[i / 2] >> (16 * (i % 2)));
    for (unsigned i = 0; b && i < 4; i++) all.second[g][2 * t + i % 2 + i / 2 * 8] = half_value(b[i / 2] >> (16 * (i % 2)));
    emulated_sync_warp();
    return all;
}
// An operand in shared memory by its descriptor, swizzled by 128 bytes.
struct SharedOperand {
    unsigned start, leading, stride;
    SharedOperand(uint64_t operand) : start((operand & 0x3fff) << 4), leading((operand >> 16 & 0x3fff) << 4), stride((operand >> 32 & 0x3fff) << 4) {
        if (operand >> 62 != 1) give_up("an operand of wgmma without a swizzle of 128 bytes");
    }
    // The row of N or M and the column of K; the other way round in memory where it is transposed.
    float at(int row, int k, bool transposed) const {
        unsigned at = transposed ? start + row / 64 * leading + k / 8 * stride + k % 8 * 128 + row % 64 * 2 : start + row / 8 * stride + row % 8 * 128 + k * 2;
        at ^= (at >> 7 & 7) << 4;
        uint16_t bits;
        memcpy(&bits, emulated_shared + at, 2);
        return half_value(bits);
    }
};
// `rows`: those of the first operand that the lane's sums are of, 8 apart.
void multiply_64xn(float *d, unsigned n, const float (&rows)[2][16], uint64_t b, bool accumulate, bool transposed) {
    const SharedOperand second(b);
    for (unsigned i = 0; i < n / 2; i++) {
        const int column = 8 * (i / 4) + 2 * (current % 4) + i % 2;
        float columns[16];
        for (int k = 0; k < 16; k++) columns[k] = second.at(column, k, transposed);
        d[i] = product(rows[i / 2 % 2], columns) + (accumulate ? d[i] : 0.0f);
    }
    emulated_sync_warp();
}

} // namespace

extern "C" {

void emulated_seed(uint64_t seed) { random_state = (seed + 1) * 0x9E3779B97F4A7C15ull; }
const char *emulated_kernel() { return launch ? launch->name : nullptr; }

void emulated_run(const EmulatedLaunch *of) {
    launch = of, started = std::chrono::steady_clock::now();
    gridDim = of->grid, blockDim = {of->n_threads, 1, 1};
    std::vector<Index> together;
    for (unsigned z = 0; z < of->grid.z; z++)
        for (unsigned y = 0; y < of->grid.y; y++)
            for (unsigned x = 0; x < of->grid.x; x++) {
                together.push_back({x, y, z});
                if (!of->together) run_blocks(together), together.clear();
            }
    if (!together.empty()) run_blocks(together);
    launch = nullptr;
}

void emulated_sync_block() { arrive_and_wait(block().all, block().alive); }
void emulated_sync_warp() { arrive_and_wait(warp().sync, warp().alive); }
void emulated_poll() { give_way(warp().polls); }
void emulated_barrier(unsigned id, unsigned n_threads, bool waits) {
    NamedBarrier &b = block().named[id & 15];
    if (b.arrived == 0) b.expected = n_threads;
    if (b.expected != n_threads) give_up("threads that disagree about a barrier");
    const unsigned mine = b.generation;
    if (++b.arrived == n_threads) release(b), warp().idle = 0;
    else if (waits) wait_until([&] { return b.generation != mine; });
}
const uint64_t *emulated_gather(uint64_t mine) {
    Warp &w = warp();
    uint64_t(&all)[32] = w.given[w.sync.generation & 1];
    all[current % 32] = mine;
    emulated_sync_warp();
    return all;
}
uint64_t emulated_exchange(uint64_t mine, unsigned from) { return emulated_gather(mine)[from % 32]; }
unsigned emulated_clock() { return clock_now += 20; }

void emulated_mbarrier_init(unsigned char *at, unsigned count) { block().mbarriers[at] = {count, count, 0, 0}; }
void emulated_mbarrier_arrive(unsigned char *at, unsigned times) {
    MBarrier &b = mbarrier(block(), at);
    if (b.pending < times) give_up("more arrivals at an mbarrier than it counts");
    b.pending -= times;
    turn(b);
}
void emulated_mbarrier_expect(unsigned char *at, unsigned bytes) {
    mbarrier(block(), at).bytes += bytes;
    emulated_mbarrier_arrive(at, 1);
}
void emulated_mbarrier_wait(unsigned char *at, unsigned parity) {
    MBarrier &b = mbarrier(block(), at);
    wait_until([&] {
        if (b.phase == parity && copies_are_late && random_below(8) == 0)
            for (size_t i = copies.size(); i-- > 0;)
                if (i < copies.size() && copies[i].barrier == at) run_one(copies, i);
        return b.phase != parity;
    });
}
void emulated_bulk_copy(unsigned char *to, const void *from, unsigned bytes, unsigned char *barrier) {
    if (((uintptr_t)to | (uintptr_t)from | bytes) % 16) give_up("a bulk copy that is not of whole 16 bytes");
    copies.push_back({to, from, bytes, block_number(), barrier});
}
void emulated_store(void *to, uint64_t value, unsigned bytes) { stores.push_back({to, value, bytes}); }
void emulated_fence() {
    while (!stores.empty()) run_some(stores);
}

void emulated_copy_16(unsigned char *to, const void *from, bool inside) {
    const Copy16 copy = {to, from, inside};
    if (!copies_are_late) return copy.run();
    auto &groups = threads[current].copies;
    if (groups.empty()) groups.emplace_back();
    groups.back().push_back(copy);
}
void emulated_copy_commit() { threads[current].copies.emplace_back(); }
void emulated_copy_wait(unsigned n_groups) {
    auto &groups = threads[current].copies;
    while (groups.size() > n_groups + 1) {
        for (const Copy16 &copy : groups.front()) copy.run();
        groups.erase(groups.begin());
    }
}

void emulated_mma(float *d, const unsigned *a, unsigned b0, unsigned b1) {
    const unsigned b[2] = {b0, b1}, g = current % 32 / 4, t = current % 4;
    const Operands &all = give_operands(a, b);
    for (unsigned e = 0; e < 4; e++) d[e] += product(all.first[g + 8 * (e / 2)], all.second[2 * t + e % 2]);
}
void emulated_ldmatrix(unsigned *v, const unsigned char *row, bool transposed) {
    const unsigned lane = current % 32;
    const uint64_t *rows = emulated_gather((uint64_t)row);
    for (unsigned m = 0; m < 4; m++) {
        v[m] = 0;
        for (unsigned i = 0; i < 2; i++) {
            const unsigned r = transposed ? 2 * (lane % 4) + i : lane / 4, column = transposed ? lane / 4 : 2 * (lane % 4) + i;
            uint16_t bits;
            memcpy(&bits, (const unsigned char *)rows[8 * m + r] + 2 * column, 2);
            v[m] |= (unsigned)bits << (16 * i);
        }
    }
    // All lanes have read the rows before the warp may overwrite them.
    emulated_sync_warp();
}
unsigned emulated_movmatrix(unsigned v) {
    const unsigned lane = current % 32;
    const uint64_t *all = emulated_gather(v);
    unsigned result = 0;
    // Column c of row r is in lane 4 r + c / 2.
    for (unsigned i = 0; i < 2; i++) {
        const unsigned row = 2 * (lane % 4) + i, column = lane / 4;
        result |= ((unsigned)all[4 * row + column / 2] >> (16 * (column % 2)) & 65535) << (16 * i);
    }
    return result;
}
void emulated_wgmma(float *d, unsigned n, const unsigned *a, uint64_t b, bool accumulate, bool transposed) {
    const Operands &all = give_operands(a, nullptr);
    float rows[2][16];
    for (unsigned r = 0; r < 2; r++) memcpy(rows[r], all.first[current % 32 / 4 + 8 * r], sizeof rows[r]);
    multiply_64xn(d, n, rows, b, accumulate, transposed);
}
void emulated_wgmma_shared(float *d, unsigned n, uint64_t a, uint64_t b, bool accumulate) {
    const SharedOperand first(a);
    float rows[2][16];
    emulated_sync_warp();
    for (unsigned r = 0; r < 2; r++)
        for (int k = 0; k < 16; k++) rows[r][k] = first.at(current / 32 % warps_of_block() % 4 * 16 + current % 32 / 4 + 8 * r, k, false);
    multiply_64xn(d, n, rows, b, accumulate, false);
}

} // extern "C"
