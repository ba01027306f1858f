#include <array>
#include <string>
#include <vector>

#include "devices/firmware_config.hpp"
#include "devices/rtc.hpp"
#include "devices/serial16550.hpp"
#include "fakes/fake_kvm.hpp"
#include "kvm/system.hpp"
#include "pmu/pmu_vcpu.hpp"
#include "scripted_guest.hpp"
#include "snapshot/snapshot_file.hpp"
#include "snapshot/vcpu_image.hpp"
#include "snapshot_sections.hpp"

// A machine's snapshot is changed by the input and then restored. Either checksums are computed after the changes, so
// that the changes reach the code that restores the state; or the file is changed after that, and must be refused with
// the name of a section. A restored machine is then used.

namespace {

using namespace vmm;
using namespace vmm::fuzz;
using vpmu::fuzz::ScriptedGuest;

constexpr std::uint64_t ram_bytes = GuestMemory::min_bytes;
constexpr auto generation = vpmu::Generation::haswell;
std::uint64_t pmus_restored = 0;

/// A KVM without a kernel, with one vCPU for all inputs.
struct Kvm {
  test::FakeKvm fake;
  Vm vm;
  Vcpu vcpu;

  static Kvm& get() {
    static Kvm kvm;
    return kvm;
  }

 private:
  Kvm() : vm{make_vm()}, vcpu{*vm.create_vcpu(0)} {}
  Vm make_vm() {
    fake.other_capabilities = 1;
    return *System::open(fake.path())->create_vm();
  }
};

/// The state of a PMU in the middle of a PEBS session.
PmuVcpuState pmu_state() {
  vpmu::Pmu pmu{{.generation = generation}};
  (void)pmu.wrmsr(vpmu::msr::IA32_PERFEVTSEL0, 0x4300C0);
  (void)pmu.wrmsr(vpmu::msr::IA32_PMC0, 0xFFFF'FFF0);
  (void)pmu.wrmsr(vpmu::msr::IA32_DS_AREA, ScriptedGuest::first_page);
  (void)pmu.wrmsr(vpmu::msr::IA32_PEBS_ENABLE, 1);
  (void)pmu.wrmsr(vpmu::msr::IA32_PERF_GLOBAL_CTRL, 0x7'0000'000F);
  return {.pmu = pmu.snapshot(), .pending_pmi = 1, .unread = 1, .nmi_in_service = 0};
}

struct NoLine final : InterruptLine {
  void set(LineLevel /*level*/) override {}
};

Bytes devices() {
  NoLine line;
  Serial16550 serial{[](std::uint8_t) {}, line};
  Rtc rtc{[] { return std::time_t{}; }};
  ByteWriter out;
  serial.save(out);
  rtc.save(out);
  out.put(std::uint16_t{1});
  FirmwareConfig{ram_bytes, 1}.save(out);
  return out.take();
}

Sections good_sections() {
  ByteWriter machine;
  const std::string model = "haswell";
  machine.put_run(std::as_bytes(std::span{model}));
  machine.put(ram_bytes);
  machine.put(std::uint32_t{1});
  machine.put(std::uint32_t{2});
  for (unsigned n = 0; n < 6; ++n) machine.put(std::uint64_t{0});
  machine.put_run({});
  ByteWriter vcpu;
  vcpu.put_run(*save_vcpu(Kvm::get().vcpu, std::array<std::uint32_t, 1>{0x8B}));
  ByteWriter pmu;
  pmu.put(pmu_state());
  pmu.put_run(std::as_bytes(std::span{"clock", 5}));
  pmu.put_run({});
  vcpu.put_run(pmu.take());
  Bytes pages(ram_bytes / vpmu::page_size / 8);
  pages[3] = std::byte{0x40};
  return {{"machine", machine.take()},
          {"chips", *save_chips(Kvm::get().vm)},
          {"devices", devices()},
          {"vcpu 0", vcpu.take()},
          {"pages", pages},
          {"memory", Bytes(vpmu::page_size, std::byte{0x5A})}};
}

void use(Input& input, vpmu::Pmu& pmu) {
  const vpmu::PmuSnapshot again = pmu.snapshot();
  vpmu::Pmu other{{.generation = generation}};
  require(other.restore(again) == vpmu::RestoreStatus::ok, "what was restored can be saved and restored");
  const vpmu::MsrSpans registers = vpmu::trap_ranges(pmu.generation());
  for (const vpmu::MsrSpan& span : registers.all())
    for (std::uint32_t i = 0; i < span.count; ++i) (void)pmu.rdmsr(span.first + i);
  ScriptedGuest guest{pmu};
  for (unsigned n = 0; n < 24; ++n) {
    guest.begin_call();
    const auto flags = input.take<std::uint8_t>();
    vpmu::Retirement retired{};
    retired.ip = retired.next_ip = vpmu::GuestLinear{0x1000};
    retired.cpl = flags & 3U;
    retired.has_load = (flags & 4U) != 0;
    retired.branch = {.kind = static_cast<vpmu::BranchKind>(flags >> 5U),
                      .taken = (flags & 8U) != 0,
                      .mispredicted = (flags & 16U) != 0};
    retired.cycles = 1;
    pmu.retire(retired, guest);
    (void)pmu.plan();
  }
}

void restore_devices(const Bytes& image) {
  NoLine line;
  Serial16550 serial{[](std::uint8_t) {}, line};
  Rtc rtc{[] { return std::time_t{}; }};
  std::array<std::byte, 1> byte{};
  ByteReader in{image};
  serial.restore(in);
  rtc.restore(in);
  (void)in.get<std::uint16_t>();
  FirmwareConfig firmware_config{ram_bytes, 1};
  firmware_config.restore(in);
  firmware_config.port_read(FirmwareConfig::data_port, byte);
  for (std::uint16_t port = 0; port < Serial16550::port_count; ++port) serial.port_read(port, byte);
  rtc.port_read(Rtc::first_port + 1, byte);
}

void restore_vcpus(Input& input, const MachineImage& image, bool with_kvm) {
  for (const Bytes& vcpu : image.vcpus) {
    ByteReader in{vcpu};
    const auto processor = in.get_run();
    ByteReader pmu_image{in.get_run()};
    if (!in.done()) continue;
    if (with_kvm) (void)restore_vcpu(Kvm::get().vcpu, processor, 0);
    const auto state = pmu_image.get<PmuVcpuState>();
    (void)pmu_image.get_run();  // of the source
    (void)pmu_image.get_run();
    vpmu::Pmu pmu{{.generation = generation}};
    if (!pmu_image.done() || pmu.restore(state.pmu) != vpmu::RestoreStatus::ok) continue;
    use(input, pmu);
    ++pmus_restored;
  }
}

void restore(Input& input, bool damaged, bool with_kvm) {
  static const GuestMemory memory = *GuestMemory::create(ram_bytes);
  auto snapshot = SnapshotReader::open(MemoryFile::path());
  Result<void> all = snapshot ? snapshot->read_memory(memory) : Failure{snapshot.error()};
  require(!damaged || !all, "what is damaged is refused");
  if (!all) {
    const std::string why = describe(all.error());
    require(all.error().kind == ErrorKind::usage && why.find("section \"") != std::string::npos &&
                why.find('\n') == std::string::npos,
            "a refusal names a section in one line");
  }
  if (!snapshot) return;
  const MachineImage& image = snapshot->image();
  require(image.cpus >= 1 && image.cpus <= MachineImage::max_vcpus && image.vcpus.size() == image.cpus &&
              image.model.size() <= 64,
          "an image is of bounded size");
  restore_devices(image.devices);
  if (with_kvm) (void)restore_chips(Kvm::get().vm, image.chips);
  restore_vcpus(input, image, with_kvm);
  Kvm::get().fake.requests.clear();
}

}  // namespace

extern "C" std::uint64_t fuzz_work() { return pmus_restored; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Sections good = good_sections();
  Input input{data, size};
  const auto mode = input.take<std::uint8_t>();
  Sections sections = good;
  for (unsigned changes = input.take<std::uint8_t>() % 16; changes != 0; --changes) change(input, sections);
  Bytes file = file_of(sections);
  const bool damage = mode % 4 == 3;
  if (damage) file[input.take<std::uint32_t>() % file.size()] ^= std::byte{1} << (mode >> 5U);
  if (mode % 4 == 2) file.resize(file.size() - std::min<std::size_t>(1 + input.take<std::uint16_t>(), file.size()));
  const MemoryFile written{file};
  restore(input, mode % 4 >= 2, mode % 8 == 4);
  return 0;
}
