#include "attach/attached_vm.hpp"

#include "pmu/pmu_setup.hpp"
#include "vpmu/generation.hpp"

namespace vmm {
namespace {

/// The model's generation with full-width counter writes, which a VMM may give the vCPUs of any model.
vpmu::GenerationDesc widest_generation(const MachineModel& model) {
  vpmu::GenerationDesc generation = vpmu::describe(model.generation);
  generation.features.full_width_write = true;
  return generation;
}

}  // namespace

Result<std::unique_ptr<AttachedVm>> AttachedVm::create(Fd fd, std::size_t run_mapping_size,
                                                       const AttachOptions& options, Log& log) {
  VMM_ASSIGN(MsrFilter none, MsrFilter::create({}));
  return std::unique_ptr<AttachedVm>{
      new AttachedVm{Vm{std::move(fd), run_mapping_size}, std::move(none), options, log}};
}

AttachedVm::AttachedVm(Vm vm, MsrFilter theirs, AttachOptions options, Log& log)
    : vm_{std::move(vm)},
      options_{std::move(options)},
      log_{&log},
      gate_{[this] {
        const std::scoped_lock lock{vcpus_mutex_};
        bool any = false;
        for (const auto& vcpu : vcpus_) any = vcpu->kick_if_running() || any;
        return any;
      }},
      theirs_{std::move(theirs)} {}

Result<void> AttachedVm::prepare() {
  const std::scoped_lock lock{mutex_};
  if (prepared_) return {};
  VMM_TRY(prepare_vm_for_pmu_beside({.filter = theirs_.native(), .exit_reasons = their_reasons_}, vm_,
                                    widest_generation(*options_.model)));
  prepared_ = true;
  return {};
}

Result<AttachedVcpu*> AttachedVm::add_vcpu(std::uint32_t id, Fd fd) {
  VMM_ASSIGN(Vcpu vcpu, vm_.adopt_vcpu(id, std::move(fd)));
  PmuVcpuConfig config{.pmu = {.generation = options_.model->generation},
                       .source = options_.source,
                       .source_options = options_.source_options};
  config.foreign_msr = [this](std::uint32_t access, std::uint32_t msr) {
    if (!theirs_.traps(msr, static_cast<MsrTrap>(access))) return ForeignMsr::none;
    return (their_reasons_ & KVM_MSR_EXIT_REASON_FILTER) != 0 ? ForeignMsr::exits : ForeignMsr::faults;
  };
  AttachedVcpu* added = nullptr;
  gate_.with_nobody_inside([&] {
    const std::scoped_lock lock{vcpus_mutex_};
    const AttachedServices services{
        .vm = vm_, .memory = linear_, .gate = gate_, .log = *log_, .tells_statistics = options_.tells_statistics};
    vcpus_.push_back(std::make_unique<AttachedVcpu>(services, std::move(vcpu), std::move(config)));
    added = vcpus_.back().get();
    for (const auto& one : vcpus_) one->is_one_of(vcpus_.size());
  });
  return added;
}

int AttachedVm::set_memory(const kvm_userspace_memory_region& region, const std::function<int()>& call) {
  int answer = -1;
  gate_.with_nobody_inside([&] {
    const std::scoped_lock lock{slots_mutex_};
    answer = call();
    if (answer == 0)
      memory_.set(region.slot, region.flags, vpmu::GuestPhysical{region.guest_phys_addr}, region.memory_size,
                  reinterpret_cast<std::byte*>(region.userspace_addr));
  });
  return answer;
}

int AttachedVm::dirty_log(const kvm_dirty_log& log, const std::function<int()>& call) {
  const std::scoped_lock lock{slots_mutex_};
  const int answer = call();
  if (answer == 0) memory_.add_written(log.slot, static_cast<std::uint64_t*>(log.dirty_bitmap));
  return answer;
}

int AttachedVm::enable_msr_exits(const kvm_enable_cap& wanted, const std::function<int(const kvm_enable_cap&)>& call) {
  const std::scoped_lock lock{mutex_};
  kvm_enable_cap with_ours = wanted;
  with_ours.args[0] |= KVM_MSR_EXIT_REASON_FILTER;
  int answer = -1;
  gate_.with_nobody_inside([&] {
    answer = call(with_ours);
    if (answer == 0) their_reasons_ = wanted.args[0];
  });
  return answer;
}

Result<void> AttachedVm::set_msr_filter(const kvm_msr_filter& filter) {
  VMM_ASSIGN(MsrFilter theirs, MsrFilter::create({}));
  VMM_TRY(theirs.add_others(filter));
  const std::scoped_lock lock{mutex_};
  Result<void> result{};
  gate_.with_nobody_inside([&] {
    result = prepared_ ? set_msr_filter_beside(theirs.native(), vm_, widest_generation(*options_.model))
                       : vm_.set_msr_filter(theirs.native());
    if (result) theirs_ = std::move(theirs);
  });
  return result;
}

MachineStatistics AttachedVm::statistics() const {
  MachineStatistics result{.machine = {{"log.held_back", log_->held_back()}}, .vcpus = {}};
  const std::scoped_lock lock{vcpus_mutex_};
  for (const auto& vcpu : vcpus_) result.vcpus.push_back(vcpu->statistics());
  return result;
}

}  // namespace vmm
