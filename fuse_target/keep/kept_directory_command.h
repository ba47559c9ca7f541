// `ppmr kept-directory`: writes and reads the files of suspended jobs for job agents.
#pragma once

namespace CLI {
class App;
}  // namespace CLI

namespace ppmr {

// Adds the subcommand, which is not in --help. It needs root. It opens the key and the directory
// with root's rights. It opens the file with the rights of a user, because this user chooses the
// path of the file.
void add_kept_directory_command(CLI::App& app, int& exit_code);

}  // namespace ppmr
