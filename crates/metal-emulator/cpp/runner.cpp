// Runs one dispatch in a process of its own, under the sanitizer that this program was built with.
// Arguments: the request file and the result file. Both consist of 64-bit integers and bytes, in
// the format of src/sanitized.rs.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sys/mman.h>

#include "runtime.h"

extern "C" void __asan_poison_memory_region(const volatile void *, size_t) __attribute__((weak));

static FILE * in;

static msl_u64 number() {
    msl_u64 v = 0;
    if (fread(&v, sizeof v, 1, in) != 1) {
        fprintf(stderr, "runner: the request ends too early\n");
        exit(2);
    }
    return v;
}
static void bytes(void * to, msl_u64 n) {
    if (n && fread(to, 1, n, in) != n) {
        fprintf(stderr, "runner: the request ends too early\n");
        exit(2);
    }
}

int main(int n_arguments, char ** arguments) {
    if (n_arguments != 3 || !(in = fopen(arguments[1], "rb"))) {
        fprintf(stderr, "runner: expected a request and a name for the answer\n");
        return 2;
    }
    char path[4096];
    const msl_u64 length = number();
    if (length >= sizeof path) return 2;
    bytes(path, length);
    path[length] = 0;
    msl_dispatch d;
    memset(&d, 0, sizeof d);
    d.function = (msl_u32) number();
    for (int i = 0; i < 3; i++) d.threadgroups[i] = (msl_u32) number();
    for (int i = 0; i < 3; i++) d.threads[i] = (msl_u32) number();
    d.order = (msl_u32) number();
    d.seed = number();
    d.most_steps = ~0ul;
    // Each allocation has exactly the length that kernels may access.
    const msl_u64 n_memory = number();
    msl_u8 * memory[62];
    msl_u64 lengths[62];
    for (msl_u64 i = 0; i < n_memory; i++) {
        lengths[i] = number();
        void * p;
        if (posix_memalign(&p, 64, lengths[i] ? lengths[i] : 1)) return 2;
        memory[i] = (msl_u8 *) p;
        bytes(memory[i], lengths[i]);
    }
    msl_buffer buffers[62];
    memset(buffers, 0, sizeof buffers);
    d.n_buffers = (msl_u32) number();
    for (msl_u32 i = 0; i < d.n_buffers; i++) {
        const msl_u64 which = number(), offset = number();
        buffers[i].address = memory[which] + offset;
        buffers[i].length = lengths[which] - offset;
        buffers[i].index = (msl_u32) number();
        buffers[i].writable = 1;
    }
    // Resources are at the addresses that pointers to them contain, and memory after them may not
    // be accessed.
    const msl_u64 n_resources = number();
    struct Resource {
        msl_u8 * address;
        msl_u64 length;
    };
    Resource * resources = (Resource *) calloc(n_resources + 1, sizeof(Resource));
    for (msl_u64 i = 0; i < n_resources; i++) {
        resources[i].address = (msl_u8 *) number();
        resources[i].length = number();
        const msl_u64 whole = (resources[i].length + 4095) / 4096 * 4096 + 4096;
        void * p = mmap(resources[i].address, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        if (p != resources[i].address) return 3;
        bytes(p, resources[i].length);
        if (__asan_poison_memory_region) __asan_poison_memory_region(resources[i].address + resources[i].length, whole - resources[i].length);
    }
    msl_length threadgroup[31];
    d.n_lengths = (msl_u32) number();
    for (msl_u32 i = 0; i < d.n_lengths; i++) {
        threadgroup[i].index = (msl_u32) number();
        threadgroup[i].length = (msl_u32) number();
    }
    msl_u64 next = 0;
    msl_u32 stop = 0;
    d.buffers = buffers;
    d.lengths = threadgroup;
    d.next = &next;
    d.stop = &stop;
    void * library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "runner: %s\n", dlerror());
        return 2;
    }
    auto new_memory = (void * (*) ()) dlsym(library, "msl_memory_new");
    auto run = (msl_u32 (*)(const msl_dispatch *, void *, msl_counters *, msl_fault *)) dlsym(library, "msl_run");
    void * worker = new_memory();
    msl_counters counters;
    msl_fault fault;
    memset(&counters, 0, sizeof counters);
    memset(&fault, 0, sizeof fault);
    run(&d, worker, &counters, &fault);
    FILE * out = fopen(arguments[2], "wb");
    if (!out) return 2;
    fwrite(&counters, sizeof counters, 1, out);
    fwrite(&fault, sizeof fault, 1, out);
    for (msl_u64 i = 0; i < n_memory; i++) fwrite(memory[i], 1, lengths[i], out);
    for (msl_u64 i = 0; i < n_resources; i++) fwrite(resources[i].address, 1, resources[i].length, out);
    return fclose(out) ? 2 : 0;
}
