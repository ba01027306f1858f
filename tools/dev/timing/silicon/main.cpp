// Compares the pipeline model's cycles with what CPUs took: tools/silicon.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <exception>
#include <fstream>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "block_guest.hpp"
#include "chain_guest.hpp"
#include "latencies.hpp"
#include "timing/core_timer.hpp"
#include "uarch/profile_changes.hpp"

namespace {

namespace timing = vpmu::timing;

struct Model {
  std::string_view name;
  const timing::Microarchitecture* core;
};
constexpr std::array models{Model{"nehalem", &timing::nehalem},          Model{"westmere", &timing::nehalem},
                            Model{"sandybridge", &timing::sandy_bridge}, Model{"ivybridge", &timing::ivy_bridge},
                            Model{"haswell", &timing::haswell},          Model{"broadwell", &timing::broadwell},
                            Model{"skylake-sp", &timing::skylake_sp},    Model{"skylake", &timing::skylake}};

/// One block of a file.
struct Sample {
  std::string code;  ///< In hexadecimal.
  double measured{};
  double predicted{};
  [[nodiscard]] double error() const { return std::abs(predicted - measured) / measured; }
};

const Model* model_of(const std::string& file, const std::string& name) {
  for (const Model& model : models)
    if (name.empty() ? file.find(model.name) != std::string::npos : name == model.name) return &model;
  return nullptr;
}

std::vector<std::byte> bytes_of(std::string_view hex) {
  std::vector<std::byte> bytes;
  for (std::size_t at = 0; at + 1 < hex.size(); at += 2) {
    unsigned byte{};
    std::from_chars(hex.data() + at, hex.data() + at + 2, byte, 16);
    bytes.push_back(static_cast<std::byte>(byte));
  }
  return bytes;
}

std::vector<Sample> read_samples(std::istream& file) {
  std::vector<Sample> samples;
  std::string line;
  std::getline(file, line);  // the columns' names
  while (std::getline(file, line))
    if (const std::size_t comma = line.find(','); comma != std::string::npos)
      samples.push_back({.code = line.substr(0, comma), .measured = std::stod(line.substr(comma + 1))});
  return samples;
}

/// Kendall's tau-b: how far the two agree on which of two blocks takes longer.
double kendall_tau(const std::vector<Sample>& samples) {
  double agree{}, differ{}, only_measured_equal{}, only_predicted_equal{};
  for (std::size_t a = 0; a < samples.size(); ++a)
    for (std::size_t b = a + 1; b < samples.size(); ++b) {
      const double measured = samples[a].measured - samples[b].measured,
                   predicted = samples[a].predicted - samples[b].predicted;
      if (measured * predicted > 0) ++agree;
      if (measured * predicted < 0) ++differ;
      if (measured == 0 && predicted != 0) ++only_measured_equal;
      if (measured != 0 && predicted == 0) ++only_predicted_equal;
    }
  return (agree - differ) / std::sqrt((agree + differ + only_measured_equal) * (agree + differ + only_predicted_equal));
}

struct Options {
  std::vector<std::string> files;
  std::string model;
  unsigned worst{};
  double max_mape{1e9}, max_median{1e9}, max_linear_median{1e9}, min_tau{-1};
  double min_within{};
  std::vector<std::string> set;
  vpmu::uarch::ProfileChanges changes;  ///< Those of `set`.
  bool points{};
};

/// How far the predictions of a file's blocks are off.
struct Errors {
  double mape{}, median{};  ///< Percent.
  double tau{};
};

Errors errors_of(const std::vector<Sample>& samples_by_error) {
  double sum{};
  for (const Sample& sample : samples_by_error) sum += sample.error();
  const auto count = samples_by_error.size();
  return {.mape = 100 * sum / static_cast<double>(count),
          .median = 100 * samples_by_error[count / 2].error(),
          .tau = kendall_tau(samples_by_error)};
}

/// Those of the file that run, with the smallest error first.
std::vector<Sample> predict(std::istream& file, const Model& model) {
  vpmu::silicon::BlockGuest guest;
  const vpmu::uarch::Profile* const profile = vpmu::uarch::find_profile(model.name);
  if (profile == nullptr) throw std::runtime_error{fmt::format("{} has no model of its caches", model.name)};
  std::vector<Sample> samples;
  unsigned not_run{}, without_rows{};
  for (Sample& sample : read_samples(file)) {
    const auto time = guest.run(bytes_of(sample.code), *model.core, *profile);
    if (!time) {
      ++not_run;
      fmt::print("{} did not run\n", sample.code);
      continue;
    }
    without_rows += time->all_have_rows ? 0 : 1;
    sample.predicted = time->cycles;
    samples.push_back(sample);
  }
  if (not_run + without_rows != 0)
    fmt::print("{}: {} blocks did not run, {} have an instruction without a row\n", model.name, not_run, without_rows);
  std::ranges::sort(samples, {}, &Sample::error);
  return samples;
}

bool compare_blocks(const std::string& name, const Options& options) {
  const Model* const model = model_of(name, options.model);
  std::ifstream file{name};
  if (model == nullptr || !file) {
    fmt::print(stderr, "silicon: {}: {}\n", name,
               model == nullptr ? "which model is it of? --model says" : "cannot be read");
    return false;
  }
  const std::vector<Sample> samples = predict(file, *model);
  if (samples.empty()) {
    fmt::print(stderr, "silicon: {}: no block ran\n", name);
    return false;
  }
  for (std::size_t place = 0; place < std::min<std::size_t>(options.worst, samples.size()); ++place) {
    const Sample& sample = samples[samples.size() - 1 - place];
    fmt::print("{} measured {:.2f} predicted {:.2f}\n", sample.code, sample.measured, sample.predicted);
  }
  const Errors errors = errors_of(samples);
  fmt::print("{} n={} mape={:.1f} median={:.1f} tau={:.3f}\n", model->name, samples.size(), errors.mape, errors.median,
             errors.tau);
  return errors.mape <= options.max_mape && errors.median <= options.max_median && errors.tau >= options.min_tau;
}

/// The fields of a line, which may be in quotation marks.
std::vector<std::string> fields_of(const std::string& line) {
  std::vector<std::string> fields(1);
  bool is_quoted{};
  for (const char c : line) {
    if (c == '"')
      is_quoted = !is_quoted;
    else if (c == ',' && !is_quoted)
      fields.emplace_back();
    else
      fields.back() += c;
  }
  return fields;
}

/// One form's latency, as a file has it and as the model has it.
struct Latency {
  std::string form;
  double measured{};
  double predicted{};
  [[nodiscard]] double error() const { return std::abs(predicted - measured); }
};

std::vector<Latency> latencies_of(const std::vector<std::vector<std::string>>& lines, std::size_t column,
                                  const timing::Microarchitecture& core) {
  std::vector<Latency> all;
  for (const auto& line : lines) {
    if (line.size() <= column || line[column].empty()) continue;
    if (const auto predicted = vpmu::silicon::chained_latency(line[0], line[1], core))
      all.push_back({.form = line[0] + ' ' + line[1], .measured = std::stod(line[column]), .predicted = *predicted});
  }
  return all;
}

bool compare_latencies(const std::string& name, const Options& options) {
  constexpr double half_a_cycle = 0.5;
  std::ifstream file{name};
  std::string line;
  if (!std::getline(file, line)) {
    fmt::print(stderr, "silicon: {}: cannot be read\n", name);
    return false;
  }
  const std::vector<std::string> columns = fields_of(line);
  std::vector<std::vector<std::string>> lines;
  while (std::getline(file, line)) lines.push_back(fields_of(line));
  bool good = false;
  for (const Model& model : models) {
    const auto column = std::ranges::find(columns, std::string{model.name} + "_latency");
    if (column == columns.end() || (!options.model.empty() && options.model != model.name)) continue;
    std::vector<Latency> all = latencies_of(lines, static_cast<std::size_t>(column - columns.begin()), *model.core);
    if (all.empty()) continue;
    std::ranges::sort(all, std::ranges::greater{}, &Latency::error);
    for (std::size_t place = 0; place < std::min<std::size_t>(options.worst, all.size()); ++place)
      fmt::print("{} measured {:.2f} predicted {:.2f}\n", all[place].form, all[place].measured, all[place].predicted);
    const auto right = std::ranges::count_if(all, [](const Latency& l) { return l.error() <= half_a_cycle; });
    const double within = 100 * static_cast<double>(right) / static_cast<double>(all.size());
    fmt::print("{} n={} within={:.1f}\n", model.name, all.size(), within);
    if (within < options.min_within) return false;
    good = true;
  }
  if (!good) fmt::print(stderr, "silicon: {}: no column MODEL_latency has a latency that can be compared\n", name);
  return good;
}

/// One point of a ladder of load latencies.
struct Rung {
  std::string pattern;
  std::uint64_t bytes{}, stride{};
  double measured{}, predicted{};
  [[nodiscard]] double error() const { return std::abs(predicted - measured) / measured; }
};

std::uint64_t number_of(std::string_view text) {
  std::uint64_t number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size())
    throw std::runtime_error{fmt::format("{}: a whole number is wanted", text)};
  return number;
}

void require(const std::optional<vpmu::uarch::ChangeRefusal>& refusal) {
  if (refusal) throw std::runtime_error{fmt::format("{}; {}", refusal->what, refusal->advice)};
}

/// The profile that the file's name says, or --model, with what --set changes; the L3 and the core's frequency are
/// those of the file's first line.
vpmu::uarch::Profile profile_of(const std::string& file, const std::string& machine, const Options& options) {
  const vpmu::uarch::Profile* found = nullptr;
  for (const vpmu::uarch::Profile& profile : vpmu::uarch::all_profiles()) {
    const bool is_it =
        options.model.empty() ? file.find(profile.name) != std::string::npos : profile.name == options.model;
    if (is_it && (found == nullptr || profile.name.size() > found->name.size())) found = &profile;
  }
  if (found == nullptr) throw std::runtime_error{fmt::format("{}: which model is it of? --model says", file)};
  vpmu::uarch::Profile profile = *found;
  vpmu::uarch::ProfileChanges measured;
  if (const std::size_t at = machine.find("L3 "); at != std::string::npos)
    require(measured.add(fmt::format("l3={}K", std::stoul(machine.substr(at + 3)))));
  if (const std::size_t at = machine.find("core at "); at != std::string::npos)
    require(measured.add(fmt::format("mhz={:.0f}", std::stod(machine.substr(at + 8)))));
  require(measured.apply(profile));
  require(options.changes.apply(profile));
  return profile;
}

std::vector<Rung> read_rungs(std::istream& file) {
  std::vector<Rung> rungs;
  std::string line;
  while (std::getline(file, line)) {
    const std::vector<std::string> fields = fields_of(line);
    if (fields.size() < 4 || !vpmu::silicon::chain_order(fields[0])) continue;
    rungs.push_back({.pattern = fields[0],
                     .bytes = number_of(fields[1]) << 10,
                     .stride = number_of(fields[2]),
                     .measured = std::stod(fields[3])});
  }
  return rungs;
}

bool compare_loads(const std::string& name, const Options& options) {
  std::ifstream file{name};
  std::string machine;
  if (!std::getline(file, machine)) {
    fmt::print(stderr, "silicon: {}: cannot be read\n", name);
    return false;
  }
  const vpmu::uarch::Profile profile = profile_of(name, machine, options);
  vpmu::silicon::ChainGuest guest;
  std::map<std::string, std::vector<double>> errors;
  unsigned not_run{};
  for (Rung& rung : read_rungs(file)) {
    const auto cycles = guest.run(*vpmu::silicon::chain_order(rung.pattern), rung.bytes, rung.stride,
                                  timing::changed_core(profile.name, options.changes), profile);
    if (!cycles) {
      ++not_run;
      continue;
    }
    rung.predicted = *cycles;
    errors[rung.pattern].push_back(rung.error());
    if (options.points)
      fmt::print("{} {} KiB, stride {}: measured {:.0f} predicted {:.1f}\n", rung.pattern, rung.bytes >> 10,
                 rung.stride, rung.measured, rung.predicted);
  }
  if (not_run != 0)
    fmt::print("{}: {} chains did not run: a stride of less than 8 bytes, or too much memory\n", profile.name, not_run);
  bool good = !errors.empty();
  if (!good) fmt::print(stderr, "silicon: {}: no chain of loads ran\n", name);
  for (auto& [pattern, all] : errors) {
    std::ranges::sort(all);
    const double median = 100 * all[all.size() / 2];
    fmt::print("{} pattern={} n={} median={:.1f}\n", profile.name, pattern, all.size(), median);
    good = good && median <= (pattern.starts_with("linear") ? options.max_linear_median : options.max_median);
  }
  return good;
}

int run(int argc, char** argv) {
  CLI::App app{"Compares the pipeline model with what real CPUs measured."};
  Options options;
  CLI::App* const blocks =
      app.add_subcommand("blocks", "Basic blocks: columns `block` (hexadecimal) and `cycles` of one repetition");
  blocks->add_option("FILE", options.files, "Blocks, in a file named after its model")->required();
  blocks->add_option("--model", options.model, "Of all files, whatever their names");
  blocks->add_option("--worst", options.worst, "Name so many blocks with the largest errors");
  blocks->add_option("--max-mape", options.max_mape, "Fail where the mean error is larger, in percent");
  blocks->add_option("--max-median", options.max_median, "Fail where the median error is larger, in percent");
  blocks->add_option("--min-tau", options.min_tau, "Fail where Kendall's tau is smaller");
  CLI::App* const instructions = app.add_subcommand(
      "instructions", "Latencies of single forms: columns `instruction`, `operands` and MODEL_latency");
  instructions->add_option("FILE", options.files, "Forms")->required();
  instructions->add_option("--model", options.model, "This column only");
  instructions->add_option("--worst", options.worst, "Name so many forms with the largest errors");
  instructions->add_option("--min-within", options.min_within, "Fail where fewer are within half a cycle, in percent");
  CLI::App* const loads = app.add_subcommand(
      "latency", "Chains of loads: columns `pattern`, `working_set_kib`, `stride_bytes` and `cycles` of one load");
  loads->add_option("FILE", options.files, "Chains, in a file named after its model")->required();
  loads->add_option("--model", options.model, "Of all files, whatever their names");
  loads->add_option(
      "--set", options.set,
      fmt::format("NAME=VALUE,... in place of the model's, of {}; may be repeated", vpmu::uarch::parameter_names()));
  loads->add_flag("--points", options.points, "Print each chain");
  loads->add_option("--max-median", options.max_median,
                    "Fail where the median error of a random pattern is larger, in percent");
  loads->add_option("--max-linear-median", options.max_linear_median, "The same of the linear ones");
  app.require_subcommand(1);
  CLI11_PARSE(app, argc, argv);
  for (const std::string& list : options.set) require(options.changes.add(list));
  bool good = true;
  for (const std::string& file : options.files)
    good = (blocks->parsed()  ? compare_blocks(file, options)
            : loads->parsed() ? compare_loads(file, options)
                              : compare_latencies(file, options)) &&
           good;
  return good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& e) {
    std::fputs(e.what(), stderr);
    std::fputs("\n", stderr);
    return 2;
  }
}
