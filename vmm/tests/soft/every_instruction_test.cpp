// Every instruction that the decoder knows, on every model's features without KVM: it runs, or faults as the manual
// says, and none ends the guest. SDM 3A table 6-2.
#include <algorithm>
#include <map>
#include <set>

#include "decode/instruction.hpp"
#include "fakes/model_cpuid.hpp"
#include "soft/system_fixture.hpp"
#include "support/x86.hpp"

namespace vmm::test {
namespace {

using Code = std::vector<std::uint8_t>;

/// One encoding of each instruction, by its name. Memory operands are at [rbx], or at [rbx + index] of a gather.
class Encodings {
 public:
  Encodings() {
    add_legacy();
    add_vex();
    add_evex_and_xop();
  }
  [[nodiscard]] const std::map<std::string_view, Code>& all() const { return all_; }

 private:
  void add(Code code) {
    const std::size_t size = code.size();
    code.resize(size + max_instruction_bytes);
    const auto bytes = std::as_bytes(std::span{code}).first(max_instruction_bytes);
    const auto i = decode_instruction(bytes, CodeMode::bits64);
    if (!i) return;
    code.resize(i->length);
    all_.try_emplace(i->mnemonic, std::move(code));
  }
  /// With each ModRM byte that may matter: memory, and all registers.
  void add_operands(const Code& before) {
    constexpr std::uint8_t rbx = 3, with_index = 4, registers = 0xC0;
    const auto with = [&](std::uint8_t modrm, std::uint8_t sib) {
      Code code = before;
      code.push_back(modrm);
      if (modrm < registers && (modrm & 7) == with_index) code.push_back(sib);
      add(code);
    };
    for (std::uint8_t reg = 0; reg < 8; ++reg) {
      for (const std::uint8_t rm : {rbx, with_index}) with(static_cast<std::uint8_t>(reg << 3 | rm), 0x13);
      for (std::uint8_t rm = 0; rm < 8; ++rm) with(static_cast<std::uint8_t>(registers | reg << 3 | rm), 0);
    }
  }
  /// Whether the byte is a prefix or the escape to another map, and so no opcode of the first map.
  static bool is_no_opcode(unsigned byte) {
    constexpr std::array others{0x0FU, 0x26U, 0x2EU, 0x36U, 0x3EU, 0x62U, 0x64U, 0x65U,
                                0x66U, 0x67U, 0xC4U, 0xC5U, 0xF0U, 0xF2U, 0xF3U};
    return (byte & 0xF0) == 0x40 || std::ranges::find(others, byte) != others.end();
  }
  void add_legacy() {
    const std::array<Code, 4> maps{{{}, {0x0F}, {0x0F, 0x38}, {0x0F, 0x3A}}};
    const std::array<Code, 5> prefixes{{{}, {0x66}, {0xF2}, {0xF3}, {0x67}}};
    for (const Code& prefix : prefixes)
      for (const bool wide : {false, true})
        for (const Code& map : maps)
          for (unsigned opcode = 0; opcode < 256; ++opcode) {
            if (map.empty() && is_no_opcode(opcode)) continue;
            if (map.size() == 1 && (opcode == 0x38 || opcode == 0x3A)) continue;
            Code code = prefix;
            if (wide) code.push_back(0x48);
            code.insert(code.end(), map.begin(), map.end());
            code.push_back(static_cast<std::uint8_t>(opcode));
            add_operands(code);
          }
    for (unsigned suffix = 0; suffix < 256; ++suffix)  // 3DNow!
      add({0x0F, 0x0F, 0x03, static_cast<std::uint8_t>(suffix)});
  }
  /// The three bytes that VEX and XOP have before the opcode.
  void add_three(std::uint8_t first, unsigned first_map, unsigned last_map) {
    for (unsigned map = first_map; map <= last_map; ++map)
      for (unsigned last = 0; last < 16; ++last)  // W, L and pp
        for (const unsigned vvvv : {0xFU, 0xEU})
          for (unsigned opcode = 0; opcode < 256; ++opcode)
            add_operands({first, static_cast<std::uint8_t>(0xE0 | map),
                          static_cast<std::uint8_t>((last & 8) << 4 | vvvv << 3 | (last & 7)),
                          static_cast<std::uint8_t>(opcode)});
  }
  void add_vex() { add_three(0xC4, 1, 3); }
  void add_evex_and_xop() {
    add_three(0x8F, 8, 10);
    for (unsigned map = 1; map <= 6; ++map)
      for (unsigned pp = 0; pp < 8; ++pp)  // W and pp
        for (const unsigned last : {0x48U, 0x49U, 0x08U})
          for (unsigned opcode = 0; opcode < 256; ++opcode)
            add_operands({0x62, static_cast<std::uint8_t>(0xF0 | map),
                          static_cast<std::uint8_t>((pp & 4) << 5 | 0x7C | (pp & 3)), static_cast<std::uint8_t>(last),
                          static_cast<std::uint8_t>(opcode)});
  }

  std::map<std::string_view, Code> all_;
};

/// How often it completed, was #UD, or went elsewhere: other faults, and branches.
struct Ends {
  unsigned completed{}, undefined{}, others{};
};

class EveryInstruction : public SystemInstructions, public testing::WithParamInterface<std::string_view> {
 protected:
  /// Runs one instruction, with a HLT behind it.
  void run_one(std::string_view name, const Code& code, std::uint8_t ring) {
    guest_.enter_ring(ring);
    set_up(code, ring);
    SoftBackend& backend = begin();
    vpmu::exec::VectorState vectors;
    vectors.xcr0 = xcr0_;
    backend.set_vectors(vectors);
    for (unsigned n = 0; n < 8; ++n) {
      const auto exit = backend.run();
      ASSERT_TRUE(exit) << name;
      if (std::holds_alternative<InternalError>(*exit) || std::holds_alternative<Shutdown>(*exit)) ended_.emplace(name);
      if (std::holds_alternative<Hlt>(*exit) || ended_.contains(name)) break;
    }
    note(name, backend, ring, (ring == 0 ? code_at : user_at) + code.size());
    backend.visit_statistics([&](std::string_view statistic, std::uint64_t count) {
      if (statistic.starts_with("soft.unknown.") && count != 0) refused_.emplace(name);
    });
  }
  void set_up(const Code& code, std::uint8_t ring) {
    Code with_end = code;
    with_end.resize(code.size() + 16, 0xF4);
    const std::uint64_t at = ring == 0 ? code_at : user_at;
    guest_.store_code(at, {with_end.begin(), with_end.end()});
    auto& regs = guest_.backend.registers;
    constexpr std::uint64_t data = user_at + 0x400;
    constexpr std::array<std::byte, 640> zeros{};  // room for XSAVES
    guest_.store(data - 16, zeros);
    regs = {.rbx = data,
            .rcx = 1,
            .rsi = data,
            .rdi = data,
            .rsp = ring == 0 ? stack_top - 0x100 : user_at + 0x800,
            .rip = at,
            .rflags = 2};
  }
  void note(std::string_view name, SoftBackend& backend, std::uint8_t ring, std::uint64_t behind) {
    constexpr unsigned ud = 6, gp = 13, pushed_rip = 4;
    const std::uint64_t rip = backend.regs()->rip;
    const auto is_in = [&](unsigned vector) { return rip == handler_of(vector) + 1; };
    // HLT in ring 3 is #GP.
    const bool completed = ring == 0 ? rip == behind + 1 : is_in(gp) && pushed(pushed_rip) == behind;
    Ends& ends = ends_[name];
    ++(completed ? ends.completed : is_in(ud) ? ends.undefined : ends.others);
  }
  /// With all that the model has enabled.
  void be(std::string_view model) {
    constexpr std::uint64_t osxmmexcpt = vpmu::bit(10);
    cpuid_ = cpuid_of(model);
    const GuestFeatures features{cpuid_};
    xcr0_ = features.has(vpmu::exec::CpuFeature::avx) ? 7 : 1;
    guest_.backend.special.cr4 &= ~x86::cr4::OSXSAVE::mask;
    guest_.backend.special.cr4 |= x86::cr4::OSFXSR::mask | osxmmexcpt |
                                  (features.has(vpmu::exec::CpuFeature::xsave) ? x86::cr4::OSXSAVE::mask : 0);
  }

  std::uint64_t xcr0_{};
  std::set<std::string_view> ended_, refused_;
  std::map<std::string_view, Ends> ends_;
};

// What CPUID does not show is #UD in every ring (SDM 3A table 6-2), but for hints, which do nothing on older processors
// (SDM 2B NOP). VMX instructions need CR4.VMXE, GETSEC CR4.SMXE, which these guests cannot set.
TEST_P(EveryInstruction, RunsOrFaultsOnTheModel) {
  const Encodings encodings;
  EXPECT_GT(encodings.all().size(), 1500U);
  be(GetParam());
  for (const std::uint8_t ring : {std::uint8_t{0}, std::uint8_t{3}})
    for (const auto& [name, code] : encodings.all()) run_one(name, code, ring);
  EXPECT_EQ(testing::PrintToString(ended_), "{}") << "these ended the guest";
  EXPECT_EQ(testing::PrintToString(refused_), "{}") << "models have these, and the engine does not";
  constexpr unsigned all = 2;  // rings
  for (const std::string_view name :
       {"encls",    "enclu",    "enclv",       "pconfig", "vmcall",    "vmxon",      "vmptrld",  "invept", "vmfunc",
        "getsec",   "vmrun",    "clgi",        "skinit",  "xbegin",    "xend",       "xtest",    "clwb",   "rdpid",
        "umonitor", "tpause",   "sha1rnds4",   "wrpkru",  "gf2p8mulb", "vgf2p8mulb", "vpdpbusd", "kmovw",  "vprold",
        "monitor",  "mwait",    "monitorx",    "clzero",  "movdiri",   "enqcmd",     "ptwrite",  "hreset", "serialize",
        "senduipi", "tilezero", "aesenc128kl", "wrssd",   "setssbsy",  "incsspd",    "pfadd",    "femms",  "extrq",
        "vfmaddps", "blcfill",  "xstore",      "rdpru",   "psmash",    "ud2",        "rsm"})
    EXPECT_EQ(ends_[name].undefined, all) << name;
  for (const std::string_view name : {"endbr64", "rdsspq", "bndmk", "bndldx", "cldemote", "prefetch", "prefetchwt1",
                                      "prefetchw", "pause", "lzcnt", "tzcnt", "popcnt", "cmpxchg16b", "movaps", "fsin"})
    EXPECT_EQ(ends_[name].completed, all) << name;
  unsigned some_complete = 0;
  for (const auto& [name, ends] : ends_) some_complete += ends.completed != 0 ? 1 : 0;
  EXPECT_GT(some_complete, 500U);
}

/// Of the models that have the same features the first: what an instruction does follows from them.
std::vector<std::string_view> models_that_differ() {
  std::vector<std::string_view> names;
  std::set<std::vector<std::string_view>> features;
  for (const MachineModel& model : all_machine_models())
    if (features.insert(feature_names(cpuid_of(model.name))).second) names.push_back(model.name);
  return names;
}

std::string name_of(const testing::TestParamInfo<std::string_view>& model) {
  std::string name{model.param};
  std::ranges::replace(name, '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, EveryInstruction, testing::ValuesIn(models_that_differ()), name_of);

}  // namespace
}  // namespace vmm::test
