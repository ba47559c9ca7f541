// The functions of ImageTree that pass bytes to other processes: loans of files, and bundles of
// small files.
#include <algorithm>
#include <sstream>

#include "base/whole_file.h"
#include "fuse_target/store/image_tree.h"
#include "mount/image_bundle.h"

namespace ppmr {

Result<StoredNodePointer> ImageTree::top_locked(const std::string& checkpoint,
                                                const std::string& what, bool sealed_only) const {
  const auto top = root_->children.find(checkpoint);
  if (top == root_->children.end())
    return failure(ENOENT, "there is no checkpoint '" + checkpoint + "' at the target");
  const StoredState state = top->second->checkpoint->state();
  if (state == StoredState::kFailed) {
    return failure(
        EIO, what + ": the checkpoint has failed: " + top->second->checkpoint->error().message);
  }
  if (state != StoredState::kSealed && sealed_only) {
    return failure(EBUSY, what + ": the checkpoint is not sealed, it is " + to_string(state) +
                              "; seal it with `ppmr commit`");
  }
  return top->second;
}

Result<ImageTree::Lent> ImageTree::lend(const std::string& checkpoint, const std::string& path,
                                        uint64_t offset, bool arrived_only) {
  const std::string what = "lend '" + (path.empty() ? checkpoint : checkpoint + "/" + path) + "'";
  // Held until the loan has its references: otherwise another thread could remove the file and
  // free the bytes.
  MutexLock lock(mutex_);
  auto top = top_locked(checkpoint, what, !arrived_only);
  if (!top) return failure(top.error());
  StoredNodePointer node = std::move(*top);
  std::istringstream names(path);
  for (std::string part; std::getline(names, part, '/');) {
    const auto child = node->children.find(part);
    if (child == node->children.end()) return failure(ENOENT, what + ": no such file");
    node = child->second;
  }
  if (!node->is_file()) {
    return failure(node->is_directory() ? EISDIR : EINVAL, what + ": not a file");
  }
  auto loan = arrived_only ? node->file->lend_arrived(offset) : node->file->lend(offset);
  if (!loan) return failure(loan.error().errno_value, what + ": " + loan.error().message);
  return Lent{node->inode, std::move(*loan)};
}

Status ImageTree::promise(const std::string& checkpoint, uint64_t size_bytes) {
  const std::string what = "keep memory for '" + checkpoint + "'";
  MutexLock lock(mutex_);
  const auto top = top_locked(checkpoint, what, /*sealed_only=*/false);
  if (!top) return failure(top.error());
  if (!(*top)->is_file()) return failure(EISDIR, what + ": not a file");
  const Status promised = (*top)->file->promise(size_bytes);
  if (promised) return {};
  return failure(promised.error().errno_value, what + ": " + promised.error().message);
}

// ---- Bundles -----------------------------------------------------------------------------------

namespace {

// Up to this many bytes a bundle includes files of any size; beyond that, only small files. Copying
// the pages that CRIU has dumped for each of many processes would take longer than the bundle
// saves.
constexpr uint64_t kAnyFileBytes = 16 << 20;
constexpr uint64_t kSmallFileBytes = 128 << 10;

struct Candidate {
  BundleWriter::File file;
  FileLoan loan;  // for an included file: keeps its bytes until they are copied
};

// Returns the small files, the smallest first.
Result<std::vector<Candidate>> choose(const std::map<std::string, StoredNodePointer>& children) {
  std::vector<Candidate> chosen;
  for (const auto& [name, node] : children) {
    if (node->is_file()) chosen.push_back({{name, node->file->facts().size_bytes, false}, {}});
  }
  std::vector<Candidate*> by_size;
  for (Candidate& candidate : chosen) by_size.push_back(&candidate);
  std::sort(by_size.begin(), by_size.end(), [](const Candidate* a, const Candidate* b) {
    return a->file.size_bytes < b->file.size_bytes;
  });
  uint64_t bytes = 0;
  for (Candidate* candidate : by_size) {
    BundleWriter::File& file = candidate->file;
    const uint64_t bytes_max = file.size_bytes <= kSmallFileBytes ? kBundleMaxBytes : kAnyFileBytes;
    if (file.size_bytes > bytes_max || bytes > bytes_max - file.size_bytes) break;
    auto loan = children.at(file.name)->file->lend(0);
    if (!loan) return failure(loan.error());
    // A file on the disk is not included: the daemon would have to read the disk and verify the
    // bytes.
    file.included = !loan->on_disk && loan->end == loan->size_bytes;
    if (!file.included) continue;
    bytes += file.size_bytes;
    candidate->loan = std::move(*loan);
  }
  return chosen;
}

Status copy(const FileLoan& loan, std::span<std::byte> to) {
  for (const FileLoan::Piece& piece : loan.pieces) {
    const std::span<std::byte> part = to.subspan(piece.offset, piece.length);
    const Status read =
        read_all(loan.regions[piece.place], part, piece.place_offset, "stored images");
    if (!read) return read;
  }
  return {};
}

}  // namespace

Result<ImageTree::Bundle> ImageTree::bundle(const std::string& checkpoint) {
  const std::string what = "bundle '" + checkpoint + "'";
  Bundle bundle;
  bool is_flat = true;
  std::vector<Candidate> candidates;
  {
    MutexLock lock(mutex_);
    auto top = top_locked(checkpoint, what, /*sealed_only=*/true);
    if (!top) return failure(top.error());
    const StoredNode& directory = **top;
    if (!directory.is_directory()) return failure(ENOTDIR, what + ": not a directory");
    bundle.inode = directory.inode;
    auto chosen = choose(directory.children);
    if (!chosen) return failure(chosen.error().errno_value, what + ": " + chosen.error().message);
    candidates = std::move(*chosen);
    is_flat = candidates.size() == directory.children.size();
  }
  std::vector<BundleWriter::File> files;
  for (const Candidate& candidate : candidates) files.push_back(candidate.file);
  auto writer = BundleWriter::create(files, is_flat);
  if (!writer) return failure(writer.error().errno_value, what + ": " + writer.error().message);
  for (size_t i = 0; i < files.size(); ++i) {
    if (!files[i].included) continue;
    if (Status copied = copy(candidates[i].loan, writer->bytes_of(i)); !copied) {
      return failure(copied.error().errno_value,
                     what + ": '" + files[i].name + "': " + copied.error().message);
    }
  }
  auto memfd = writer->finish();
  if (!memfd) return failure(memfd.error().errno_value, what + ": " + memfd.error().message);
  bundle.memfd = std::move(*memfd);
  return bundle;
}

}  // namespace ppmr
