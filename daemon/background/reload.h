// The work of a daemon on SIGHUP.
#pragma once

#include "daemon/audit/audit_trail.h"
#include "daemon/background/daemon.h"
#include "rdma_stream/connection/security.h"
#include "third_party/spdlog.h"

namespace ppmr {

// Opens the log file and the audit file again, and reads keys and certificates again. If a file
// cannot be opened or read, the daemon continues with the old one. Sessions and checkpoints are not
// affected. `open` opens a file for a daemon that has no right to open it.
inline void reload(Daemon& daemon, Security& security, AuditTrail& audit, OpenFile open = {}) {
  daemon.reopen_log();
  if (Status opened = audit.reopen(open ? open : open_to_append); !opened) {
    spdlog::error("reload: {}; the old audit file stays in use", opened.error().message);
  }
  if (Status read = security.reload(open ? open : open_to_read); !read) {
    spdlog::error("reload: {}; the old keys and certificates stay in use", read.error().message);
  } else {
    spdlog::info("reload: keys and certificates are up to date");
  }
}

}  // namespace ppmr
