#include "cli/option_helpers.h"

#include <fmt/format.h>
#include <sys/prctl.h>

#include "daemon/control/target_mount.h"

namespace ppmr {

void disable_core_dumps() { ::prctl(PR_SET_DUMPABLE, 0); }

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
                 ->check([](const std::string& text) {
                   const auto host = parse_target_host(text);
                   return host ? std::string() : host.error().message;
                 });
  sub.add_option("--key-file", key_file,
                 fmt::format("with --to: the key for a mount that is made; default: {}, or what {} "
                             "says",
                             kClusterKey, kTargetMountConfig))
      ->type_name("FILE")
      ->needs(to);
  return {mount, to};
}

}  // namespace ppmr
