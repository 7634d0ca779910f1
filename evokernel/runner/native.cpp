// What Python cannot do: evict cache lines, say where a fault happened, overwrite what earlier calls left on stacks. Built once by the judge.
#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <cstdlib>
#include <initializer_list>
#include <omp.h>
#include <pthread.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

static int report_fd = -1;

extern "C" void evokernel_flush(const char* start, uint64_t bytes)
{
#if defined(__x86_64__)
    for (uint64_t i = 0; i < bytes; i += 64) _mm_clflushopt(const_cast<char*>(start) + i);
    _mm_sfence();
#elif defined(__aarch64__)
    for (uint64_t i = 0; i < bytes; i += 64) asm volatile("dc civac, %0" ::"r"(start + i) : "memory");
    asm volatile("dsb sy" ::: "memory");
#endif
}

// Writes one message in the channel's framing (8-byte little-endian length, JSON) and ends the process.
static void on_fault(int number, siginfo_t* info, void* context)
{
    int is_write = -1;
#if defined(__x86_64__)
    if (number == SIGSEGV || number == SIGBUS)
        is_write = (static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] >> 1) & 1;
#endif
    char message[8 + 128];
    const uint64_t length = snprintf(message + 8, 128, "{\"signal\":%d,\"address\":%llu,\"write\":%d}", number,
                                     static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(info->si_addr)), is_write);
    memcpy(message, &length, 8);
    if (write(report_fd, message, 8 + length) < 0) _exit(140);
    _exit(139);
}

extern "C" void evokernel_report_faults(int fd)
{
    static char stack[65536];
    report_fd = fd;
    stack_t alternate = {};
    alternate.ss_sp = stack;
    alternate.ss_size = sizeof stack;
    sigaltstack(&alternate, nullptr);
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS}) sigaction(number, &action, nullptr);
}

// Where the calling thread's stack ends, one page above its guard.
static __attribute__((noinline)) char* lowest_of_stack()
{
    static thread_local char* lowest = nullptr;
    if (!lowest) {
        pthread_attr_t attributes;
        void* base = nullptr;
        size_t size = 0, guard = 0;
        if (pthread_getattr_np(pthread_self(), &attributes) != 0) return nullptr;
        pthread_attr_getstack(&attributes, &base, &size);
        pthread_attr_getguardsize(&attributes, &guard);
        pthread_attr_destroy(&attributes);
        lowest = static_cast<char*>(base) + guard;
    }
    return lowest;
}

// What XRSTOR reads: the control words and no component. As long as any processor's area, since some read all of it (11,008 bytes with AMX), and
// constant, so that nobody can put a component in.
alignas(64) static const struct {
    uint16_t x87_control;
    unsigned char unused[22];
    uint32_t vector_control;
    unsigned char rest[(1 << 14) - 28];
} initial_registers = {0x037F, {}, 0x1F80, {}};

// Puts the calling thread's x87, vector and tile registers into their initial state: nothing of a call is left there, nor a rounding mode. XRSTOR of an
// area without components does that for all that the system has enabled (Intel SDM volume 1, 13.8); memory keys are left as they are.
static __attribute__((noinline)) void forget_registers()
{
#if defined(__x86_64__)
    unsigned a = 1, b, c, d;
    asm volatile("cpuid" : "+a"(a), "=b"(b), "=c"(c), "=d"(d));
    if (!(c & (1u << 27))) return;  // the system does not use XSAVE
    unsigned low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    asm volatile("xrstor64 %0" ::"m"(initial_registers), "a"(low & ~(1u << 9)), "d"(high) : "memory");
#endif
}

// Overwrites what calls have left between two page borders of the calling thread's stack. Pages that no call has touched stay so: to write there would
// put the calls' data out of the caches, which nobody does to baselines. A page that is not resident may be swapped out, and is dropped.
static void overwrite_pages(char* low, char* high, size_t page)
{
    unsigned char resident[512];
    for (char* at = low; at < high; at += page * sizeof resident) {
        const size_t pages = std::min<size_t>((high - at) / page, sizeof resident);
        if (mincore(at, page * pages, resident) != 0) memset(resident, 1, sizeof resident);
        for (size_t i = 0, end; i < pages; i = end) {
            for (end = i + 1; end < pages && !((resident[end] ^ resident[i]) & 1);) ++end;
            const size_t bytes = page * (end - i);
            if (resident[i] & 1 || madvise(at + page * i, bytes, MADV_DONTNEED) != 0) memset(at + page * i, 0xA5, bytes);
        }
    }
}

// Makes the calling thread forget what lies below this frame, but for the next kilobytes, in which its own calls are at work, and its registers.
extern "C" __attribute__((noinline, used, visibility("hidden"))) void evokernel_scrub_below()
{
    static thread_local bool begun = false;
    const size_t page = sysconf(_SC_PAGESIZE);
    const auto page_of = [page](char* at) { return reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(at) & ~(page - 1)); };
    char* const lowest = lowest_of_stack();
    char* const low = lowest ? page_of(lowest + page - 1) : nullptr;
    char* const end = static_cast<char*>(__builtin_frame_address(0)) - 3072;
    char* const high = page_of(end);
    if (low && low < high) {
        memset(lowest, 0xA5, low - lowest);
        if (!begun) {
            *static_cast<volatile char*>(low) = 0;  // the main thread's mapping grows to its end: mincore fails where nothing is mapped
            madvise(low, high - low, MADV_NOHUGEPAGE);
            if (madvise(low, high - low, MADV_DONTNEED) != 0) memset(low, 0xA5, high - low);
            begun = true;
        }
        overwrite_pages(low, high, page);
    }
    char* const rest = std::max(low, high);
    if (rest && rest < end) memset(rest, 0xA5, end - rest);
    forget_registers();
}

// Makes the calling thread forget all that lies below the caller's frame. The last bytes are overwritten without a call and without a frame, in which
// something could be left out: a kernel's first frame begins where this one's does.
#if defined(__x86_64__)
extern "C" __attribute__((visibility("hidden"))) void evokernel_scrub_thread(void*);
asm(R"(
    .text
    .type evokernel_scrub_thread, @function
    .hidden evokernel_scrub_thread
    .globl evokernel_scrub_thread
evokernel_scrub_thread:
    .cfi_startproc
    sub $8, %rsp
    .cfi_adjust_cfa_offset 8
    call evokernel_scrub_below
    add $8, %rsp
    .cfi_adjust_cfa_offset -8
    lea -4096(%rsp), %rdi
    mov $4096, %ecx
    mov $0xA5, %eax
    cld
    rep stosb
    ret
    .cfi_endproc
    .size evokernel_scrub_thread, . - evokernel_scrub_thread
)");
#else
static __attribute__((noinline)) void forget_frames()
{
    char frames[4096];
    memset(frames, 0xA5, sizeof frames);
    asm volatile("" ::"r"(frames) : "memory");
}

static __attribute__((noinline)) void evokernel_scrub_thread(void*)
{
    evokernel_scrub_below();
    forget_frames();
}
#endif

extern "C" void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned flags);

// Handed to GOMP_parallel by hand: what the compiler makes of `#pragma omp parallel` has a frame, with a gap in it, before the call. The last call comes
// after it, for what this function and GOMP_parallel leave, and is a jump.
extern "C" __attribute__((noinline)) void evokernel_scrub()
{
    if (omp_get_level()) abort();  // the last call left a parallel region open: its threads are still at work
    GOMP_parallel(evokernel_scrub_thread, nullptr, 0, 0);
    evokernel_scrub_thread(nullptr);
}
