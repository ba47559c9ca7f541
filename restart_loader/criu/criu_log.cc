#include "restart_loader/criu/criu_log.h"

#include <fmt/format.h>

#include <array>
#include <regex>

namespace ppmr {
namespace {

constexpr size_t kErrorsMax = 100;
constexpr std::string_view kFromInside = "pie: ";

struct Advice {
  const char* error;   // a regular expression
  const char* advice;  // $1 stands for the first group of the expression
};

// Error texts of CRIU 3.17 to 4.2, each with its remedy.
const std::array kAdvice = {
    Advice{R"(Can't fork for (\d+): File exists)",
           "pid $1 is in use here: end the process that has it (the parent of a zombie must reap "
           "it), "
           "or restore in a pid namespace of its own (unshare --pid --fork --mount-proc)"},
    Advice{R"(Pid (\d+) do(?:es)? not match expected (\d+))",
           "pid $2 is not available here: restore in a pid namespace of its own (unshare --pid "
           "--fork --mount-proc)"},
    Advice{
        R"(File (.+) has bad (?:size|build-ID|mode))",
        "$1 differs from the file that the process used when it was dumped: copy that version to "
        "this node"},
    Advice{
        R"(Can't open(?: \(deleted\))?(?: file)? /?(\S+) ?(?:on restore)?: No such file or directory)",
        "/$1 is missing on this node: copy it here first (program, libraries and open files must "
        "exist)"},
    Advice{R"(Can't link (\S+) -> |Can't link (\S+))",
           "the directory of a deleted file that was open is missing here, or is not writable: "
           "create it"},
    Advice{R"(Can't change dir|Can't open cwd|Can't open root)",
           "the working directory of the process is missing on this node: create it"},
    Advice{R"(--shell-job)",
           "the process belonged to a terminal: pass `-- --shell-job`, and run ppmr on a terminal"},
    Advice{
        R"(Found dangling tty|tty: .*(?:dangling|No task found with sid|not a tty|is not a terminal)|Don't have tty to inherit session from)",
        "the process belonged to a terminal: pass `-- --shell-job`, and run ppmr on a terminal"},
    Advice{R"(--skip-in-flight|In-flight connection)",
           "a client's connection waits until the program accepts it: try again, or pass `-- "
           "--skip-in-flight`, and the client must connect again"},
    Advice{R"(Non-empty write queue on an in-flight socket)",
           "a client's connection with data waits until the program accepts it: try again when it "
           "has done so"},
    Advice{
        R"(can't get /proc fd)",
        "the process may not open /proc: a sandbox (such as Landlock) forbids it, and CRIU needs "
        "it"},
    Advice{R"(--ext-unix-sk|External socket)",
           "the process is connected to a Unix socket that was not dumped with it: "
           "pass `-- --ext-unix-sk`"},
    Advice{R"(--file-locks)",
           "the process holds file locks: pass `-- --file-locks` (at dump and restart)"},
    Advice{
        R"(Connected TCP socket in image|--tcp-established)",
        "the process has TCP connections: pass `-- --tcp-established`, and move their addresses to "
        "this node first (or pass `-- --tcp-close` to drop them)"},
    Advice{R"(Need to set the --tcp-close options)",
           "the process was dumped with --tcp-close: pass `-- --tcp-close`"},
    Advice{R"(Can't bind(?: inet socket.*)?: Cannot assign requested address)",
           "a socket of the process uses an address that this node lacks: add it to an interface "
           "(ip address add), or restore in the network namespace that has it"},
    Advice{R"((?:Can't bind|bind).*Address already in use)",
           "another process here uses a port or socket path of the process: end it first"},
    Advice{R"(Can't (?:connect|restore).*(?:tcp|inet))",
           "pass `-- --tcp-established`, and move the connection's address to this node first"},
    Advice{
        R"(userfaultfd|UFFD is not supported|Failed to (?:get|open) uffd|uffd:.*Operation not permitted)",
        "lazy restore is not possible here: add --eager"},
    Advice{R"(--allow-uprobes)", "pass `-- --allow-uprobes`"},
    Advice{R"(Cgroup dir .* doesn't exist|cg: )",
           "the cgroups of the process are missing here: pass `-- --manage-cgroups=ignore`"},
    Advice{R"(lsm|apparmor|selinux)",
           "the security profile of the process is missing here: load it, or choose another with "
           "`-- --lsm-profile`"},
    Advice{
        R"(CPU (?:capabilities|instruction).*|cpu: .*(?:not supported|required|mismatch|missing))",
        "this node's processor lacks features that the process uses: choose a node with the same "
        "kind of processor"},
    Advice{
        R"(inventory|empty-image)",
        "this is not a complete dump by this version of CRIU: check whether criu dump succeeded"},
    Advice{
        R"(Input/output error)",
        "bytes of the checkpoint did not arrive: see ppmr status and the log of the target daemon"},
    Advice{R"(in victim: Too many open files)",
           "the process has no descriptor left, and CRIU needs one in it: raise its limit with "
           "prlimit --nofile"},
    Advice{R"(ptrace.*Operation not permitted)",
           "run CRIU as root; if it is, this node forbids ptrace: see "
           "/proc/sys/kernel/yama/ptrace_scope (3: for everybody, until the node is booted again), "
           "and seccomp filters and security modules"},
    Advice{R"(Operation not permitted|Permission denied)", "run CRIU as root"},
};

}  // namespace

CriuLine parse_criu_line(std::string_view line) {
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.remove_suffix(1);
  struct Word {
    std::string_view word;
    CriuSeverity severity;
  };
  for (const Word& known :
       {Word{"Error (", CriuSeverity::kError}, Word{"Warn  (", CriuSeverity::kWarning},
        Word{"Warn (", CriuSeverity::kWarning}}) {
    const size_t at = line.find(known.word);
    if (at == std::string_view::npos) continue;
    // Only time and pid precede the severity in a line of the log, and "pie: " if CRIU's code in
    // the process has written it.
    std::string before(line.substr(0, at));
    if (const size_t from = before.find(kFromInside); from != std::string::npos) {
      before.erase(from, kFromInside.size());
    }
    if (before.find_first_not_of("0123456789().: ") != std::string_view::npos) continue;
    const size_t end = line.find("): ", at);
    if (end == std::string_view::npos) continue;
    return {known.severity, std::string(line.substr(end + 3))};
  }
  return {CriuSeverity::kOther, std::string(line)};
}

bool is_harmless(const CriuLine& line) {
  return line.text.find("Can't setup RLIMIT_NOFILE") != std::string::npos;
}

std::string advice_for(std::string_view error_text) {
  const std::string text(error_text);
  for (const Advice& known : kAdvice) {
    std::smatch match;
    if (std::regex_search(text, match, std::regex(known.error, std::regex::icase))) {
      return match.format(known.advice);
    }
  }
  return "";
}

void CriuErrors::note(std::string_view line) {
  CriuLine parsed = parse_criu_line(line);
  if (first_line_.empty()) first_line_ = parsed.text;
  if (parsed.severity != CriuSeverity::kError || is_harmless(parsed)) return;
  if (errors_.size() < kErrorsMax) errors_.push_back(std::move(parsed.text));
}

std::string CriuErrors::summary() const {
  if (errors_.empty()) return first_line_.empty() ? "" : fmt::format("\"{}\"", first_line_);
  // The first error is the cause, but ppmr may know a remedy only for a later one.
  for (const std::string& error : errors_) {
    const std::string advice = advice_for(error);
    if (!advice.empty()) return fmt::format("\"{}\": {}", errors_.front(), advice);
  }
  return fmt::format("\"{}\"", errors_.front());
}

}  // namespace ppmr
