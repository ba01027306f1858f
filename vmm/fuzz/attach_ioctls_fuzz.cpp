#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attach/attachment.hpp"
#include "fakes/fake_kvm.hpp"
#include "fuzz_input.hpp"
#include "kvm/kick.hpp"
#include "strict_kvm.hpp"
#include "vpmu/msr.hpp"

// The ioctls of a VMM, in any order and with any contents, go through the attached library to a fake KVM that checks
// them as the real one does. The VMM must see what KVM alone would have answered: its lists are only read, and no
// further than KVM reads; a refused call has no effect; an MSR access is an exit only if the VMM's own filter asks for
// it.

namespace {

using namespace vmm;
using namespace vmm::fuzz;
using test::FakeKvm;
using vpmu::fuzz::Input;
using vpmu::fuzz::require;

std::uint64_t calls = 0;
constexpr std::uint64_t ram_pages = 130;
constexpr std::uint32_t microcode = 0x8B, tsc = 0x10;

using Words = std::vector<std::uint64_t>;

/// A VMM's structure with its array, in memory that ends with the array.
template <class T>
class Buffer {
 public:
  explicit Buffer(std::size_t array_bytes)
      : size_{sizeof(T) + array_bytes}, bytes_{std::make_unique<std::byte[]>(size_)} {
    std::memset(bytes_.get(), 0, size_);
  }
  T* operator->() { return reinterpret_cast<T*>(bytes_.get()); }
  T& operator*() { return *operator->(); }
  [[nodiscard]] std::uintptr_t address() const { return reinterpret_cast<std::uintptr_t>(bytes_.get()); }
  [[nodiscard]] std::vector<std::byte> contents() const { return {bytes_.get(), bytes_.get() + size_}; }

 private:
  std::size_t size_;
  std::unique_ptr<std::byte[]> bytes_;
};

/// A VMM that calls whatever the input says.
class Vmm {
 public:
  explicit Vmm(Input& in) : in_{&in}, ram_(ram_pages * page / sizeof(std::uint64_t)) {
    static constexpr std::array<const char*, 4> sources{"clock", "exact", "clock", "step"};
    attachment_.emplace(
        AttachOptions{.model = find_machine_model("haswell"), .source = sources[take<std::uint8_t>() % sources.size()]},
        std::string{}, log_);
    make_vm();
    make_vcpu();
  }

  void act() {
    switch (take<std::uint8_t>() % 24) {
      case 0: make_vm(); break;
      case 1: make_vcpu(); break;
      case 2: close_one(); break;
      case 3: refuse_next(); break;
      case 4:
      case 5: set_filter(); break;
      case 6: enable(); break;
      case 7:
      case 8: set_memory(); break;
      case 9: get_dirty_log(); break;
      case 10:
      case 11: set_msrs(); break;
      case 12:
      case 13: get_msrs(); break;
      case 14: list_msrs(); break;
      case 15: set_cpuid(); break;
      case 16: set_debug(); break;
      case 17: get_nested(); break;
      case 18: set_nested(); break;
      case 19: set_registers(); break;
      case 20: anything(); break;
      default: run(); break;
    }
    kvm_.refused = 0;
    compare_filters();
  }

 private:
  struct VcpuOf {
    int fd;
    int vm;
  };
  /// What the VMM has of its VM.
  struct Vm {
    int fd;
    Filter filter{};
    std::uint64_t reasons{};
    bool prepared{};
  };

  template <class T>
  T take() {
    return in_->take<T>();
  }
  Vm& vm() {
    if (vms_.empty()) make_vm();
    return vms_[take<std::uint8_t>() % vms_.size()];
  }
  VcpuOf& vcpu() {
    // Only the call that needs the vCPU is to be refused, not the vCPU's creation.
    const unsigned long refused = vcpus_.empty() ? std::exchange(kvm_.refused, 0) : kvm_.refused;
    while (vcpus_.empty()) make_vcpu();
    kvm_.refused = refused;
    return vcpus_[take<std::uint8_t>() % vcpus_.size()];
  }
  Vm* vm_of(const VcpuOf& vcpu) {
    const auto found = std::ranges::find(vms_, vcpu.vm, &Vm::fd);
    return found == vms_.end() ? nullptr : &*found;
  }
  int call(int fd, unsigned long request, std::uintptr_t argument = 0) {
    ++calls;
    errno = 0;
    return attachment_->call(fd, request, argument);
  }
  /// A call by which KVM writes no memory of the caller.
  template <class T>
  int tell(int fd, unsigned long request, Buffer<T>& what) {
    const auto before = what.contents();
    const int answer = call(fd, request, what.address());
    const int error = errno;
    require(what.contents() == before, "what KVM only reads nobody writes");
    require(request != refused() || (answer == -1 && error != 0), "a call that KVM refuses fails");
    errno = error;
    return answer;
  }
  [[nodiscard]] unsigned long refused() const { return kvm_.refused; }

  void make_vm() {
    if (vms_.size() > 2) return;
    const unsigned long refused = std::exchange(kvm_.refused, 0);
    const int fd = call(kvm_.fake.system(), KVM_CREATE_VM);
    require(fd >= 0, "a VM");
    vms_.push_back({.fd = fd});
    kvm_.refused = refused;
  }
  void make_vcpu() {
    if (vcpus_.size() > 3) return;
    Vm& of = vm();
    const int fd = call(of.fd, KVM_CREATE_VCPU, take<std::uint8_t>());
    if (fd < 0) return;
    of.prepared = true;
    vcpus_.push_back({.fd = fd, .vm = of.fd});
  }
  void close_one() {
    const bool of_vm = take<std::uint8_t>() % 4 == 0;
    const int fd = of_vm ? vm().fd : vcpu().fd;
    if (take<std::uint8_t>() % 4 != 0) attachment_->closing(fd);  // or by other means than close()
    ::close(fd);
    std::erase_if(vms_, [&](const Vm& v) { return v.fd == fd; });
    std::erase_if(vcpus_, [&](const VcpuOf& v) { return v.fd == fd || v.vm == fd; });
  }
  void refuse_next() {
    static constexpr std::array<unsigned long, 8> requests{
        KVM_X86_SET_MSR_FILTER, KVM_SET_GUEST_DEBUG, KVM_SET_CPUID2,       KVM_SET_USER_MEMORY_REGION,
        KVM_GET_DIRTY_LOG,      KVM_ENABLE_CAP,      KVM_SET_NESTED_STATE, KVM_SET_SREGS};
    kvm_.refused = requests[take<std::uint8_t>() % requests.size()];
    switch (kvm_.refused) {
      case KVM_X86_SET_MSR_FILTER: set_filter(); break;
      case KVM_SET_GUEST_DEBUG: set_debug(); break;
      case KVM_SET_CPUID2: set_cpuid(); break;
      case KVM_SET_USER_MEMORY_REGION: set_memory(); break;
      case KVM_GET_DIRTY_LOG: get_dirty_log(); break;
      case KVM_ENABLE_CAP: enable(); break;
      case KVM_SET_NESTED_STATE: set_nested(); break;
      default: set_registers(); break;
    }
  }

  std::uint32_t take_msr() {
    static constexpr std::array<std::uint32_t, 14> known{0xC1,  0xC2,  0x186, 0x187, 0x38F,     0x38E, 0x390,
                                                         0x3F1, 0x600, 0x1D9, 0x1A0, microcode, tsc,   0x4C1};
    const auto which = take<std::uint8_t>();
    if (which >= 0xF0) return take<std::uint32_t>();
    return which >= 0xC0 ? 0x180 + which % 0x20U : known[which % known.size()];
  }

  // Bitmaps have the words that KVM reads.
  void set_filter() {
    Vm& of = vm();
    Buffer<kvm_msr_filter> filter{0};
    std::vector<std::unique_ptr<Buffer<std::uint64_t>>> bitmaps;
    const auto flags = take<std::uint8_t>();
    filter->flags = flags >= 0xFC ? take<std::uint32_t>() : flags % 2U;
    for (unsigned n = take<std::uint8_t>() % 4; n > 0; --n) {
      auto& range = filter->ranges[n * 5 % KVM_MSR_FILTER_MAX_RANGES];
      const auto what = take<std::uint8_t>();
      range.flags = what >= 0xFC ? take<std::uint32_t>() : 1 + what % 3U;
      range.base = take_msr();
      range.nmsrs = what >= 0xF8 ? take<std::uint32_t>() : what / 3U;
      const std::uint64_t words = range.nmsrs == 0 || range.nmsrs > max_filtered ? 1 : (range.nmsrs + 63) / 64;
      auto& bitmap =
          *bitmaps.emplace_back(std::make_unique<Buffer<std::uint64_t>>((words - 1) * sizeof(std::uint64_t)));
      for (std::uint64_t word = 0; word < words; ++word) (&*bitmap)[word] = take<std::uint64_t>();
      range.bitmap = reinterpret_cast<std::uint8_t*>(bitmap.address());
    }
    const auto copy = Filter::copy(*filter);
    const int answer = tell(of.fd, KVM_X86_SET_MSR_FILTER, filter);
    require(answer == 0 || answer == -1, "an answer");
    require(copy || (answer == -1 && errno == EINVAL) || refused() != 0, "a filter that KVM refuses is refused");
    if (answer == 0) of.filter = *copy;
  }
  void enable() {
    Vm& of = vm();
    Buffer<kvm_enable_cap> cap{0};
    const auto what = take<std::uint8_t>();
    cap->cap = what >= 0xE0 ? std::uint32_t{KVM_CAP_DIRTY_LOG_RING} : KVM_CAP_X86_USER_SPACE_MSR;
    cap->args[0] = what >= 0xC0 ? take<std::uint64_t>() : what % 8U;
    const bool legal = cap->cap == KVM_CAP_X86_USER_SPACE_MSR && (cap->args[0] & ~7ULL) == 0 && refused() == 0;
    const bool withheld = cap->cap == KVM_CAP_DIRTY_LOG_RING;
    const int answer = withheld ? call(of.fd, KVM_ENABLE_CAP, cap.address()) : tell(of.fd, KVM_ENABLE_CAP, cap);
    require(answer == (legal ? 0 : -1), "a capability is enabled as KVM would");
    if (legal) of.reasons = cap->args[0];
  }

  void set_memory() {
    const Vm& of = vm();
    const bool second_form = take<std::uint8_t>() % 4 == 0;
    Buffer<kvm_userspace_memory_region> region{second_form ? 128U : 0U};  // kvm_userspace_memory_region2 begins alike
    const auto what = take<std::uint8_t>();
    region->slot = what % 4U + (what >= 0xF0 ? 1U << 16U : 0U);
    region->flags = what >> 2U & 3U;
    const std::uint64_t pages = what >= 0xC0 ? 0 : what >= 0x60 ? 70 : 1;
    region->guest_phys_addr = take<std::uint8_t>() % 8 * 0x100 * page;
    region->memory_size = pages * page;
    region->userspace_addr = reinterpret_cast<std::uintptr_t>(ram_.data());
    constexpr unsigned long request2 = _IOW(KVMIO, 0x49, std::uint8_t[160]);
    if (second_form && refused() == 0) {
      (void)tell(of.fd, request2, region);  // the fake does not know it, and says yes to all
      forget_memory(of);
      return;
    }
    (void)tell(of.fd, KVM_SET_USER_MEMORY_REGION, region);
  }
  /// Closes a VM whose slots in KVM and in the model may now differ.
  void forget_memory(const Vm& of) {
    const int fd = of.fd;
    attachment_->closing(fd);
    ::close(fd);
    for (const VcpuOf& v : vcpus_) {
      if (v.vm != fd) continue;
      (void)call(v.fd, KVM_RUN);
      attachment_->closing(v.fd);
      ::close(v.fd);
    }
    std::erase_if(vcpus_, [&](const VcpuOf& v) { return v.vm == fd; });
    std::erase_if(vms_, [&](const Vm& v) { return v.fd == fd; });
  }
  void get_dirty_log() {
    const Vm& of = vm();
    Buffer<kvm_dirty_log> log{0};
    log->slot = take<std::uint8_t>() % 5U;
    const auto& slots = kvm_.vm(of.fd).slots;
    const auto found = slots.find(log->slot);
    const std::uint64_t words = found == slots.end() ? 1 : (found->second.bytes / page + 63) / 64;
    Buffer<std::uint64_t> bitmap{(words - 1) * sizeof(std::uint64_t)};
    log->dirty_bitmap = reinterpret_cast<void*>(bitmap.address());
    kvm_.dirty = take<std::uint64_t>();
    const int answer = tell(of.fd, KVM_GET_DIRTY_LOG, log);
    const bool logged = found != slots.end() && found->second.logged && refused() == 0;
    require(answer == (logged ? 0 : -1), "a log is told as KVM would");
    for (std::uint64_t n = 0; n < words; ++n)
      require(logged ? ((&*bitmap)[n] & kvm_.dirty) == kvm_.dirty : (&*bitmap)[n] == 0,
              "what KVM has found stays in its log, and a refused one is left alone");
  }

  /// A list of MSRs; one that is longer than KVM accepts has no entries in memory.
  Buffer<kvm_msrs> take_msrs() {
    const auto what = take<std::uint8_t>();
    const bool too_long = what >= 0xF0;
    const std::uint32_t count = too_long ? max_msrs + take<std::uint8_t>() : what >= 0xE8 ? max_msrs - 1 : what % 9U;
    Buffer<kvm_msrs> list{too_long ? 0 : count * sizeof(kvm_msr_entry)};
    list->nmsrs = count;
    for (std::uint32_t n = 0; !too_long && n < count; ++n)
      list->entries[n] = {.index = take_msr(), .reserved = 0, .data = take<std::uint64_t>()};
    return list;
  }
  void set_msrs() {
    const VcpuOf it = vcpu();
    auto list = take_msrs();
    const int answer = tell(it.fd, KVM_SET_MSRS, list);
    check_served(*list, answer);
    for (int n = 0; n < answer; ++n)
      if (list->entries[n].index == microcode)
        require(kvm_.fake.vcpu(it.fd).msrs[microcode] == bios_sign_id(*find_machine_model("haswell")),
                "the model's microcode stays");
  }
  void get_msrs() {
    const VcpuOf it = vcpu();
    auto list = take_msrs();
    const std::uint32_t there = list->nmsrs < max_msrs ? list->nmsrs : 0;
    const std::vector<kvm_msr_entry> before(list->entries, list->entries + there);
    const int answer = call(it.fd, KVM_GET_MSRS, list.address());
    check_served(*list, answer);
    for (std::uint32_t n = 0; n < there; ++n) {
      require(list->entries[n].index == before[n].index, "entries keep their place");
      require(static_cast<int>(n) < answer || list->entries[n].data == before[n].data, "what was not read stays");
      if (static_cast<int>(n) >= answer || (before[n].index != tsc && before[n].index != microcode)) continue;
      // A TSC that nobody has set runs.
      const std::uint64_t kvms = kvm_.fake.vcpu(it.fd).msrs[before[n].index];
      require(list->entries[n].data == kvms || (before[n].index == tsc && kvms == 0), "KVM's MSRs are KVM's");
    }
  }
  static void check_served(const kvm_msrs& list, int answer) {
    const int error = errno;
    if (list.nmsrs >= max_msrs) require(answer == -1 && error == E2BIG, "too long a list is refused");
    if (list.nmsrs < max_msrs)
      require(answer >= 0 && static_cast<std::uint32_t>(answer) <= list.nmsrs, "so many were served");
  }
  void list_msrs() {
    const std::uint32_t places = take<std::uint8_t>();
    Buffer<kvm_msr_list> list{places * sizeof(std::uint32_t)};
    list->nmsrs = places;
    const int answer = call(kvm_.fake.system(), KVM_GET_MSR_INDEX_LIST, list.address());
    require(answer == (places >= list->nmsrs ? 0 : -1), "a list that is too short is refused");
    require(list->nmsrs >= kvm_.fake.msr_list.size(), "KVM's and ours");
    for (std::uint32_t n = 0; answer != 0 && n < places; ++n) require(list->indices[n] == 0, "and stays as it was");
  }

  void set_cpuid() {
    const VcpuOf it = vcpu();
    const auto what = take<std::uint8_t>();
    const bool too_long = what >= 0xE0;
    const std::uint32_t count = too_long ? max_leaves + 1 + what % 4U : what % 16U;
    Buffer<kvm_cpuid2> list{too_long ? 0 : count * sizeof(kvm_cpuid_entry2)};
    list->nent = count;
    static constexpr std::array<std::uint32_t, 10> leaves{0,   1,   4,          7,          0xA,
                                                          0xB, 0xD, 0x40000000, 0x80000000, 0x80000001};
    for (std::uint32_t n = 0; !too_long && n < count; ++n) {
      auto& e = list->entries[n];
      e.function = leaves[take<std::uint8_t>() % leaves.size()];
      e.index = take<std::uint8_t>() % 4U;
      e.flags = take<std::uint8_t>() % 2U;
      e.eax = take<std::uint32_t>();
      e.ebx = take<std::uint32_t>();
      e.ecx = take<std::uint32_t>();
      e.edx = take<std::uint32_t>();
    }
    const auto before = kvm_.fake.vcpu(it.fd).cpuid.size();
    const int answer = tell(it.fd, KVM_SET_CPUID2, list);
    if (too_long && refused() == 0) require(answer == -1 && errno == E2BIG, "too long a table is refused");
    if (answer != 0) require(kvm_.fake.vcpu(it.fd).cpuid.size() == before, "and KVM keeps the one it has");
  }

  void set_debug() {
    const VcpuOf& it = vcpu();
    Buffer<kvm_guest_debug> how{0};
    static constexpr std::array<std::uint32_t, 6> kinds{0,
                                                        KVM_GUESTDBG_ENABLE,
                                                        KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_SINGLESTEP,
                                                        KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_USE_SW_BP,
                                                        KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_USE_HW_BP,
                                                        KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_INJECT_BP};
    how->control = refused() != 0 ? std::uint32_t{KVM_GUESTDBG_ENABLE} : kinds[take<std::uint8_t>() % kinds.size()];
    for (auto& reg : how->arch.debugreg) reg = take<std::uint8_t>();
    const bool busy = (how->control & KVM_GUESTDBG_INJECT_BP) != 0;
    const int answer = tell(it.fd, KVM_SET_GUEST_DEBUG, how);
    require(answer == (busy || refused() != 0 ? -1 : 0), "a debugger gets KVM's answer");
    if (answer == 0) debugged_[it.fd] = (how->control & KVM_GUESTDBG_ENABLE) != 0;
  }

  // A state that KVM returns may be set again later, as it is or changed.
  void get_nested() {
    const VcpuOf it = vcpu();
    const auto what = take<std::uint8_t>();
    const std::uint32_t room = what < 0x40   ? what
                               : what < 0x80 ? sizeof(kvm_nested_state) + what
                                             : sizeof(kvm_nested_state) + 4096 + what % 8U;
    Buffer<kvm_nested_state> state{std::max<std::size_t>(room, sizeof(kvm_nested_state)) - sizeof(kvm_nested_state)};
    state->size = room;
    const int answer = call(it.fd, KVM_GET_NESTED_STATE, state.address());
    require(answer == (room < sizeof(kvm_nested_state) ? -1 : 0), "a nested state has KVM's head at least");
    if (answer != 0) return;
    require(state->size <= room, "and no more than there is room for");
    kept_ = state.contents();
  }
  void set_nested() {
    const VcpuOf& it = vcpu();
    Buffer<kvm_nested_state> state{kept_.size() < sizeof(kvm_nested_state) ? 0
                                                                           : kept_.size() - sizeof(kvm_nested_state)};
    if (!kept_.empty()) std::memcpy(&*state, kept_.data(), kept_.size());
    if (kept_.empty()) state->size = sizeof(kvm_nested_state);
    for (unsigned n = take<std::uint8_t>() % 4; n > 0 && state->size > sizeof(kvm_nested_state); --n) {
      const auto where = take<std::uint16_t>() % (state->size - sizeof(kvm_nested_state));
      reinterpret_cast<std::uint8_t*>(&*state)[sizeof(kvm_nested_state) + where] ^= take<std::uint8_t>();
    }
    const auto how = take<std::uint8_t>();
    if (how >= 0xE0) state->flags = take<std::uint16_t>();
    if (how < 0x10) state->size = std::min<std::uint32_t>(state->size, how * 16U);
    if (refused() != 0) state->format = KVM_STATE_NESTED_FORMAT_VMX;  // one that is KVM's
    const bool legal = refused() == 0 || (state->size >= sizeof(kvm_nested_state) && (state->flags & ~0x10FU) == 0 &&
                                          (state->flags & 3U) != 2);
    if (legal) (void)tell(it.fd, KVM_SET_NESTED_STATE, state);
  }

  void set_registers() {
    const VcpuOf it = vcpu();
    Buffer<kvm_sregs> sregs{0};
    Buffer<kvm_regs> regs{0};
    const auto what = take<std::uint8_t>();
    sregs->cs.base = (what & 1U) != 0 ? 0xFFFF'0000 : 0;
    sregs->cs.l = what >> 1U & 1U;
    sregs->cr0 = (what & 4U) != 0 ? 0x8000'0001 : 0x10;
    sregs->cr3 = take<std::uint8_t>() * page;
    sregs->efer = (what & 2U) != 0 ? 0x500 : 0;
    sregs->cr4 = 0x20;
    regs->rip = (what & 8U) != 0 ? 0xFFF0 : take<std::uint32_t>();
    regs->rcx = take_msr();
    (void)tell(it.fd, KVM_SET_SREGS, sregs);
    if (refused() == 0) (void)tell(it.fd, KVM_SET_REGS, regs);
  }
  /// Requests that nobody handles, on any file.
  void anything() {
    const Buffer<std::uint64_t> memory{8192};
    const auto what = take<std::uint8_t>();
    const int fd = what % 3 == 0 ? kvm_.fake.system() : what % 3 == 1 ? vm().fd : vcpu().fd;
    static constexpr std::array<unsigned long, 6> requests{KVM_GET_LAPIC,   KVM_GET_REGS,     KVM_GET_VCPU_EVENTS,
                                                           KVM_GET_TSC_KHZ, KVM_GET_MP_STATE, KVM_GET_SREGS};
    (void)call(fd, requests[what / 3 % requests.size()], memory.address());
    constexpr std::uint32_t room = 16;
    Buffer<kvm_cpuid2> supported{room * sizeof(kvm_cpuid_entry2)};
    supported->nent = room;
    require(call(kvm_.fake.system(), KVM_GET_SUPPORTED_CPUID, supported.address()) == 0, "what KVM supports");
    require(call(kvm_.fake.system(), KVM_CHECK_EXTENSION, KVM_CAP_DIRTY_LOG_RING) == 0, "no ring");
  }

  /// Whether KVM's present filter makes the access an exit.
  bool exits(const VcpuOf& it, std::uint32_t msr, std::uint32_t access) {
    return kvm_.vm(it.vm).filter.denies(msr, access);
  }

  // The guest causes a few exits; the first that is the VMM's must end KVM_RUN, with kvm_run as KVM left it.
  void run() {
    const VcpuOf it = vcpu();
    const Vm* const of = vm_of(it);
    auto& script = kvm_.fake.vcpu(it.fd).script;
    script.clear();
    std::optional<kvm_run> expected;
    struct Refused {
      bool asked{}, gp{};
    };
    const auto refused_msr = std::make_shared<Refused>();
    const bool debugged = debugged_[it.fd];
    for (unsigned n = take<std::uint8_t>() % 4; n > 0 && !expected; --n) {
      const auto what = take<std::uint8_t>();
      kvm_run next{};
      switch (what % 5) {
        case 0:
        case 1: {
          const std::uint32_t msr = take_msr(), access = what % 5 == 0 ? KVM_MSR_FILTER_READ : KVM_MSR_FILTER_WRITE;
          const auto value = take<std::uint64_t>();
          if (of == nullptr || !exits(it, msr, access)) continue;
          (access == KVM_MSR_FILTER_READ ? FakeKvm::reads(msr) : FakeKvm::writes(msr, value))(next);
          if (of->filter.denies(msr, access) && (of->reasons & KVM_MSR_EXIT_REASON_FILTER) != 0) expected = next;
          break;
        }
        case 2:
          next.exit_reason = KVM_EXIT_IO;
          next.io = {.direction = KVM_EXIT_IO_OUT, .size = 1, .port = 0x3F8, .count = 1, .data_offset = 0x1000};
          expected = next;
          break;
        case 3:
          FakeKvm::reads(0x1234'5678)(next);
          next.msr.reason = KVM_MSR_EXIT_REASON_UNKNOWN;
          expected = next;
          break;
        default:
          next.exit_reason = KVM_EXIT_DEBUG;
          next.debug.arch.exception = 1;
          next.debug.arch.pc = 0x1000;
          if (debugged) expected = next;
          break;
      }
      script.emplace_back([next](kvm_run& run) {
        const auto flag = run.immediate_exit;
        run.exit_reason = next.exit_reason;
        if (next.exit_reason == KVM_EXIT_DEBUG)
          run.debug = next.debug;
        else if (next.exit_reason == KVM_EXIT_IO)
          run.io = next.io;
        else
          run.msr = next.msr;
        run.immediate_exit = flag;
      });
    }
    const bool wants_out = take<std::uint8_t>() % 8 == 0;
    if (wants_out) FakeKvm::ask_to_come_out(it.fd);
    const int answer = call(it.fd, KVM_RUN);
    const int error = errno;
    check_exit(it, answer, error, wants_out, expected);
  }
  void check_exit(const VcpuOf& it, int answer, int error, bool wants_out, const std::optional<kvm_run>& expected) {
    const kvm_run run = FakeKvm::run_page(it.fd);
    if (wants_out) {
      require(answer == -1 && error == EINTR && run.immediate_exit == 1, "a VMM that wants its vCPU gets it");
      FakeKvm::let_go_on(it.fd);
      return;
    }
    // A source's timer may have kicked the vCPU too late: the next run clears that mark.
    require(run.immediate_exit == 0 || run.immediate_exit == kick_mark, "nobody else asks it to come out");
    if (answer != 0) return;  // the source found the guest's state impossible; the log has the error
    if (expected && run.exit_reason == KVM_EXIT_HLT) return;  // single-steps used up the earlier exits
    if (!expected) {
      require(run.exit_reason == KVM_EXIT_HLT, "exits of ours do not come out");
      return;
    }
    require(run.exit_reason == expected->exit_reason, "the VMM's exits come out");
    if (run.exit_reason != KVM_EXIT_X86_RDMSR && run.exit_reason != KVM_EXIT_X86_WRMSR) return;
    require(run.msr.index == expected->msr.index && run.msr.reason == expected->msr.reason && run.msr.error == 0,
            "with what KVM says of them");
    require(run.msr.data == expected->msr.data, "and the value");
  }

  // Once a VM has a vCPU, KVM's filter traps what the VMM's and the PMU's do.
  void compare_filters() {
    for (const Vm& of : vms_) {
      const KvmVm& kvms = kvm_.vm(of.fd);
      const auto check = [&](std::uint32_t msr) {
        for (const std::uint32_t access : {std::uint32_t{KVM_MSR_FILTER_READ}, std::uint32_t{KVM_MSR_FILTER_WRITE}}) {
          const bool wanted = of.filter.denies(msr, access) || (of.prepared && is_pmus(msr));
          require(kvms.filter.denies(msr, access) == wanted, "KVM filters what the VMM or the PMU wants");
        }
      };
      for (const std::uint32_t msr : {0xC0U, 0xC1U, 0x185U, 0x186U, 0x38FU, 0x1D9U, tsc, ~0U}) check(msr);
      for (const Filter::Range& r : of.filter.ranges)
        for (const std::uint32_t msr :
             {r.first - 1, r.first, r.first + r.count / 2, r.first + r.count - 1, r.first + r.count})
          check(msr);
      if (of.prepared)
        require(kvms.reasons == (of.reasons | KVM_MSR_EXIT_REASON_FILTER), "and exits for the reasons of both");
    }
  }
  static bool is_pmus(std::uint32_t msr) {
    static const vpmu::MsrSpans trapped = vpmu::trap_ranges(vpmu::describe(vpmu::Generation::haswell));
    return std::ranges::any_of(trapped.all(), [&](const vpmu::MsrSpan& s) { return msr - s.first.value() < s.count; });
  }

  Input* in_;
  StrictKvm kvm_;
  Log log_{[](LogLevel, std::string_view) {}, LogLevel::error};
  Words ram_;
  std::optional<Attachment> attachment_;
  std::vector<Vm> vms_;
  std::vector<VcpuOf> vcpus_;
  std::map<int, bool> debugged_;
  std::vector<std::byte> kept_;
};

}  // namespace

extern "C" std::uint64_t fuzz_work() { return calls; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr unsigned max_calls = 60;
  Input in{data, size};
  Vmm vmm{in};
  for (unsigned n = 0; n < max_calls && !in.empty(); ++n) vmm.act();
  return 0;
}
