#include "restart_loader/criu/passed_options.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace ppmr {
namespace {

enum class Value { kNone, kOptional, kRequired };

struct PassedOption {
  std::string_view name;
  Value value;
  // Prefixes of valid values, blank-separated; empty: any value without a slash.
  std::string_view value_prefixes;
};

// One list serves dump and restore: CRIU accepts every option for both, and ignores options that do
// not apply.
constexpr std::array kPassed = {
    PassedOption{"--tcp-established", Value::kNone, ""},
    PassedOption{"--tcp-close", Value::kNone, ""},
    PassedOption{"--skip-in-flight", Value::kNone, ""},
    PassedOption{"--ext-unix-sk", Value::kNone, ""},
    PassedOption{"--file-locks", Value::kNone, ""},
    PassedOption{"--shell-job", Value::kNone, ""},
    PassedOption{"--link-remap", Value::kNone, ""},
    PassedOption{"--evasive-devices", Value::kNone, ""},
    PassedOption{"--force-irmap", Value::kNone, ""},
    PassedOption{"--enable-external-sharing", Value::kNone, ""},
    PassedOption{"--enable-external-masters", Value::kNone, ""},
    PassedOption{"--manage-cgroups", Value::kOptional, ""},
    PassedOption{"--ghost-limit", Value::kRequired, ""},
    PassedOption{"--network-lock", Value::kRequired, ""},
    PassedOption{"--cpu-cap", Value::kOptional, ""},
    PassedOption{"--empty-ns", Value::kRequired, "net"},
    PassedOption{"--external", Value::kRequired, "net[ mnt[ pid[ tty[ unix[ dev["},
    PassedOption{"--timeout", Value::kRequired, ""},
};

const PassedOption* find(std::string_view name) {
  const auto found = std::find_if(kPassed.begin(), kPassed.end(),
                                  [&](const PassedOption& option) { return option.name == name; });
  return found == kPassed.end() ? nullptr : &*found;
}

bool is_passed(std::string_view value, std::string_view prefixes) {
  if (value.starts_with('-')) return false;  // CRIU could parse the value as an option
  if (prefixes.empty()) return value.find('/') == std::string_view::npos;
  for (size_t start = 0; start < prefixes.size();) {
    const size_t end = std::min(prefixes.find(' ', start), prefixes.size());
    if (value.starts_with(prefixes.substr(start, end - start))) return true;
    start = end + 1;
  }
  return false;
}

}  // namespace

Status check_passed_options(const std::vector<std::string>& options) {
  for (size_t i = 0; i < options.size(); ++i) {
    const std::string_view word = options[i];
    const size_t equals = std::min(word.find('='), word.size());
    const PassedOption* option = find(word.substr(0, equals));
    if (option == nullptr) {
      return failure(EINVAL, "option '" + std::string(word) +
                                 "' is not passed on to CRIU in a migration; only these are: " +
                                 passed_options_text());
    }
    if (equals < word.size() && option->value == Value::kNone) {
      return failure(EINVAL, "option " + std::string(option->name) + " accepts no value");
    }
    std::string_view value;
    if (equals < word.size()) {
      value = word.substr(equals + 1);
    } else if (option->value == Value::kRequired) {
      if (++i == options.size()) {
        return failure(EINVAL, "option " + std::string(option->name) + " requires a value");
      }
      value = options[i];
    }
    if (!value.empty() && !is_passed(value, option->value_prefixes)) {
      return failure(EINVAL, "value '" + std::string(value) + "' of " + std::string(option->name) +
                                 " is not passed on to CRIU in a migration");
    }
  }
  return {};
}

std::string passed_options_text() {
  std::string text;
  for (const PassedOption& option : kPassed) {
    text += (text.empty() ? "" : ", ") + std::string(option.name);
  }
  return text;
}

}  // namespace ppmr
