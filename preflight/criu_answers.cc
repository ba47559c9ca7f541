#include "preflight/criu_answers.h"

#include <fmt/format.h>
#include <poll.h>

#include <array>
#include <chrono>
#include <memory>

#include "restart_loader/criu/cpu_check.h"
#include "restart_loader/criu/criu_process.h"

namespace ppmr {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kCriuTimeout{30};

// Runs several CRIU processes in parallel, because each one mostly waits for the kernel.
class CriuChecks {
 public:
  size_t start(std::vector<std::string> argv) {
    auto process =
        CriuProcess::start({.argv = std::move(argv),
                            .show = [this, i = running_.size()](
                                        const std::string& line) { outputs_[i] += line + "\n"; },
                            .background = true});
    running_.push_back(process ? std::move(*process) : nullptr);
    outputs_.emplace_back();
    return running_.size() - 1;
  }
  void wait() {
    const auto deadline = Clock::now() + kCriuTimeout;
    for (;;) {
      std::vector<pollfd> fds;
      for (auto& process : running_) {
        if (!process) continue;
        process->process();
        if (!process->ended()) process->add_to(fds);
      }
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
      if (fds.empty() || left.count() <= 0) return;
      poll(fds.data(), fds.size(), static_cast<int>(left.count()));
    }
  }
  bool succeeded(size_t i) const { return running_[i] && running_[i]->succeeded(); }
  std::string error_of(size_t i) const {
    if (!running_[i]) return "criu cannot be started";
    if (!running_[i]->ended()) {
      return fmt::format("criu did not end within {} s", kCriuTimeout.count());
    }
    const std::string error = running_[i]->errors().summary();
    return error.empty() ? "criu " + running_[i]->how_it_ended() : error;
  }
  const std::string& output(size_t i) const { return outputs_[i]; }

 private:
  std::vector<std::string> outputs_;
  // Destroyed first, because the elements use outputs_.
  std::vector<std::unique_ptr<CriuProcess>> running_;
};

CriuFacts query(const std::string& criu) {
  CriuFacts facts{.path = criu, .version = {}, .problem = {}, .features = {}};
  if (criu.empty()) return facts;
  CriuChecks checks;
  const std::array features = {kLazyFeature};
  std::array<size_t, features.size()> feature_checks{};
  const size_t version = checks.start({criu, "--version"});
  const size_t check = checks.start({criu, "check"});
  for (size_t i = 0; i < features.size(); ++i)
    feature_checks[i] = checks.start({criu, "check", "--feature", features[i]});
  checks.wait();
  facts.version = parse_criu_version(checks.output(version));
  if (!checks.succeeded(check)) facts.problem = checks.error_of(check);
  for (size_t i = 0; i < features.size(); ++i) {
    if (checks.succeeded(feature_checks[i])) facts.features.emplace_back(features[i]);
  }
  return facts;
}

}  // namespace

const CriuFacts& CriuAnswers::facts() {
  if (!facts_) facts_ = query(criu_);
  return *facts_;
}

const Status& CriuAnswers::check_processor(const std::string& description) {
  if (!processor_ || description != description_) {
    processor_ = ppmr::check_processor(criu_, description);
    description_ = description;
  }
  return *processor_;
}

std::string parse_criu_version(std::string_view text) {
  constexpr std::string_view kBefore = "Version: ";
  const size_t at = text.find(kBefore);
  if (at == std::string_view::npos) return "";
  text.remove_prefix(at + kBefore.size());
  return std::string(text.substr(0, text.find_first_of(" \n")));
}

}  // namespace ppmr
