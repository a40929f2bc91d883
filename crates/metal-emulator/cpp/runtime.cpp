// Executes threadgroups on the calling thread: each thread of a threadgroup is a fiber on a stack
// of its own (x86-64, System V).
//
// A lane runs until it reaches an operation that the lanes of its simdgroup execute together, or a
// barrier. Then the next lane of the simdgroup in the chosen order runs; when none can, the
// exchange is completed and the lanes continue in that order. When all lanes of a simdgroup wait at
// a barrier or have finished, the next simdgroup runs.
//
// Built in three variants: for checked libraries, with the callbacks of access.cpp; with MSL_ASAN
// or MSL_TSAN for a sanitizer's runner, which must be notified of every stack switch.
//
// Past 600 lines: fibers, exchanges and threadgroups are one translation unit, so that the compiler
// inlines between them.
#include "worker.h"

#ifdef MSL_TSAN
extern "C" {
void * __tsan_get_current_fiber(void);
void * __tsan_create_fiber(unsigned);
void __tsan_switch_to_fiber(void *, unsigned);
void __tsan_acquire(void *);
void __tsan_release(void *);
}
#define ACQUIRE(x) __tsan_acquire(x)
#define RELEASE(x) __tsan_release(x)
#else
#define ACQUIRE(x) (void) 0
#define RELEASE(x) (void) 0
#endif
#if defined(MSL_ASAN) || defined(MSL_TSAN)
// The sanitizer checks accesses, so there is nothing to prepare.
void msl_access_prepare(Worker *, const msl_dispatch *) {}
void msl_access_finish(Worker *) {}
extern "C" __attribute__((visibility("hidden"))) void msl_atomic_access(const volatile void *) {}
#endif
#ifdef MSL_ASAN
extern "C" {
void __sanitizer_start_switch_fiber(void ** save, const void * bottom, msl_size size);
void __sanitizer_finish_switch_fiber(void * save, const void ** old, msl_size * old_size);
}
#endif

extern "C" {
void * mmap(void *, msl_size, int, int, int, long);
int mprotect(void *, msl_size, int);
}

asm(R"(
.text
.globl msl_switch
.hidden msl_switch
.type msl_switch, @function
msl_switch:            # rdi: where to save the stack pointer, rsi: the stack pointer to go on with
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
.size msl_switch, .-msl_switch
)");
extern "C" void msl_switch(void ** save, void * load);

// Callbacks do nothing while this is false: constants are being initialised.
__attribute__((visibility("hidden"))) volatile bool msl_running;

extern "C" __attribute__((used, visibility("hidden"))) volatile msl_constants msl_constant_table = { "MSL function constants table 01", 0, {} };

// Not memcpy, which a sanitizer would attribute to the kernel. (The runtime is compiled with
// -fno-builtin, so that clang does not turn the loop into one.)
typedef msl_u64 __attribute__((aligned(1), may_alias)) Word;
static inline void copy(void * to, const void * from, msl_u32 size) {
    msl_u32 i = 0;
    for (; i + 8 <= size; i += 8) *(Word *) ((msl_u8 *) to + i) = *(const Word *) ((const msl_u8 *) from + i);
    for (; i < size; i++) ((msl_u8 *) to)[i] = ((const msl_u8 *) from)[i];
}

extern "C" bool msl_function_constant(msl_u32 index, void * out, msl_u32 size) {
    for (msl_u64 i = 0; i < msl_constant_table.count; i++)
        if (msl_constant_table.value[i].index == index) {
            const msl_u64 bits = msl_constant_table.value[i].bits;
            copy(out, &bits, size);
            return true;
        }
    return false;
}

// ---------------------------------------------------------------- stack switches

#ifdef MSL_ASAN
static void * stack_bottom(Lane * lane) { return stack_at(lane->worker, (msl_u64) (lane - lane->worker->lanes)) + STACK_GUARD; }
#endif

static void to_lane(Worker * w, void ** save, void ** fake, Lane * to) {
    w->counters.switches++;
#ifdef MSL_TSAN
    __tsan_switch_to_fiber(to->tsan, 1);
#endif
#ifdef MSL_ASAN
    __sanitizer_start_switch_fiber(fake, stack_bottom(to), STACK - STACK_GUARD);
#endif
    (void) fake;
    msl_switch(save, to->sp);
}

static void to_scheduler(Lane * l) {
    Worker * w = l->worker;
#ifdef MSL_TSAN
    __tsan_switch_to_fiber(w->scheduler_tsan, 1);
#endif
#ifdef MSL_ASAN
    __sanitizer_start_switch_fiber(l->done ? nullptr : &l->fake, w->scheduler_bottom, w->scheduler_size);
#endif
    msl_switch(&l->sp, w->scheduler_sp);
}

// Called on the new stack right after a switch.
static void arrived(void * fake, Worker * w) {
#ifdef MSL_ASAN
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
    (void) fake, (void) w;
}

[[noreturn]] void msl_fail(Lane * l) {
    l->worker->failed = true;
    to_scheduler(l);
    __builtin_trap();
}

void msl_overdue(Worker * w) {
    Lane * l = msl_current_lane();
    msl_fault_of(l, MSL_OVERDUE)->size = w->most_steps;
    msl_fail(l);
}

msl_fault * msl_fault_of(Lane * l, msl_u32 kind) {
    msl_fault * f = l->worker->fault;
    f->kind = kind;
    for (int d = 0; d < 3; d++) {
        f->threadgroup[d] = l->worker->group.threadgroup_position_in_grid[d];
        f->thread[d] = l->context.thread_position_in_threadgroup[d];
    }
    return f;
}

static void copy_text(char * to, msl_size room, const char * from) {
    msl_size i = 0;
    for (; from && from[i] && i + 1 < room; i++) to[i] = from[i];
    to[i] = 0;
}

void msl_fault_site(msl_fault * f, const msl_site * site, const char * name) {
    f->line = site->line;
    f->column = site->column;
    copy_text(f->file, sizeof f->file, site->file);
    copy_text(f->name, sizeof f->name, name);
}

// ---------------------------------------------------------------- a simdgroup

static bool same(const msl_site & a, const msl_site & b) { return a.line == b.line && a.column == b.column && a.file == b.file; }

static void multiply(Simdgroup * g) {
    // Lane -> row and first column of its two elements: the layout of Apple's GPUs.
    float a[8][8], b[8][8], d[8][8];
    for (msl_u32 i = 0; i < 32; i++) {
        float v[6];
        __builtin_memcpy(v, g->slots[g->parity][i], sizeof v);
        const msl_u32 quad = i / 4, row = (quad & 4) + (i / 2) % 4, column = (quad & 2) * 2 + (i % 2) * 2;
        a[row][column] = v[0], a[row][column + 1] = v[1];
        b[row][column] = v[2], b[row][column + 1] = v[3];
        d[row][column] = v[4], d[row][column + 1] = v[5];
    }
    for (int r = 0; r < 8; r++)
        for (int k = 0; k < 8; k++)
            for (int c = 0; c < 8; c++) d[r][c] += a[r][k] * b[k][c];
    for (msl_u32 i = 0; i < 32; i++) {
        const msl_u32 quad = i / 4, row = (quad & 4) + (i / 2) % 4, column = (quad & 2) * 2 + (i % 2) * 2;
        __builtin_memcpy(g->slots[g->parity][i], &d[row][column], 8);
    }
}

static msl_u32 random_below(Worker * w, msl_u32 n) {
    w->random = w->random * 6364136223846793005ul + 1442695040888963407ul;
    return (msl_u32) ((w->random >> 33) % n);
}

static void shuffle(Worker * w, msl_u8 * order, msl_u32 n, msl_u32 how) {
    for (msl_u32 i = 0; i < n; i++) order[i] = (msl_u8) (how == 1 ? n - 1 - i : i);
    if (how == 2)
        for (msl_u32 i = n; i > 1; i--) {
            const msl_u32 j = random_below(w, i);
            const msl_u8 t = order[i - 1];
            order[i - 1] = order[j];
            order[j] = t;
        }
}

// Reports lanes that wait at different places: the lowest lane at an exchange, and the lanes at the
// same exchange.
static void fail_divergent(Worker * w, Simdgroup * g) {
    Lane * first = g->lanes[__builtin_ctz(g->gathered)];
    msl_fault * f = msl_fault_of(first, MSL_DIVERGENT_SIMDGROUP);
    f->lanes = 0;
    for (msl_u32 i = 0; i < g->n; i++) {
        const Lane * l = g->lanes[i];
        if (g->gathered >> i & 1 && l->operation == first->operation && same(l->site, first->site)) f->lanes |= 1u << i;
    }
    msl_fault_site(f, &first->site, nullptr);
    w->failed = true;
}

// All lanes wait or have finished: completes the exchange that they wait for. Returns false if
// there is none.
static bool complete(Worker * w, Simdgroup * g) {
    if (!g->gathered) return false;
    if (g->apart || g->at_barrier || ((g->operation == MSL_MATRIX || g->operation == MSL_TENSOR) && g->gathered != ~0u)) {
        fail_divergent(w, g);
        return false;
    }
    w->counters.operations[g->operation]++;
    g->parity ^= 1;
    g->active = g->ready = g->gathered;
    g->gathered = 0;
    g->results = 0;
    if (g->operation == MSL_MATRIX) multiply(g);
    g->cursor = 0;
    if (w->how == 2) shuffle(w, g->order, g->n, 2);
    return true;
}

// The lane cannot continue: runs others of its simdgroup until it can. Does not return for a lane
// that has finished.
static void others(Lane * l) {
    Worker * w = l->worker;
    Simdgroup * g = l->simdgroup;
    do {
        while (g->cursor < g->n) {
            const msl_u32 i = g->order[g->cursor++];
            if (!(g->ready >> i & 1)) continue;
            Lane * next = g->lanes[i];
            if (next == l) return;
            to_lane(w, &l->sp, l->done ? nullptr : &l->fake, next);
            arrived(l->fake, w);
            return;
        }
    } while (complete(w, g));
    to_scheduler(l);
    arrived(l->fake, w);
}

extern "C" void msl_exchange(msl_u32 operation, const void * value, msl_u32 size, const msl_site * site, msl_slots * out) {
    Lane * l = msl_current_lane();
    Simdgroup * g = l->simdgroup;
    msl_step(l->worker);
    copy(g->slots[g->parity ^ 1][l->lane], value, size);
    l->site = *site;
    l->operation = operation;
    const msl_u32 bit = 1u << l->lane;
    if (!g->gathered) g->operation = operation, g->site = *site;
    else if (operation != g->operation || !same(*site, g->site)) g->apart |= bit;
    g->gathered |= bit;
    g->ready &= ~bit;
    if (operation == MSL_BARRIER) RELEASE(&g->barrier);
    others(l);
    if (operation == MSL_BARRIER) ACQUIRE(&g->barrier);
    out->active = g->active;
    out->lane = l->lane;
    out->data = g->slots[g->parity][0];
}
extern "C" void msl_matrix_multiply(const float in[6], const msl_site * site, float out[2]) {
    msl_slots s;
    msl_exchange(MSL_MATRIX, in, 24, site, &s);
    __builtin_memcpy(out, s.data + MSL_SLOT * s.lane, 8);
}
extern "C" bool msl_result_get(void * out, msl_u32 size, msl_u32 index) {
    Simdgroup * g = msl_current_lane()->simdgroup;
    if (!(g->results >> index & 1)) return false;
    copy(out, g->result[index], size);
    return true;
}
extern "C" void msl_result_put(const void * value, msl_u32 size, msl_u32 index) {
    Simdgroup * g = msl_current_lane()->simdgroup;
    copy(g->result[index], value, size);
    g->results |= 1u << index;
}
extern "C" void msl_inactive_lane(msl_u32 lane, const msl_site * site) {
    Lane * l = msl_current_lane();
    msl_fault * f = msl_fault_of(l, MSL_INACTIVE_LANE);
    f->lanes = l->simdgroup->active;
    f->count = lane;
    msl_fault_site(f, site, nullptr);
    msl_fail(l);
}
extern "C" void msl_undefined(const char * what, const msl_site * site) {
    Lane * l = msl_current_lane();
    msl_fault_site(msl_fault_of(l, MSL_UNDEFINED), site, what);
    msl_fail(l);
}
extern "C" void msl_tensor(msl_u32 simdgroups, const msl_site * site) {
    const Lane * l = msl_current_lane();
    if (simdgroups != 1 && simdgroups != l->context.group->simdgroups_per_threadgroup[0])
        msl_undefined("a product by another number of SIMD-groups than run", site);
    msl_slots s;
    msl_exchange(MSL_TENSOR, nullptr, 0, site, &s);
}
extern "C" msl_u32 msl_tensor_thread(msl_u32 simdgroups) {
    return msl_current_lane()->context.thread_index_in_threadgroup[0] % (32 * simdgroups);
}
extern "C" msl_u32 msl_lane(void) { return msl_current_lane()->lane; }

extern "C" void msl_simdgroup_ordered(void) {
    Lane * l = msl_current_lane();
    // Counted once for each barrier, by the lowest active lane.
    if (l->lane == (msl_u32) __builtin_ctz(l->simdgroup->active)) l->simdgroup->barriers++;
}

msl_u32 msl_ulp __attribute__((visibility("hidden")));

extern "C" void msl_threadgroup_barrier(const msl_site * site, bool device_memory) {
    Lane * l = msl_current_lane();
    msl_step(l->worker);
    l->site = *site;
    l->orders_device = device_memory;
    const msl_u32 bit = 1u << l->lane;
    l->simdgroup->at_barrier |= bit;
    l->simdgroup->ready &= ~bit;
    RELEASE(&l->worker->barrier);
    others(l);
    ACQUIRE(&l->worker->barrier);
}

// ---------------------------------------------------------------- threadgroup memory

// Space for `size` bytes between unused gaps, so that an access past its end is detected.
static void * threadgroup_allocate(Worker * w, msl_u64 size, const char * name, const void * key) {
    const msl_u64 rounded = (size + 15) & ~15ul;
    w->threadgroup_total += rounded;
    if (w->n_variables == MAX_VARIABLES || w->threadgroup_total > THREADGROUP_LIMIT) return nullptr;
    Variable & v = w->variables[w->n_variables++];
    v.key = key;
    v.name = name;
    v.size = size;
#ifdef MSL_ASAN
    // An allocation of its own, so that the sanitizer knows its bounds.
    v.address = (msl_u8 *) __builtin_malloc(size ? size : 1);
    __builtin_memset(v.address, 0xff, size);
#else
    v.address = w->threadgroup_memory + w->threadgroup_used;
    __builtin_memset(w->threadgroup_shadow + w->threadgroup_used, SHADOW_UNINITIALISED, size);
    w->threadgroup_used += rounded + THREADGROUP_GAP;
#endif
    return v.address;
}

static void threadgroup_reset(Worker * w) {
#ifdef MSL_ASAN
    for (msl_u32 i = 0; i < w->n_variables; i++) __builtin_free(w->variables[i].address);
#else
    __builtin_memset(w->threadgroup_shadow, SHADOW_GAP, w->threadgroup_used);
    __builtin_memset(w->threadgroup_memory, 0xff, w->threadgroup_used);
#endif
    w->threadgroup_used = THREADGROUP_GAP;
    w->threadgroup_total = 0;
    w->n_variables = 0;
}

// A threadgroup variable of any kernel of the library.
struct Declaration {
    const void * kernel;
    const char * name;
    msl_u64 size;
};
static Declaration declarations[2048];
static msl_u32 n_declared;

extern "C" bool msl_static_variable(const void * kernel, const char * name, msl_u64 size) {
    if (n_declared == sizeof declarations / sizeof *declarations) __builtin_trap();
    declarations[n_declared++] = Declaration{ kernel, name, size };
    return true;
}

extern "C" void * msl_threadgroup_variable(const void * key, msl_u64 size, const char * name) {
    Lane * l = msl_current_lane();
    Worker * w = l->worker;
    ACQUIRE(&w->variables);
    for (msl_u32 i = 0; i < w->n_variables; i++)
        if (w->variables[i].key == key) return w->variables[i].address;
    void * p = threadgroup_allocate(w, size, name, key);
    if (!p) {
        msl_fault * f = msl_fault_of(l, MSL_TOO_MUCH_THREADGROUP);
        f->size = w->threadgroup_total;
        copy_text(f->name, sizeof f->name, name);
        msl_fail(l);
    }
    RELEASE(&w->variables);
    return p;
}

// ---------------------------------------------------------------- threadgroups

static void lane_start() {
    Lane * l = msl_current_lane();
    Worker * w = l->worker;
#ifdef MSL_ASAN
    const void * bottom;
    msl_size size;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &size);
    if (l->from_scheduler) w->scheduler_bottom = bottom, w->scheduler_size = size;
#endif
    ACQUIRE(&w->start);
    w->entry->run(&l->context);
    RELEASE(&w->end);
    l->done = true;
    l->simdgroup->ready &= ~(1u << l->lane);
    others(l);
    __builtin_trap();
}

static void prepare_lanes(Worker * w, const msl_dispatch * d, msl_u32 n) {
    const msl_u32 x = d->threads[0], y = d->threads[1];
    for (msl_u32 i = 0; i < n; i++) {
        Lane * l = lane_at(w, i);
        msl_lane_context & c = l->context;
        const msl_u32 position[3] = { i % x, i / x % y, i / (x * y) };
        for (int k = 0; k < 3; k++) {
            c.thread_position_in_threadgroup[k] = position[k];
            c.thread_position_in_grid[k] = w->group.threadgroup_position_in_grid[k] * d->threads[k] + position[k];
        }
        c.thread_index_in_threadgroup[0] = i;
        c.thread_index_in_simdgroup[0] = i % 32;
        c.simdgroup_index_in_threadgroup[0] = i / 32;
        c.thread_index_in_quadgroup[0] = i % 4;
        c.quadgroup_index_in_threadgroup[0] = i / 4;
        c.group = &w->group;
        l->lane = i % 32;
        l->done = false;
        l->fake = nullptr;
        l->from_scheduler = false;
        // Stacks start at different offsets, spread over the sets of a cache.
        void ** sp = (void **) (stack_at(w, i + 1) - 64 - i * 1088 % (64 << 10));
        *--sp = nullptr;
        *--sp = (void *) lane_start;
        for (int k = 0; k < 6; k++) *--sp = nullptr;
        l->sp = sp;
    }
}

static void let_all_go_on(Simdgroup * g) {
    g->ready = ~0u >> (32 - g->n);
    g->at_barrier = 0;
}

static void run_simdgroup(Worker * w, Simdgroup * g) {
    g->cursor = 0;
    while (g->cursor < g->n) {
        const msl_u32 i = g->order[g->cursor++];
        if (!(g->ready >> i & 1)) continue;
        Lane * first = g->lanes[i];
        first->from_scheduler = true;
        to_lane(w, &w->scheduler_sp, &w->scheduler_fake, first);
        arrived(w->scheduler_fake, w);
        return;
    }
}

static void run_threadgroup(Worker * w, const msl_dispatch * d) {
    const msl_u32 n = d->threads[0] * d->threads[1] * d->threads[2], n_simdgroups = (n + 31) / 32;
    threadgroup_reset(w);
    w->serial++;
    w->barriers = 0;
    for (msl_u32 i = 0; i < d->n_lengths; i++) {
        w->group.threadgroup[d->lengths[i].index] = threadgroup_allocate(w, d->lengths[i].length, "[[threadgroup]] argument", nullptr);
        if (!w->group.threadgroup[d->lengths[i].index]) {
            w->fault->kind = MSL_TOO_MUCH_THREADGROUP;
            w->fault->size = w->threadgroup_total;
            copy_text(w->fault->name, sizeof w->fault->name, "[[threadgroup]] argument");
            w->failed = true;
            return;
        }
    }
    prepare_lanes(w, d, n);
    for (msl_u32 s = 0; s < n_simdgroups; s++) {
        Simdgroup * g = &w->simdgroups[s];
        g->n = n - 32 * s < 32 ? n - 32 * s : 32;
        g->parity = 0;
        g->barriers = 0;
        g->results = 0;
        g->gathered = g->apart = 0;
        let_all_go_on(g);
        for (msl_u32 i = 0; i < g->n; i++) {
            g->lanes[i] = lane_at(w, 32 * s + i);
            g->lanes[i]->simdgroup = g;
        }
        shuffle(w, g->order, g->n, d->order);
    }
    msl_u8 order[32];
    RELEASE(&w->start);
    for (;;) {
        shuffle(w, order, n_simdgroups, d->order);
        for (msl_u32 s = 0; s < n_simdgroups && !w->failed; s++) run_simdgroup(w, &w->simdgroups[order[s]]);
        if (w->failed) return;
        msl_u32 waiting = 0, done = 0;
        Lane * first = nullptr;
        bool mixed = false;
        for (msl_u32 i = 0; i < n; i++) {
            Lane * l = lane_at(w, i);
            if (l->done) done++;
            else if (!first) first = l, waiting++;
            else if (same(l->site, first->site)) waiting++;
            else mixed = true;
        }
        if (!first) break;
        if (done || mixed) {
            msl_fault * f = msl_fault_of(first, MSL_DIVERGENT_BARRIER);
            f->count = waiting;
            msl_fault_site(f, &first->site, nullptr);
            w->failed = true;
            return;
        }
        w->counters.threadgroup_barriers++;
        if (first->orders_device) w->barriers++;
        for (msl_u32 s = 0; s < n_simdgroups; s++) let_all_go_on(&w->simdgroups[s]);
    }
    ACQUIRE(&w->end);
    w->counters.threadgroups++;
    w->counters.threads += n;
}

// ---------------------------------------------------------------- a dispatch

extern "C" __attribute__((visibility("default"))) void * msl_memory_new(void) {
    // Read and write, private and anonymous, reserved but not counted.
    const msl_size size = STACKS + sizeof(Worker);
    msl_u8 * p = (msl_u8 *) mmap(nullptr, size + SPACE, 3, 0x4022, -1, 0);
    if (p == (msl_u8 *) -1) return nullptr;
    Worker * w = (Worker *) (((msl_u64) p + SPACE - 1) / SPACE * SPACE + STACKS);
    w->threadgroup_used = THREADGROUP_SPACE;  // all of it is reset before the first use
    return w;
}

static bool prepare_stacks(Worker * w, msl_u32 n) {
    for (; w->n_stacks < n; w->n_stacks++) {
        Lane * l = lane_at(w, w->n_stacks);
        l->worker = w;
        if (mprotect(stack_at(w, w->n_stacks), STACK_GUARD, 0)) return false;
#ifdef MSL_TSAN
        l->tsan = __tsan_create_fiber(0);
#endif
    }
    return true;
}

extern const msl_entry msl_entries[] __attribute__((visibility("hidden")));

extern "C" __attribute__((visibility("default"))) msl_u32 msl_run(const msl_dispatch * d, void * memory, msl_counters * counters, msl_fault * fault) {
    Worker * w = (Worker *) memory;
    msl_running = true;
    __builtin_memset(&w->counters, 0, sizeof w->counters);
    w->fault = fault;
    w->failed = false;
    w->how = d->order;
    w->most_steps = w->steps_left = d->most_steps;
    w->entry = msl_entry_at(d->function);
    if (!prepare_stacks(w, d->threads[0] * d->threads[1] * d->threads[2])) {
        fault->kind = MSL_UNDEFINED;
        copy_text(fault->name, sizeof fault->name, "no memory for stacks");
        return fault->kind;
    }
    // Sum of a kernel's variables and arguments, whether a run uses them or not.
    msl_u64 declared = 0;
    const char * last = "[[threadgroup]] argument";
    for (msl_u32 i = 0; i < d->n_lengths; i++) declared += d->lengths[i].length;
    for (msl_u32 i = 0; i < n_declared; i++)
        if (declarations[i].kernel == w->entry->kernel) {
            declared += (declarations[i].size + 15) & ~15ul;
            if (declared > THREADGROUP_LIMIT) {
                last = declarations[i].name;
                break;
            }
        }
    if (declared > THREADGROUP_LIMIT) {
        fault->kind = MSL_TOO_MUCH_THREADGROUP;
        fault->size = declared;
        copy_text(fault->name, sizeof fault->name, last);
        return fault->kind;
    }
    msl_ulp = d->ulp;
    const msl_u32 control = __builtin_ia32_stmxcsr();
    if (d->flush) __builtin_ia32_ldmxcsr(control | 0x8040);
    msl_access_prepare(w, d);
#ifdef MSL_TSAN
    w->scheduler_tsan = __tsan_get_current_fiber();
#endif
    msl_group_context & c = w->group;
    const msl_u32 n = d->threads[0] * d->threads[1] * d->threads[2];
    for (int k = 0; k < 3; k++) {
        c.threads_per_threadgroup[k] = d->threads[k];
        c.threadgroups_per_grid[k] = d->threadgroups[k];
        c.threads_per_grid[k] = d->threadgroups[k] * d->threads[k];
    }
    c.simdgroups_per_threadgroup[0] = (n + 31) / 32;
    c.quadgroups_per_threadgroup[0] = (n + 3) / 4;
    c.threads_per_simdgroup[0] = 32;
    for (int i = 0; i < 31; i++) c.buffers[i] = c.threadgroup[i] = nullptr;
    for (msl_u32 i = 0; i < d->n_buffers; i++) c.buffers[d->buffers[i].index] = d->buffers[i].address;
    const msl_u64 total = (msl_u64) d->threadgroups[0] * d->threadgroups[1] * d->threadgroups[2];
    for (;;) {
        if (__atomic_load_n(d->stop, __ATOMIC_RELAXED)) break;
        msl_u64 i = __atomic_fetch_add(d->next, 1, __ATOMIC_RELAXED);
        if (i >= total) break;
        w->random = (d->seed + i + 1) * 0x9e3779b97f4a7c15ul;
        if (d->order == 1) i = total - 1 - i;
        if (d->order == 2) i = (i + d->seed % total) % total;
        c.threadgroup_position_in_grid[0] = (msl_u32) (i % d->threadgroups[0]);
        c.threadgroup_position_in_grid[1] = (msl_u32) (i / d->threadgroups[0] % d->threadgroups[1]);
        c.threadgroup_position_in_grid[2] = (msl_u32) (i / ((msl_u64) d->threadgroups[0] * d->threadgroups[1]));
        run_threadgroup(w, d);
        if (w->failed) {
            __atomic_store_n(d->stop, 1, __ATOMIC_RELAXED);
            break;
        }
    }
    msl_access_finish(w);
    w->counters.steps = d->most_steps - w->steps_left;
    __builtin_ia32_ldmxcsr(control);
    *counters = w->counters;
    return w->failed ? fault->kind : MSL_OK;
}
