// Fuzzes the parsers of text that a program controls: files of /proc, which contain its name, its
// arguments and the names of its files, and its answer to a check of RDMA.
#include "preflight/rdma_release/rdma_check.h"
#include "processes/proc_files.h"
#include "processes/sockets.h"
#include "tests/fuzz/fuzz.h"

void fuzz(std::span<const uint8_t> input) {
  using namespace ppmr;
  const std::string text = text_of(input);
  if (const auto stat = parse_process_stat(text)) (void)stat->identity();
  const ProcessStatus status = parse_process_status(text);
  for (int signal = 1; signal <= 64; ++signal) (void)status.is_pending(signal);
  for (const Mapping& mapping : parse_mappings(text)) REQUIRE(mapping.path.size() <= text.size());
  (void)parse_memory_share_bytes(text);
  (void)parse_internet_sockets(text, "tcp");
  (void)inode_in(text, "socket");
  (void)parse_rdma_check(text);
}
