// Where the directory of ends keeps its texts, one for each name: in files of a directory that all
// machines see, or in the directory of a job (jobs/peer_directory.h).
#pragma once

#include <optional>
#include <string>

namespace ppmr::verbs {

// Threads: any, one call at a time for each name.
class TextStore {
 public:
  virtual ~TextStore() = default;

  // Creates an entry. Returns 0, EEXIST if the name is taken, or another errno.
  virtual int create(const std::string& name, const std::string& text) = 0;
  // Replaces the text. A reader gets either the old or the new text. Returns 0 or an errno.
  virtual int write(const std::string& name, const std::string& text) = 0;
  virtual void remove(const std::string& name) = 0;
  // Returns the text; nullopt if no entry has this name, or if it may be another user's entry.
  virtual std::optional<std::string> get(const std::string& name) = 0;
};

// Returns the store that the settings name; null: they name none. It is never destroyed.
TextStore* text_store();

}  // namespace ppmr::verbs
