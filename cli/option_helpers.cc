#include "cli/option_helpers.h"

#include <fmt/format.h>
#include <sys/prctl.h>

#include <algorithm>
#include <array>

#include "daemon/control/target_mount.h"

namespace ppmr {

CommandError no_mount(const std::string& path, const Error& error) {
  const std::string why =
      error.errno_value == ENODEV ? path + " is not in a ppmr mount" : error.message;
  return {ExitCode::kNotMounted, why + " (`ppmr status` lists the mounts)"};
}

void disable_core_dumps() { ::prctl(PR_SET_DUMPABLE, 0); }

void add_wide_options(CLI::App& app) {
  static constexpr std::array<std::string_view, 5> kWithoutTables = {"source", "target", "run",
                                                                     "agent", "completion"};
  for (CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    const bool is_internal = sub->get_group().empty();
    const bool has_tables = std::find(kWithoutTables.begin(), kWithoutTables.end(),
                                      sub->get_name()) == kWithoutTables.end();
    if (is_internal || !has_tables) continue;
    add_wide_options(*sub);
    const bool has_commands = !sub->get_subcommands([](const CLI::App*) { return true; }).empty();
    if (!has_commands)
      sub->add_flag_callback(
          "--wide", [] {}, "do not fit the output to the terminal");
  }
}

CLI::Validator target_host_check() {
  return {[](const std::string& text) {
            const auto host = parse_target_host(text);
            return host ? std::string() : host.error().message;
          },
          ""};
}

void add_target_key_option(CLI::App& sub, std::string& key_file, CLI::Option* to) {
  sub.add_option("--key-file", key_file,
                 fmt::format("with --to: the key for a mount that is made; default: {}, or what {} "
                             "says",
                             kClusterKey, kTargetMountConfig))
      ->type_name("FILE")
      ->needs(to);
}

TargetOptions add_target_options(CLI::App& sub, std::string& mountpoint, std::string& target_host,
                                 std::string& key_file) {
  auto* mount =
      sub.add_option("--mount", mountpoint, "source mount, whose target receives the processes")
          ->type_name("MOUNTPOINT");
  auto* to = sub.add_option("--to", target_host,
                            "node that receives the processes, where ppmr target listens; a source "
                            "mount is made if there is none")
                 ->type_name("HOST[:PORT]")
                 ->excludes(mount)
                 ->check(target_host_check());
  add_target_key_option(sub, key_file, to);
  return {mount, to};
}

}  // namespace ppmr
