#include "restart_loader/pager/page_files.h"

namespace ppmr {

uint64_t PageFiles::add(std::shared_ptr<PageFile> file) {
  files_.push_back(std::move(file));
  return (files_.size() - 1) * kFileSpanBytes;
}

Result<const std::byte*> PageFiles::read(uint64_t place, size_t length_bytes,
                                         std::byte* scratch) const {
  return files_.at(place / kFileSpanBytes)->read(place % kFileSpanBytes, length_bytes, scratch);
}

bool PageFiles::has_arrived(uint64_t place, size_t length_bytes) const {
  return files_.at(place / kFileSpanBytes)->has_arrived(place % kFileSpanBytes, length_bytes);
}

Status PageFiles::borrow(const PageFile::BorrowOptions& options) {
  for (size_t i = files_.size(); i > 0; --i) {
    if (Status borrowed = files_[i - 1]->borrow(options); !borrowed) return borrowed;
    options.arrived();
  }
  return {};
}

}  // namespace ppmr
