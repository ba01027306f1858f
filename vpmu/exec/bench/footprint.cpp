#include "footprint.hpp"

#include <cstdint>
#include <random>
#include <vector>

#include "exec/tests/fixtures/assembled.hpp"

namespace vpmu::exec::bench {
namespace {

class Writer {
 public:
  void put(const std::vector<unsigned>& bytes) {
    for (const unsigned b : bytes) out.code.push_back(static_cast<std::byte>(b));
    ++out.instructions;
  }
  void put_word(std::uint32_t value) {
    for (unsigned i = 0; i < 4; ++i) out.code.push_back(static_cast<std::byte>(value >> 8 * i));
  }
  /// One of the instructions that compilers use most, on RAX, RCX, RDX, RBX and the memory at RDI.
  void plain_instruction() {
    const auto reg = [&] { return static_cast<unsigned>(random() % 4); };
    const unsigned both = 0xC0 | reg() << 3 | reg();
    const unsigned to_memory = 0x47 | reg() << 3;  // disp8(%rdi)
    const auto disp = static_cast<unsigned>(random() % 16 * 8);
    switch (random() % 10) {
      case 0: return put({0x48, 0x01, both});                                    // add
      case 1: return put({0x48, 0x31, both});                                    // xor
      case 2: return put({0x48, 0x89, both});                                    // mov
      case 3: return put({0x89, both});                                          // mov, 32 bits
      case 4: return put({0x48, 0x8B, to_memory, disp});                         // load
      case 5: return put({0x48, 0x89, to_memory, disp});                         // store
      case 6: return put({0x48, 0x03, to_memory, disp});                         // add from memory
      case 7: return put({0x48, 0x83, 0xC0 | reg(), disp});                      // add immediate
      case 8: return put({0x48, 0x8D, 0x84 | reg() << 3, 0x08, disp, 0, 0, 0});  // lea disp(%rax,%rcx)
      default: return put({0x48, 0xC1, 0xE0 | reg(), 1 + disp % 31});            // shl
    }
  }

  Footprint out;
  std::mt19937_64 random{1};
};

}  // namespace

Footprint make_footprint(std::size_t blocks) {
  Writer w;
  w.put(X86("push %rbx"));
  for (const unsigned clear : {0xC0U, 0xC9U, 0xD2U, 0xDBU}) w.put({0x31, clear});
  const std::size_t start = w.out.code.size();
  for (std::size_t i = 0; i < blocks; ++i) {
    for (std::uint64_t n = 2 + w.random() % 4; n > 0; --n) w.plain_instruction();
    w.put(X86("cmp %rcx, %rax"));
    w.put(X86("jb 1f; 1:"));  // both ways lead to the next instruction
  }
  w.put(X86("dec %rsi"));
  w.put({0x0F, 0x85});  // jnz to the start
  w.put_word(0U - static_cast<std::uint32_t>(w.out.code.size() + 4 - start));
  w.put(X86("pop %rbx"));
  w.put(X86("ret"));
  return std::move(w.out);
}

}  // namespace vpmu::exec::bench
