// The bytes that other processes have borrowed. A loan lasts while a process has the borrower's end
// of its pipe. It ends when the borrower closes this end, or when the borrower ends or is killed.
//
// Rejected: a request that returns the loan. A borrower that is killed cannot send it.
#pragma once

#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "fuse_target/store/file_loan.h"

namespace ppmr {

inline constexpr size_t kLoansMax = 4096;  // each loan keeps a descriptor open

struct LoanCounters {
  size_t loans = 0;
  uint64_t bytes = 0;  // bytes that two borrowers have count twice
};

// Never waits for a borrower: a stopped borrower keeps its loan and delays no other loan. Threads:
// any thread may call any member. Destroyed before the store whose blocks are lent.
class Loans {
 public:
  // Throws std::system_error when its thread cannot be started. Errors: EMFILE.
  static Result<std::unique_ptr<Loans>> create();
  ~Loans();  // ends all loans; mapped bytes stay, because the store does not reuse its memory

  Loans(const Loans&) = delete;
  Loans& operator=(const Loans&) = delete;

  struct Added {
    int id = -1;             // different from the ids of all other loans that exist
    UniqueFd borrowers_end;  // the borrower's end of the loan's pipe
  };
  // Keeps the bytes in their places. Errors: EAGAIN when there are kLoansMax loans, EMFILE.
  Result<Added> add(FileLoan part);
  // Adds another part to a loan. Errors: ENOENT if there is no such loan.
  Status extend(int id, FileLoan part);
  LoanCounters counters() const;

 private:
  struct Entry {
    UniqueFd end;
    std::vector<FileLoan> parts;
  };

  Loans(UniqueFd epoll, UniqueFd stop);
  void end_loans();

  const UniqueFd epoll_;
  const UniqueFd stop_;  // eventfd: written once by the destructor

  mutable Mutex mutex_;
  std::map<int, Entry> entries_ PPMR_GUARDED_BY(mutex_);  // by descriptor of our end
  uint64_t bytes_ PPMR_GUARDED_BY(mutex_) = 0;

  std::thread thread_;  // declared last: the thread uses the members above
};

}  // namespace ppmr
