#include "cli/internal_commands.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/completion_values.h"
#include "cli/option_helpers.h"
#include "migration/keep/epoch_writer.h"
#include "migration/protect/criu_session.h"
#include "migration/protect/part_epochs.h"
#include "migration/protect/runc_dump.h"
#include "migration/relay/criu_relay.h"
#include "migration/settle/settle.h"
#include "migration/target/migration_agent.h"
#include "migration/target/tree_restore.h"
#include "migration/target/unit_guest.h"
#include "restart_loader/criu/files_apart.h"
#include "restart_loader/criu/pages_guard.h"
#include "restart_loader/pager/serve_pages_command.h"

namespace ppmr {
namespace {

template <typename Command>
std::shared_ptr<Command> add_internal(CLI::App& app, const std::string& name, int& exit_code,
                                      CLI::App*& sub) {
  sub = app.add_subcommand(name)->group("");  // hides the subcommand from --help
  auto command = std::make_shared<Command>();
  sub->callback([command, &exit_code] {
    disable_core_dumps();
    exit_code = command->run();
  });
  return command;
}

}  // namespace

void add_internal_commands(CLI::App& app, int& exit_code) {
  CLI::App* sub = nullptr;
  auto agent = add_internal<MigrationAgent>(app, "migration-agent", exit_code, sub);
  sub->add_option("--fd", agent->fd)->required();
  sub->add_option("--state-dir", agent->state_directory)->required();
  sub->add_option("--mountpoint", agent->mountpoint)->required();
  sub->add_option("--peer", agent->peer)->required();
  sub->add_option("--restart-policy", agent->restart_policy);
  sub->add_flag("--allow-root-restart", agent->allow_root_restart);
  sub->add_option("--audit-file", agent->audit_file);
  auto settle = add_internal<SettleCommand>(app, "migration-settle", exit_code, sub);
  sub->add_option("--role", settle->role)->required()->check(CLI::IsMember({"source", "target"}));
  sub->add_option("--state-dir", settle->state_directory)->required();
  sub->add_option("--mountpoint", settle->mountpoint)->required();
  auto epochs = add_internal<WriteEpochsCommand>(app, "write-epochs", exit_code, sub);
  sub->add_option("--keep-dir", epochs->keep_directory)->required();
  sub->add_option("--keep-key", epochs->key_file)->required();
  sub->add_option("--state-dir", epochs->state_directory)->required();
  sub->add_option("--mountpoint", epochs->mountpoint)->required();
  sub->add_option("--parent", epochs->parent)->required();
  auto restore = add_internal<TreeRestoreCommand>(app, "migration-restore", exit_code, sub);
  sub->add_option("--state-dir", restore->state_directory)->required();
  sub->add_option("--id", restore->id)->required();
  sub->add_option("--tree", restore->tree)->required();
  auto unit = add_internal<UnitGuestCommand>(app, "migration-unit", exit_code, sub);
  sub->add_option("--state-dir", unit->state_directory)->required();
  sub->add_option("--id", unit->id)->required();
  sub->add_flag("--forget", unit->forget);
  auto pager = add_internal<ServePagesCommand>(app, "serve-pages", exit_code, sub);
  sub->add_option("--images", pager->images)->required();
  sub->add_option("--bundle", pager->bundle);
  sub->add_option("--memory", pager->memory);
  sub->add_option("--complete", pager->complete);
  sub->add_option("--shared-images", pager->shared_images);
  sub->add_flag("--fill-early", pager->fill_early);
  sub->add_flag("--any-file-sizes", pager->any_file_sizes);
  sub->add_flag("--leave-locks", pager->leave_locks);
  sub->add_flag("--leave-process-locks", pager->leave_process_locks);
  sub->add_option("--work", pager->work)->required();
  sub->add_option("--ready-fd", pager->ready_fd);
  auto guard = add_internal<PagesGuard>(app, "guard-pages", exit_code, sub);
  sub->add_option("--work", guard->work_directory)->required();
  sub->add_option("--root", guard->restored_root)->required()->check(CLI::PositiveNumber);
  auto tar = add_internal<TarOfCriu>(app, "tar-of-criu", exit_code, sub);
  sub->add_option("--work-dir", tar->work_directory)->required();
  sub->add_option("arguments", tar->arguments)->take_all();
  auto relay = add_internal<CriuRelay>(app, "migration-relay", exit_code, sub);
  sub->add_option("--state-dir", relay->state_directory)->required();
  sub->add_option("--id", relay->id)->required();
  sub->add_option("--role", relay->role)->required()->check(CLI::IsMember({"source", "target"}));
  sub->add_option("--tree", relay->tree)->required();
  sub->add_option("--criu", relay->criu)->required();
  sub->add_option("--work-dir", relay->work_directory)->required();
  sub->add_flag("--alone", relay->alone);
  sub->add_option("arguments", relay->arguments)->take_all();
  auto values = add_internal<CompletionValuesCommand>(app, "completion-values", exit_code, sub);
  sub->add_option("KIND", values->kind)->required();
  add_dumping_criu_command(app, exit_code);
  add_criu_for_runc_command(app, exit_code);
  add_part_epochs_command(app, exit_code);
}

}  // namespace ppmr
