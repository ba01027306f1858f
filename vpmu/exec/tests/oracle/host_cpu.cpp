#include "exec/tests/oracle/host_cpu.hpp"

#include <csetjmp>
#include <csignal>
#include <vector>

#include "exec/host_form.hpp"

namespace vpmu::exec::test {
namespace {

constexpr std::size_t code_bytes = page_size;

/// What the code reads and writes, on the page behind it.
struct Frame {
  Registers before;
  Registers after;
  std::uint64_t host_stack;
  VectorState vectors;
};

class Assembler {
 public:
  Assembler(std::uint64_t code, std::uint64_t frame) : code_{code}, frame_{frame} {}
  void bytes(std::initializer_list<unsigned> list) {
    for (const unsigned b : list) out.push_back(static_cast<std::byte>(b));
  }
  /// An instruction with the RIP-relative operand `field` of the frame: its bytes without the displacement.
  void with_field(std::initializer_list<unsigned> opcode, std::size_t field,
                  std::initializer_list<unsigned> immediate = {}) {
    bytes(opcode);
    const std::uint64_t end = code_ + out.size() + 4 + immediate.size();
    const auto disp =
        static_cast<std::int32_t>(static_cast<std::int64_t>(frame_ + field) - static_cast<std::int64_t>(end));
    const auto* const raw = reinterpret_cast<const std::byte*>(&disp);
    out.insert(out.end(), raw, raw + 4);
    bytes(immediate);
  }
  /// MOV between register `n` and a field: 8B loads, 89 stores.
  void mov(unsigned opcode, unsigned n, std::size_t field) {
    with_field({n < 8 ? 0x48U : 0x4CU, opcode, (n % 8) << 3U | 5U}, field);
  }
  void load_vectors() {
    bytes({0xDB, 0xE3});                                             // fninit
    with_field({0x48, 0x0F, 0xAE, 0x0D}, offsetof(Frame, vectors));  // fxrstor64
    for (unsigned n = 0; n < 16 && host_has(CpuFeature::avx); ++n)   // vinsertf128 $1
      with_field({0xC4, n < 8 ? 0xE3U : 0x63U, 0x05 | (~n & 0xFU) << 3U, 0x18, (n % 8) << 3U | 5U}, upper(n), {1});
  }
  void store_vectors() {
    for (unsigned n = 0; n < 16 && host_has(CpuFeature::avx); ++n)  // vextractf128 $1
      with_field({0xC4, n < 8 ? 0xE3U : 0x63U, 0x7D, 0x19, (n % 8) << 3U | 5U}, upper(n), {1});
    with_field({0x48, 0x0F, 0xAE, 0x05}, offsetof(Frame, vectors));  // fxsave64
    if (host_has(CpuFeature::avx)) bytes({0xC5, 0xF8, 0x77});        // vzeroupper
  }
  std::vector<std::byte> out;

 private:
  static std::size_t upper(unsigned n) { return offsetof(Frame, vectors) + offsetof(VectorState, upper) + 16 * n; }

  std::uint64_t code_, frame_;
};

constexpr std::size_t in_gpr(unsigned n) { return offsetof(Frame, before) + offsetof(Registers, gpr) + 8 * n; }
constexpr std::size_t out_gpr(unsigned n) { return offsetof(Frame, after) + offsetof(Registers, gpr) + 8 * n; }
constexpr std::size_t in_flags = offsetof(Frame, before) + offsetof(Registers, flags);
constexpr std::size_t out_flags = offsetof(Frame, after) + offsetof(Registers, flags);
constexpr unsigned load = 0x8B, store = 0x89, stack_register = 4;

void restore_control() {
  constexpr std::uint32_t mxcsr = 0x1F80;
  __asm__ volatile("fninit; ldmxcsr %0" ::"m"(mxcsr));
}

sigjmp_buf before_fault;
volatile std::sig_atomic_t armed;

void to_before(int signal) {
  if (armed == 0) {  // not the instruction's: let it end the test
    std::signal(signal, SIG_DFL);
    return;
  }
  armed = 0;
  siglongjmp(before_fault, 1);
}

}  // namespace

/// While it lives, a fault leads back to sigsetjmp(before_fault). On a stack of its own: RSP is the instruction's.
class HostCpu::Faults {
 public:
  Faults() {
    const stack_t stack{.ss_sp = stack_.data(), .ss_flags = 0, .ss_size = stack_.size()};
    ::sigaltstack(&stack, &old_stack_);
    struct sigaction action{};
    action.sa_handler = to_before;
    action.sa_flags = SA_ONSTACK | SA_NODEFER;
    for (std::size_t i = 0; i < signals.size(); ++i) ::sigaction(signals[i], &action, &old_[i]);
  }
  ~Faults() {
    for (std::size_t i = 0; i < signals.size(); ++i) ::sigaction(signals[i], &old_[i], nullptr);
    ::sigaltstack(&old_stack_, nullptr);
  }
  Faults(const Faults&) = delete;
  Faults& operator=(const Faults&) = delete;

 private:
  static constexpr std::array signals{SIGSEGV, SIGFPE, SIGBUS};
  std::array<std::byte, 1 << 16> stack_{};
  stack_t old_stack_{};
  std::array<struct sigaction, signals.size()> old_{};
};

HostCpu::HostCpu() : memory_{2 * code_bytes, PROT_READ | PROT_WRITE | PROT_EXEC}, faults_{std::make_unique<Faults>()} {}
HostCpu::~HostCpu() = default;

std::optional<Registers> HostCpu::run(std::span<const std::byte> instruction, const Registers& before,
                                      VectorState* vectors) {
  auto* const frame = reinterpret_cast<Frame*>(memory_.bytes().data() + code_bytes);
  Assembler a{memory_.address(), memory_.address() + code_bytes};
  a.bytes({0x53, 0x55, 0x41, 0x54, 0x41, 0x55, 0x41, 0x56, 0x41, 0x57});  // push rbx, rbp, r12 to r15
  a.mov(store, stack_register, offsetof(Frame, host_stack));
  if (vectors != nullptr) a.load_vectors();
  a.with_field({0xFF, 0x35}, in_flags);  // push
  a.bytes({0x9D});                       // popfq
  for (unsigned n = 0; n < 16; ++n) a.mov(load, n, in_gpr(n));
  rip_ = memory_.address() + a.out.size();
  a.out.insert(a.out.end(), instruction.begin(), instruction.end());
  for (unsigned n = 0; n < 16; ++n) a.mov(store, n, out_gpr(n));
  a.mov(load, stack_register, offsetof(Frame, host_stack));
  a.bytes({0x9C});                        // pushfq
  a.with_field({0x8F, 0x05}, out_flags);  // pop
  if (vectors != nullptr) a.store_vectors();
  a.bytes({0xFC, 0x41, 0x5F, 0x41, 0x5E, 0x41, 0x5D, 0x41, 0x5C, 0x5D, 0x5B, 0xC3});  // cld; pop them; ret
  std::memcpy(memory_.bytes().data(), a.out.data(), a.out.size());
  frame->before = before;
  if (vectors != nullptr) frame->vectors = *vectors;
  if (sigsetjmp(before_fault, 0) != 0) {
    restore_control();
    return std::nullopt;
  }
  armed = 1;
  reinterpret_cast<void (*)()>(memory_.bytes().data())();
  armed = 0;
  if (vectors != nullptr) {
    *vectors = frame->vectors;
    restore_control();
  }
  return frame->after;
}

}  // namespace vpmu::exec::test
