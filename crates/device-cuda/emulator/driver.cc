// CUDA's driver API, as far as the device calls it, over the engine: a libcuda.so.1 for machines
// without a GPU. Its memory is the host's, and its modules are shared libraries that compiler.cc
// has made. Work runs only when a caller waits for it, so tests detect a host that overwrites data
// too early. Each allocation ends at a protected page, and is filled with 0xff until it is written.
//
//   INGLE_EMULATED_ARCHITECTURE  compute capability times ten, default 90
//   INGLE_EMULATED_PROCESSORS    multiprocessors, default 36
//   INGLE_EMULATED_MEMORY        MiB, default 4096
//   INGLE_EMULATED_SEED          seed of the order of warps and of late arrivals
//   INGLE_EMULATED_SECONDS       seconds after which a launch counts as hung, default 300
//   INGLE_EMULATED_DRIVER        version of the driver, default 13000
//   INGLE_EMULATED_LOST_AFTER    launches after which the GPU is lost
//   INGLE_EMULATED_HANGS_AFTER   launches after which one does not end, as the driver sees it
//   INGLE_EMULATED_TRACE         writes each launch to stderr
#include "engine.h"
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <dlfcn.h>
#include <elf.h>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

namespace {

enum Result { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, INVALID_IMAGE = 200, NOT_FOUND = 500, NOT_READY = 600, UNAVAILABLE = 46 };
enum Attribute { PROCESSORS = 16, MAJOR = 75, MINOR = 76, SHARED_OPTIN = 97, VIRTUAL_MEMORY = 102 };
const uint32_t COOPERATIVE = 2;      // an attribute of a launch
const unsigned SHARED_BYTES = 232448; // most of a block
const size_t PAGE = 4096, GRANULE = 2 << 20, ARGUMENTS = 1024;
typedef std::chrono::steady_clock Clock;

unsigned setting(const char *name, unsigned otherwise) {
    const char *text = getenv(name);
    return text ? (unsigned)atoi(text) : otherwise;
}

struct Function {
    std::string name;
    void (*kernel)(const void *);
};
struct Module {
    void *library;
    std::map<std::string, std::unique_ptr<Function>> functions;
};
struct LaunchAttribute {
    uint32_t id, padding;
    union {
        int number;
        char bytes[64];
    };
};
struct LaunchConfig {
    Index grid, block;
    unsigned shared_bytes;
    void *stream;
    const LaunchAttribute *attributes;
    unsigned n_attributes;
};
typedef std::function<void()> Work;
struct Event {
    bool done = true;
    Clock::time_point at;
};

std::recursive_mutex all;
std::deque<Work> queue;
std::vector<Work> *recording;
std::map<uint64_t, size_t> memory, pinned; // bytes by address
size_t used;
Result state = SUCCESS; // NOT_READY: a kernel does not end; another error: the GPU is lost
unsigned n_launches;

#define LOCK std::lock_guard<std::recursive_mutex> lock(all)

// Runs queued work until `done` is true.
Result run_until(const bool &done) {
    while (!done && !queue.empty() && state == SUCCESS) {
        const Work work = std::move(queue.front());
        queue.pop_front();
        work();
    }
    return state;
}
Result run_all() {
    const bool never = false;
    return run_until(never);
}
Result submit(Work work) {
    if (state != SUCCESS && state != NOT_READY) return state;
    if (recording) recording->push_back(std::move(work));
    else queue.push_back(std::move(work));
    return SUCCESS;
}
bool is_pinned(const void *p) {
    const auto after = pinned.upper_bound((uint64_t)p);
    if (after == pinned.begin()) return false;
    const auto at = std::prev(after);
    return (uint64_t)p < at->first + at->second;
}

size_t pages(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }
// Allocates memory at a multiple of 256 that ends at a protected page.
void *take(size_t bytes) {
    const size_t room = (bytes + 255) / 256 * 256, mapped = pages(room);
    char *p = (char *)mmap(nullptr, mapped + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return nullptr;
    mprotect(p + mapped, PAGE, PROT_NONE);
    char *start = p + mapped - room;
    memset(start, 0xff, room);
    return start;
}
void give_back(void *start, size_t bytes) {
    const size_t room = (bytes + 255) / 256 * 256, mapped = pages(room);
    munmap((char *)start + room - mapped, mapped + PAGE);
}
size_t total() { return (size_t)setting("INGLE_EMULATED_MEMORY", 4096) << 20; }
unsigned architecture() { return setting("INGLE_EMULATED_ARCHITECTURE", 90); }
unsigned n_processors() { return setting("INGLE_EMULATED_PROCESSORS", 36); }

void on_fault(int, siginfo_t *info, void *) {
    char text[300];
    const char *kernel = emulated_kernel();
    const int n = snprintf(text, sizeof text, "%s: no memory at %p (block %u %u %u, thread %u)\n", kernel ? kernel : "outside of kernels", info->si_addr, blockIdx.x,
                           blockIdx.y, blockIdx.z, threadIdx.x);
    if (write(2, text, n) < 0) {}
    _exit(139);
}

void launch(const Function *f, const LaunchConfig &config, bool together, const std::vector<uint64_t> &arguments) {
    const EmulatedLaunch what = {f->name.c_str(), config.grid, config.block.x, config.shared_bytes, together, f->kernel, arguments.data()};
    static const bool says = getenv("INGLE_EMULATED_TRACE");
    static const unsigned never = ~0u, lost_after = setting("INGLE_EMULATED_LOST_AFTER", never), hangs_after = setting("INGLE_EMULATED_HANGS_AFTER", never);
    if (n_launches == lost_after || n_launches == hangs_after) {
        state = n_launches == lost_after ? UNAVAILABLE : NOT_READY;
        return;
    }
    n_launches++;
    const auto begin = Clock::now();
    emulated_run(&what);
    if (says)
        fprintf(stderr, "%s (%u %u %u) x %u: %.1f ms\n", f->name.c_str(), config.grid.x, config.grid.y, config.grid.z, config.block.x,
                std::chrono::duration<double>(Clock::now() - begin).count() * 1e3);
}

} // namespace

extern "C" {

Result cuInit(unsigned) {
    LOCK;
    emulated_seed(setting("INGLE_EMULATED_SEED", 1));
    // Fibers have small stacks.
    static char stack[64 << 10];
    const stack_t alternative = {stack, 0, sizeof stack};
    sigaltstack(&alternative, nullptr);
    struct sigaction action = {};
    action.sa_sigaction = on_fault, action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, nullptr), sigaction(SIGBUS, &action, nullptr);
    return SUCCESS;
}
Result cuDriverGetVersion(int *version) { return *version = (int)setting("INGLE_EMULATED_DRIVER", 13000), SUCCESS; }
Result cuGetErrorName(Result code, const char **name) {
    static const std::map<int, const char *> names = {{INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},   {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
                                                      {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"}, {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE"},
                                                      {NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},           {NOT_READY, "CUDA_ERROR_NOT_READY"},
                                                      {UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE"}};
    const auto found = names.find(code);
    *name = found == names.end() ? nullptr : found->second;
    return *name ? SUCCESS : INVALID_VALUE;
}

// ---- the GPU

Result cuDeviceGetCount(int *n) { return *n = 1, SUCCESS; }
Result cuDeviceGet(int *device, int index) { return *device = index, index == 0 ? SUCCESS : INVALID_DEVICE; }
Result cuDeviceGetName(char *name, int length, int) {
    return snprintf(name, length, "emulated GPU of compute capability %u.%u", architecture() / 10, architecture() % 10), SUCCESS;
}
Result cuDeviceGetAttribute(int *value, int which, int) {
    switch (which) {
    case PROCESSORS: *value = n_processors(); break;
    case MAJOR: *value = architecture() / 10; break;
    case MINOR: *value = architecture() % 10; break;
    case SHARED_OPTIN: *value = architecture() == 75 ? 64 << 10 : architecture() >= 90 ? SHARED_BYTES : 99 << 10; break;
    case VIRTUAL_MEMORY: *value = 1; break;
    default: fprintf(stderr, "the emulated GPU has no attribute %d\n", which); return INVALID_VALUE;
    }
    return SUCCESS;
}
Result cuDeviceTotalMem_v2(size_t *bytes, int) { return *bytes = total(), SUCCESS; }
Result cuDeviceCanAccessPeer(int *can, int, int) { return *can = 0, SUCCESS; }
Result cuCtxEnablePeerAccess(void *, unsigned) { return INVALID_VALUE; }
Result cuDevicePrimaryCtxRetain(void **context, int) { return *context = &all, SUCCESS; }
Result cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
Result cuCtxSetCurrent(void *) { return SUCCESS; }

// ---- memory

Result cuMemGetInfo_v2(size_t *free, size_t *of_all) {
    LOCK;
    return *of_all = total(), *free = used < *of_all ? *of_all - used : 0, SUCCESS;
}
Result cuMemAlloc_v2(uint64_t *address, size_t bytes) {
    LOCK;
    void *p = used + bytes > total() ? nullptr : take(bytes);
    if (!p) return OUT_OF_MEMORY;
    return memory[*address = (uint64_t)p] = bytes, used += bytes, SUCCESS;
}
Result cuMemFree_v2(uint64_t address) {
    LOCK;
    run_all();
    const auto found = memory.find(address);
    if (found == memory.end()) return INVALID_VALUE;
    give_back((void *)address, found->second);
    used -= found->second;
    return memory.erase(found), SUCCESS;
}
Result cuMemHostAlloc(void **address, size_t bytes, unsigned) {
    LOCK;
    *address = take(bytes);
    if (!*address) return OUT_OF_MEMORY;
    return pinned[(uint64_t)*address] = bytes, SUCCESS;
}
Result cuMemFreeHost(void *address) {
    LOCK;
    run_all();
    const auto found = pinned.find((uint64_t)address);
    if (found == pinned.end()) return INVALID_VALUE;
    give_back(address, found->second);
    return pinned.erase(found), SUCCESS;
}
Result cuMemHostGetDevicePointer_v2(uint64_t *address, void *host, unsigned) { return *address = (uint64_t)host, SUCCESS; }

Result cuMemGetAllocationGranularity(size_t *bytes, const void *, int) { return *bytes = GRANULE, SUCCESS; }
Result cuMemAddressReserve(uint64_t *address, size_t bytes, size_t, uint64_t, uint64_t) {
    void *p = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return *address = (uint64_t)p, p == MAP_FAILED ? OUT_OF_MEMORY : SUCCESS;
}
Result cuMemAddressFree(uint64_t address, size_t bytes) { return munmap((void *)address, bytes) == 0 ? SUCCESS : INVALID_VALUE; }
Result cuMemCreate(uint64_t *handle, size_t bytes, const void *, uint64_t) {
    LOCK;
    if (used + bytes > total()) return OUT_OF_MEMORY;
    return *handle = bytes, used += bytes, SUCCESS;
}
Result cuMemRelease(uint64_t handle) {
    LOCK;
    return used -= handle, SUCCESS;
}
Result cuMemMap(uint64_t, size_t, size_t, uint64_t, uint64_t) { return SUCCESS; }
Result cuMemSetAccess(uint64_t address, size_t bytes, const void *, size_t) {
    if (mprotect((void *)address, bytes, PROT_READ | PROT_WRITE) != 0) return INVALID_VALUE;
    return memset((void *)address, 0xff, bytes), SUCCESS;
}
Result cuMemUnmap(uint64_t address, size_t bytes) {
    LOCK;
    run_all();
    madvise((void *)address, bytes, MADV_DONTNEED);
    return mprotect((void *)address, bytes, PROT_NONE) == 0 ? SUCCESS : INVALID_VALUE;
}

Result cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *) {
    LOCK;
    if (is_pinned(from)) return submit([=] { memcpy((void *)to, from, bytes); });
    const auto copy = std::make_shared<std::vector<char>>((const char *)from, (const char *)from + bytes);
    return submit([=] { memcpy((void *)to, copy->data(), bytes); });
}
Result cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *) {
    LOCK;
    return submit([=] { memcpy(to, (const void *)from, bytes); });
}
Result cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *) {
    LOCK;
    return submit([=] { memmove((void *)to, (const void *)from, bytes); });
}
Result cuMemsetD8Async(uint64_t to, unsigned char byte, size_t bytes, void *) {
    LOCK;
    return submit([=] { memset((void *)to, byte, bytes); });
}

// ---- kernels

Result cuModuleLoadData(Module **module, const void *image) {
    LOCK;
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)image;
    if (memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return INVALID_IMAGE;
    // The linker writes the table of sections last.
    const size_t bytes = header->e_shoff + (size_t)header->e_shnum * header->e_shentsize;
    char path[] = "/tmp/ingle-emulated-XXXXXX";
    const int file = mkstemp(path);
    if (file < 0 || write(file, image, bytes) != (ssize_t)bytes) return INVALID_IMAGE;
    close(file);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    unlink(path);
    if (!library) return fprintf(stderr, "%s\n", dlerror()), INVALID_IMAGE;
    return *module = new Module{library, {}}, SUCCESS;
}
Result cuModuleUnload(Module *module) {
    LOCK;
    run_all();
    dlclose(module->library);
    return delete module, SUCCESS;
}
Result cuModuleGetFunction(Function **function, Module *module, const char *name) {
    LOCK;
    std::unique_ptr<Function> &found = module->functions[name];
    if (!found) {
        void *kernel = dlsym(module->library, name);
        if (!kernel) return NOT_FOUND;
        found.reset(new Function{name, (void (*)(const void *))kernel});
    }
    return *function = found.get(), SUCCESS;
}
Result cuFuncSetAttribute(Function *, int, int value) { return value <= (int)SHARED_BYTES ? SUCCESS : INVALID_VALUE; }
Result cuLaunchKernelEx(const LaunchConfig *config, const Function *f, void **parameters, void **) {
    LOCK;
    const Index grid = config->grid;
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || config->block.x == 0 || config->block.x > 1024 || config->block.y != 1 || config->block.z != 1 ||
        config->shared_bytes > SHARED_BYTES)
        return INVALID_VALUE;
    bool together = false;
    for (unsigned i = 0; i < config->n_attributes; i++) together |= config->attributes[i].id == COOPERATIVE && config->attributes[i].number;
    if (together && grid.x * grid.y * grid.z > n_processors()) return INVALID_VALUE;
    // The device's argument buffer has this size, whatever the kernel's parameter needs.
    const uint64_t *first = (const uint64_t *)parameters[0];
    const std::vector<uint64_t> arguments(first, first + ARGUMENTS / 8);
    const LaunchConfig copy = *config;
    return submit([=] { launch(f, copy, together, arguments); });
}

// ---- streams, graphs, events

Result cuStreamCreate(void **stream, unsigned) { return *stream = &queue, SUCCESS; }
Result cuStreamDestroy_v2(void *) {
    LOCK;
    return run_all(), SUCCESS;
}
Result cuStreamQuery(void *) {
    LOCK;
    return run_all();
}
Result cuStreamBeginCapture_v2(void *, int) {
    LOCK;
    return recording = new std::vector<Work>, SUCCESS;
}
Result cuStreamEndCapture(void *, std::vector<Work> **graph) {
    LOCK;
    return *graph = recording, recording = nullptr, SUCCESS;
}
Result cuGraphInstantiateWithFlags(std::vector<Work> **exec, const std::vector<Work> *graph, uint64_t) { return *exec = new std::vector<Work>(*graph), SUCCESS; }
Result cuGraphDestroy(std::vector<Work> *graph) { return delete graph, SUCCESS; }
Result cuGraphExecDestroy(std::vector<Work> *exec) {
    LOCK;
    return run_all(), delete exec, SUCCESS;
}
Result cuGraphLaunch(const std::vector<Work> *exec, void *) {
    LOCK;
    for (const Work &work : *exec)
        if (const Result result = submit(work)) return result;
    return SUCCESS;
}
Result cuEventCreate(Event **event, unsigned) { return *event = new Event, SUCCESS; }
Result cuEventDestroy_v2(Event *event) {
    LOCK;
    return run_all(), delete event, SUCCESS;
}
Result cuEventRecord(Event *event, void *) {
    LOCK;
    event->done = false;
    return submit([=] { event->done = true, event->at = Clock::now(); });
}
Result cuEventQuery(Event *event) {
    LOCK;
    const Result result = run_until(event->done);
    return event->done ? SUCCESS : result == SUCCESS ? NOT_READY : result;
}
Result cuEventElapsedTime(float *milliseconds, const Event *from, const Event *to) {
    return *milliseconds = std::chrono::duration<float>(to->at - from->at).count() * 1e3f, SUCCESS;
}

} // extern "C"
