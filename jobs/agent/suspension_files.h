// The files of a suspended job, in a directory that its user names and all hosts share. ID is the
// ID of the suspension:
//
//   ID-node-0.kept ...   the epochs of its nodes; the hosts of the nodes write and read them
//   ID-job.part          all other data (SuspendedJob), while the suspension is not complete
//   job.kept             ID-job.part after rename(2): the job is suspended
//   ID.resumed           the job goes on, or has gone on; the text says on which host
//
// ppmr encrypts and verifies the contents with the operator's key, because they are the memory of
// the processes, and because a host runs them. ppmr opens and removes the files with the rights of
// the job's user: root may have no rights on a network file system, and a user must not make root
// write where the user may not.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "jobs/agent/job_suspension.h"

namespace ppmr {

struct SuspensionOptions {
  std::string program;   // the path of ppmr
  std::string key_file;  // the operator's key; empty: no job can be suspended
  std::string work;      // a directory in memory, private to root
};

// Returns the ID of the key with which this host encrypts. Errors: ENOKEY: this host has no key;
// those of read_key_file().
Result<std::string> suspension_key_id(const SuspensionOptions& options);

// Runs `work` with the user's rights to files, on a thread of its own. Errors: EPERM; those of
// `work`.
Status with_rights_of(const JobUser& user, const std::function<Status()>& work);

// Returns the command line that writes the directory `contents` into a file, or makes `contents`
// from the file.
enum class KeptDirection { kWrite, kRead };
std::vector<std::string> kept_directory_command(const SuspensionOptions& options,
                                                const JobUser& user, KeptDirection direction,
                                                const std::string& contents,
                                                const std::string& directory,
                                                const std::string& name);
std::string node_file(const std::string& suspension, unsigned index);

// Threads: any.
class SuspensionFiles {
 public:
  // Accesses files with the rights of `user`.
  SuspensionFiles(const SuspensionOptions& options, JobUser user, std::string directory)
      : options_(options), user_(std::move(user)), directory_(std::move(directory)) {}

  // Makes the directory if it is missing. Errors: EINVAL for a relative path; ENOKEY without a key;
  // EEXIST: the directory has a suspended job that has not gone on; those of the file system.
  Status prepare() const;
  // Writes the file of the job, which is not complete yet. Errors: of the file system.
  Status write(const SuspendedJob& job) const;
  // Completes the suspension, durably. Errors: of the file system.
  Status publish(const std::string& suspension) const;
  // Returns the complete suspension. Errors: ENOENT; EKEYREJECTED; EBADMSG; EPROTO; those of the
  // file system.
  Result<SuspendedJob> read() const;
  // Removes the files of a suspension that is not complete. Idempotent.
  void discard(const std::string& suspension) const;
  // Removes the files of all other suspensions. Idempotent.
  void discard_others(const std::string& suspension) const;

  // Claims the suspension, so that only one caller can resume it. `by`: a line about this caller,
  // for the error of later callers. `again`: removes an earlier claim first. Errors: EALREADY with
  // the line of the earlier caller; those of the file system, after which there is no claim of this
  // caller.
  Status claim(const std::string& suspension, const std::string& by, bool again) const;
  void give_back(const std::string& suspension) const;

 private:
  Status run(KeptDirection direction, const std::string& contents, const std::string& file,
             const std::string& name) const;
  void remove_matching(const std::function<bool(const std::string& name)>& matches) const;
  std::string path(const std::string& name) const { return directory_ + "/" + name; }

  const SuspensionOptions& options_;
  const JobUser user_;
  const std::string directory_;
};

}  // namespace ppmr
