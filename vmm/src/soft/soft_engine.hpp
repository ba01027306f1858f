#pragma once
#include <array>
#include <mutex>
#include <optional>

#include "exec/engine.hpp"
#include "memory/engine_ram.hpp"
#include "memory/host_code.hpp"
#include "soft/soft_core.hpp"

namespace vmm {

/// Guest RAM, and while it is `open` a scratch page in place of each page without RAM: so the engine itself runs a
/// device access.
class ScratchRam final : public vpmu::exec::Ram {
 public:
  explicit ScratchRam(const LinearMemory& memory) : ram_{memory} {}
  std::optional<std::uint64_t> read_word(vpmu::GuestPhysical at, unsigned bytes) override {
    return ram_.read_word(at, bytes);
  }
  bool exchange_word(vpmu::GuestPhysical at, unsigned bytes, std::uint64_t expected, std::uint64_t desired) override {
    return ram_.exchange_word(at, bytes, expected, desired);
  }
  std::byte* page(vpmu::GuestPhysical page) override;
  void will_write(vpmu::GuestPhysical page) override;
  void close() { ram_.close(); }

  /// Page-aligned, as the engine requires.
  alignas(vpmu::page_size) std::array<std::byte, vpmu::page_size> scratch{};
  bool open{};

 private:
  EngineRam ram_;
};

/// The instruction engine of a vCPU without KVM. Runs the guest's code on the registers of a SoftCore, which others
/// change in between, and lets the core's time pass meanwhile.
///
/// Answers what a guest asks often and what changes neither the engine's state nor what it may run: the TSC, CPUID,
/// CR8, and the MSRs that are the processor's own. Every other system instruction is SystemUnit's.
class SoftEngine final : private vpmu::exec::NoPlatform {
 public:
  /// Both must outlive it.
  SoftEngine(SoftCore& core, vpmu::exec::Compiling compiling, vpmu::exec::KickFlag kick);

  /// Runs until `instructions` have retired, or until something stops it earlier.
  vpmu::exec::Stop run(std::uint64_t instructions);
  /// Runs one instruction with scratch() in place of each page without RAM. Call forget_page() for those.
  vpmu::exec::Stop run_on_scratch();
  [[nodiscard]] std::span<std::byte, vpmu::page_size> scratch() { return ram_.scratch; }

  /// The core's registers have changed otherwise than by run().
  void registers_changed() { stale_ = true; }
  /// Any translation may be stale.
  void translations_changed() { flush_ = true; }
  /// Those are that the TLBs have lost by the instruction that has just run.
  void translations_changed(const vpmu::TlbFlush& lost);
  /// Those that they have lost while another engine had the vCPU.
  void translations_changed(const LostTranslations& lost) {
    lost_.add(lost);
    stale_ = true;
  }
  /// A device, which does not say what it writes, may have written to RAM.
  void written_unseen();
  /// From here on it is told the same as this engine: VcpuBackend::tell().
  void tell(MemoryFollower* follower);
  /// The page at this linear address is looked up anew.
  void forget_page(std::uint64_t at) { engine_.forget_page(at); }
  /// Somebody other than this vCPU has written to a page of RAM.
  void written(vpmu::GuestPhysical page);
  /// Others have run: a page that this vCPU wrote to without reporting may hold their code.
  void tell_of_writes_anew() { engine_.tell_of_writes_anew(); }

  /// After run() gave Stop::fault and Stop::float_error.
  [[nodiscard]] const std::optional<vpmu::exec::MissingAccess>& missing() const { return engine_.missing(); }
  [[nodiscard]] std::uint8_t raised() const { return engine_.raised(); }
  [[nodiscard]] std::uint64_t decoded_blocks() const { return engine_.decoded_blocks(); }
  [[nodiscard]] std::uint64_t compiled_blocks() const { return engine_.compiled_blocks(); }

 private:
  using Answer = vpmu::exec::Answer;
  Answer rdtsc(std::uint64_t& value) override;
  Answer rdtscp(std::uint64_t& value, std::uint64_t& aux) override;
  Answer rdmsr(std::uint32_t index, std::uint64_t& value) override;
  Answer wrmsr(std::uint32_t index, std::uint64_t value) override;
  Answer cpuid(std::uint32_t leaf, std::uint32_t subleaf, vpmu::exec::CpuidAnswer& out) override;
  Answer read_cr8(std::uint64_t& value) override;
  Answer write_cr8(std::uint64_t value) override;
  Answer enables_interrupts() override;
  Answer swap_gs(std::uint64_t& base) override;
  bool has(vpmu::exec::CpuFeature feature) override { return core_->features.has(feature); }
  bool runs_alone() override { return true; }
  vpmu::exec::VectorState* vectors() override { return &core_->state.vectors; }

  void catch_up(std::uint64_t passed);
  template <class Tell>
  void to_follower(Tell tell);

  SoftCore* core_;
  ScratchRam ram_;
  MappedHostCode host_code_;
  vpmu::exec::Engine engine_;
  /// Another vCPU's thread may be telling the follower of a vCPU whose own thread ends.
  std::mutex follower_mutex_;
  MemoryFollower* follower_{};
  std::uint64_t entered_at_{};  ///< engine_.passed() at the start of its current run.
  bool flush_{true};            ///< The engine's translations may be stale,
  LostTranslations lost_;       ///< or these.
  bool runs_one_{};             ///< Its run is of one instruction, after which somebody looks at the shadow of STI.
  bool stale_{true};            ///< The engine's copy of the registers is out of date.
};

}  // namespace vmm
