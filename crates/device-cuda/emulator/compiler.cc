// NVIDIA's run-time compiler, as far as the device calls it, for the emulated driver. It is a
// libnvrtc.so.13 whose code is a shared library, made by the machine's C++ compiler from sources
// that prepare.py has changed. build.sh defines EMULATOR, this folder; BUILT, the folder of the
// libraries; COMPILE, the compiler with its flags; and VERSION, a number that changes with any of
// these.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;
enum Result { SUCCESS = 0, COMPILATION = 6 };

struct Program {
    std::string source;
    std::vector<std::pair<std::string, std::string>> headers; // names, texts
    std::string code, log;
};

void write(const fs::path &path, const std::string &text) {
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
}
std::string read(const fs::path &path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}
Result give(const std::string &text, char *to) { return text.copy(to, text.size()), SUCCESS; }

} // namespace

extern "C" {

Result nvrtcVersion(int *major, int *minor) { return *major = 13, *minor = VERSION, SUCCESS; }
Result nvrtcCreateProgram(Program **program, const char *source, const char *, int n, const char *const *texts, const char *const *names) {
    *program = new Program{source, {}, {}, {}};
    for (int i = 0; i < n; i++) (*program)->headers.emplace_back(names[i], texts[i]);
    return SUCCESS;
}
Result nvrtcCompileProgram(Program *program, int n, const char *const *options) {
    // "-arch=sm_90a"
    std::string architecture;
    for (int i = 0; i < n; i++)
        if (const std::string option = options[i]; option.rfind("-arch=sm_", 0) == 0) architecture = option.substr(9);
    const bool own = !architecture.empty() && architecture.back() == 'a';
    const std::string number = own ? architecture.substr(0, architecture.size() - 1) : architecture;
    char name[] = "/tmp/ingle-emulated-XXXXXX";
    if (!mkdtemp(name)) return program->log = "no folder in /tmp", COMPILATION;
    const fs::path folder = name;
    for (const auto &[header, text] : program->headers) write(folder / "kernels" / header, text);
    write(folder / "kernels/source.cu", program->source);
    const std::string command = std::string("cd ") + name + " && { python3 " EMULATOR "/prepare.py kernels && " COMPILE
                                " -O1 -w -fvisibility-inlines-hidden -D__CUDA_ARCH__=" + number + "0" +
                                (own ? " -D__CUDA_ARCH_FEAT_SM" + number + "_ALL=1" : "") +
                                " -I kernels -I " EMULATOR " -include device.h -x c++ kernels/source.cu -x none -o code.so -L " BUILT " -l:libcuda.so.1; } >log 2>&1";
    const bool compiled = system(command.c_str()) == 0;
    program->log = read(folder / "log");
    if (compiled) program->code = read(folder / "code.so");
    fs::remove_all(folder);
    return compiled ? SUCCESS : COMPILATION;
}
Result nvrtcGetProgramLogSize(const Program *program, size_t *n) { return *n = program->log.size(), SUCCESS; }
Result nvrtcGetProgramLog(const Program *program, char *to) { return give(program->log, to); }
Result nvrtcGetCUBINSize(const Program *program, size_t *n) { return *n = program->code.size(), SUCCESS; }
Result nvrtcGetCUBIN(const Program *program, char *to) { return give(program->code, to); }
Result nvrtcDestroyProgram(Program **program) { return delete *program, SUCCESS; }

} // extern "C"
